"""What is staged and waits for a commit: an index in memory over the objects in `staged/`."""

from __future__ import annotations

import logging

import msgspec

from ..engine.machine import Machine
from ..model.errors import CorruptData
from ..storage.objects import LocalObjects
from ..storage.transactions import objects as transaction_objects
from ..storage.transactions import parts as staged_objects
from ..storage.transactions.parts import PartHead, part_name, read_head

log = logging.getLogger(__name__)

BODIES = "bodies"  # what clients have sent, until it is a part
PARTS_MAX = 100_000  # of one transaction
ALL_PARTS_MAX = 500_000


def body_name(number: int) -> str:
    return f"{BODIES}/{number:020d}"


class StagedPart(msgspec.Struct, frozen=True, gc=False):
    number: int  # of its object; a part that is staged again has a higher one
    head: PartHead

    @property
    def etag(self) -> str:
        return f"{self.number:x}"


# Bucket and application; a plain tuple, because it is a key.
App = tuple[str, str]


class StagedParts:
    def __init__(self) -> None:
        self._apps: dict[App, dict[int, dict[str, StagedPart]]] = {}
        self._by_number: dict[int, StagedPart] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def version(self, app: App, version: int) -> dict[str, StagedPart]:
        return self._apps.get(app, {}).get(version, {})

    def versions(self, app: App) -> list[int]:
        return list(self._apps.get(app, ()))

    def add(self, part: StagedPart) -> StagedPart | None:
        """Keep a part; the one it replaces."""
        head = part.head
        parts = self._apps.setdefault((head.bucket, head.app), {}).setdefault(head.version, {})
        former = parts.get(head.part)
        if former is not None:
            self._forget(former)
        parts[head.part] = self._by_number[part.number] = part
        self.bytes += head.bytes
        return former

    def drop_version(self, app: App, version: int) -> list[StagedPart]:
        """Forget all parts of a version; which they were."""
        versions = self._apps.get(app, {})
        dropped = list(versions.pop(version, {}).values())
        if not versions:
            self._apps.pop(app, None)
        for part in dropped:
            self._forget(part)
        return dropped

    def drop(self, part: StagedPart) -> None:
        app = (part.head.bucket, part.head.app)
        versions = self._apps.get(app, {})
        parts = versions.get(part.head.version, {})
        if parts.get(part.head.part) is not part:
            return
        del parts[part.head.part]
        if not parts:
            self.drop_version(app, part.head.version)
        self._forget(part)

    def all(self) -> list[StagedPart]:
        return list(self._by_number.values())

    def _forget(self, part: StagedPart) -> None:
        if self._by_number.pop(part.number, None) is not None:
            self.bytes -= part.head.bytes


class Leftovers(msgspec.Struct):
    """What transactions left in the object store before a restart."""

    parts: list[StagedPart]  # the oldest first
    objects: set[int]


def find_leftovers(objects: LocalObjects, machine: Machine) -> Leftovers:
    """Raises `CorruptData` when the object of a transaction is missing that the segments do not have yet."""
    for folder in (BODIES, staged_objects.FOLDER, transaction_objects.FOLDER):
        objects.prepare(folder)
    objects.remove([body_name(number) for number in objects.numbers(BODIES, body_name)])
    present = objects.numbers(transaction_objects.FOLDER, transaction_objects.object_name)
    for number in machine.objects:
        if number not in present:
            raise CorruptData(
                f"The journal has a transaction whose messages are not there: objects/"
                f"{transaction_objects.object_name(number)} is missing. Restore it; nothing was changed."
            )
    parts = []
    for number in sorted(objects.numbers(staged_objects.FOLDER, part_name)):
        try:
            parts.append(StagedPart(number, read_head(objects, number)[0]))
        except CorruptData as error:
            log.error("A staged part is dropped, it has to be staged again: %s", error.message)
            objects.remove([part_name(number)])
    return Leftovers(parts, present)
