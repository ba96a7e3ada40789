"""The road of a transaction: stage parts, merge them, commit.

    stage    body in a file -> the staging process makes a sorted part of it, synced -> known here
    commit   the staging process merges the parts into one object, synced -> one batch of facts that point into it

The batch is the commit: before it nothing is visible, and it is there as a whole or not at all. What a crash leaves
behind is an object that no fact names. See docs/decisions/0010.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakValueDictionary

import msgspec

from ..engine.machine import Machine
from ..engine.transactions import REASONS_MAX, is_duplicate
from ..model.commands import Addition, Command, CommitTransaction, ForgetTransactions
from ..model.errors import (
    MillstreamError,
    NotFound,
    OutcomeUnknown,
    Reason,
    TooLarge,
    TooMany,
    TransactionRefused,
    Unavailable,
)
from ..model.records import Application, BucketRecord
from ..model.replies import Outcome, Receipt
from ..storage.objects import LocalObjects
from ..storage.transactions.objects import decode_additions, object_name, read_additions
from ..storage.transactions.parts import PartHead, part_name
from .clearing import clear_away
from .clock import Clock
from .staged_parts import ALL_PARTS_MAX, PARTS_MAX, App, Leftovers, StagedPart, StagedParts
from .staging_process import MergeJob, StageJob
from .staging_worker import StagingWorker
from .vital import end_task, vital_task
from .writer import Answer, Writer

log = logging.getLogger(__name__)

MESSAGES_MAX = 2_000_000
STREAMS_MAX = 100_000
_SWEEP_S = 5.0
_SWEEP_PARTS = 1000  # looked at in one turn of the loop


class TransactionLimits(msgspec.Struct, frozen=True):
    staged_ttl_s: float
    staged_bytes_max: int
    transaction_bytes_max: int
    low_space_bytes: int = 0


class PartName(msgspec.Struct, frozen=True):
    """A part as a commit lists it."""

    part: str
    etag: str | None = None


class Committed(msgspec.Struct, frozen=True):
    application: Application
    is_duplicate: bool


class Transactions:
    def __init__(
        self,
        machine: Machine,
        writer: Writer,
        objects: LocalObjects,
        clock: Clock,
        stager: StagingWorker,
        merger: StagingWorker,
        limits: TransactionLimits,
        leftovers: Leftovers,
        held: Callable[[], int] = lambda: 0,
    ) -> None:
        self._machine = machine
        self._writer = writer
        self._objects = objects
        self._clock = clock
        self._stager = stager
        self._merger = merger  # of its own: a commit does not wait for gigabytes that somebody stages
        self._limits = limits
        self._held = held  # leases hold the objects below this number
        self.parts = StagedParts()
        self.stored = set(leftovers.objects)  # the transactions' objects that are there
        self._preparing: set[int] = set()  # those among them that no fact names yet
        self._last_number = max((*leftovers.objects, *(part.number for part in leftovers.parts)), default=0)
        self._locks: WeakValueDictionary[App, asyncio.Lock] = WeakValueDictionary()
        self._sweeper: asyncio.Task[None] | None = None
        self._garbage = self._take_up(leftovers.parts)
        self.on_committed: Callable[[int], None] = lambda _: None  # so many bytes wait for segments
        self.commits = 0

    def _take_up(self, parts: Iterable[StagedPart]) -> list[str]:
        """Know parts again after a restart, the oldest first; the objects of those that are of no use."""
        garbage = []
        for part in parts:
            if self._is_outdated(part.head):
                garbage.append(part_name(part.number))
            elif (former := self.parts.add(part)) is not None:
                garbage.append(part_name(former.number))
        return garbage

    # -- its life ----------------------------------------------------------------------------------------

    def start(self) -> asyncio.Task[None]:
        self._sweeper = vital_task(self._sweep_forever(), "transactions")
        return self._sweeper

    async def close(self) -> None:
        await end_task(self._sweeper)
        await self._stager.close()
        await self._merger.close()

    def abandon(self) -> None:
        """Let go as a killed process does."""
        self._stager.kill()
        self._merger.kill()

    # -- staging -----------------------------------------------------------------------------------------

    def admit(self, bucket: str, app: str, version: int, part: str) -> bool:
        """Whether a part is wanted: False when its version is committed. Raises when it is refused."""
        if is_duplicate(app, version, self._machine.visible_bucket(bucket).apps):
            return False
        self.check_room(0)
        if self.parts.bytes >= self._limits.staged_bytes_max:
            raise Unavailable(
                f"{self.parts.bytes} bytes are staged, the limit is {self._limits.staged_bytes_max} "
                "(staged_bytes_max). Commit or delete some.",
                code="too_much_staged",
            )
        present = self.parts.version((bucket, app), version)
        if part not in present and (len(present) >= PARTS_MAX or len(self.parts) >= ALL_PARTS_MAX):
            raise TooMany(
                f"A transaction has at most {PARTS_MAX} parts, and {ALL_PARTS_MAX} may be staged in all.",
                code="too_many_parts",
            )
        return True

    def check_room(self, size: int) -> None:
        """Raise if so many bytes would leave the journal without space, or if nothing is taken at all."""
        if self._writer.refusal is not None:
            raise self._writer.refusal
        if size and self._objects.free_bytes() - size < self._limits.low_space_bytes:
            raise Unavailable(
                f"The disk has no room for {size} bytes above low_space_bytes. Free some space.",
                code="disk_nearly_full",
            )

    async def stage(
        self, bucket: str, app: str, version: int, part: str, body: str, is_arrow: bool
    ) -> StagedPart | None:
        """Make a part of a body that lies in the object store; None when its version is committed meanwhile."""
        record = self._machine.visible_bucket(bucket)
        head = PartHead(
            bucket, record.created_ms, app, version, part, self._clock.lease_ms(), bucket_number=record.number
        )
        number = self._next_number()
        self.check_room(await asyncio.to_thread(self._objects.size, body))
        report = await self._stager.run(StageJob(body, is_arrow, number, head))
        assert report.head is not None
        staged = StagedPart(number, report.head)
        try:
            async with self._lock((bucket, app)):  # a commit that is running knows which parts it has
                wanted = self.admit(bucket, app, version, part)
                if wanted and self._bucket_of(staged.head) is None:
                    raise _bucket_was_deleted()
                former = self.parts.add(staged) if wanted else staged
        except MillstreamError:
            await clear_away(self._objects, [part_name(number)])
            raise
        if former is not None:
            await clear_away(self._objects, [part_name(former.number)])
        return staged if wanted else None

    def staged(self, bucket: str, app: str, version: int) -> dict[str, StagedPart]:
        """The parts of a version that a commit would find."""
        present = self.parts.version((bucket, app), version)
        return {name: part for name, part in present.items() if not self._is_outdated(part.head)}

    async def drop(self, bucket: str, app: str, version: int) -> None:
        """Forget what is staged of a version."""
        self._machine.visible_bucket(bucket)
        async with self._lock((bucket, app)):
            await self._drop_versions((bucket, app), [version])

    async def forget(self, bucket: str, app: str) -> None:
        """Forget an application, and everything it has staged."""
        async with self._lock((bucket, app)):
            await self._submit(ForgetTransactions(bucket, app))
            await self._drop_versions((bucket, app), self.parts.versions((bucket, app)))

    def application(self, bucket: str, app: str) -> Application | None:
        return (self._machine.visible_bucket(bucket).apps or {}).get(app)

    # -- committing --------------------------------------------------------------------------------------

    async def commit(
        self,
        bucket: str,
        app: str,
        version: int,
        listed: Sequence[PartName],
        *,
        create: bool = False,
        content_type: str | None = None,
    ) -> Committed:
        """Append the messages of all listed parts, once. Raises `TransactionRefused` with the reasons."""
        async with self._lock((bucket, app)):
            known = self.application(bucket, app)
            if is_duplicate(app, version, self._machine.visible_bucket(bucket).apps):
                assert known is not None
                return Committed(known, True)
            parts = self._listed((bucket, app), version, listed)
            number = self._machine.visible_bucket(bucket).number
            if not any(part.head.messages for part in parts):
                outcome = await self._submit(CommitTransaction(bucket, app, version, [], number=number))
            else:
                outcome = await self._commit_parts(bucket, number, app, version, parts, create, content_type)
            done = self.application(bucket, app)
            if done is None:
                raise _bucket_was_deleted()
            self.commits += 1
            versions = [each for each in self.parts.versions((bucket, app)) if each <= version]
            await self._drop_versions((bucket, app), versions)
            return Committed(done, outcome is Outcome.DUPLICATE)

    def _listed(self, app: App, version: int, listed: Sequence[PartName]) -> list[StagedPart]:
        present = self.parts.version(app, version)
        parts, reasons = [], []
        for wanted in listed:
            part = present.get(wanted.part)
            if part is None or self._is_outdated(part.head):
                why = f"Part '{wanted.part}' is not staged, or it has expired. Stage it again."
                reasons.append(Reason("part_missing", why, part=wanted.part))
            elif wanted.etag is not None and wanted.etag != part.etag:
                why = f"Part '{wanted.part}' has been staged again since: its etag is '{part.etag}' now."
                reasons.append(Reason("part_replaced", why, part=wanted.part))
            else:
                parts.append(part)
        if reasons:
            raise TransactionRefused(reasons[:REASONS_MAX], len(reasons))
        self._check_size(parts)
        return parts

    def _check_size(self, parts: Sequence[StagedPart]) -> None:
        size, messages = sum(part.head.bytes for part in parts), sum(part.head.messages for part in parts)
        if size > self._limits.transaction_bytes_max:
            limit = self._limits.transaction_bytes_max
            raise _too_large(f"{size} bytes; it may have {limit} (transaction_bytes_max)")
        if messages > MESSAGES_MAX:
            raise _too_large(f"{messages} messages; it may have {MESSAGES_MAX}")
        self.check_room(size)

    async def _commit_parts(
        self,
        bucket: str,
        bucket_number: int,
        app: str,
        version: int,
        parts: list[StagedPart],
        create: bool,
        content_type: str | None,
    ) -> Outcome:
        number = self._next_number()
        self._preparing.add(number)
        try:
            merged = (await self._merger.run(MergeJob(number, [part.number for part in parts]))).merged
            assert merged is not None
            self.stored.add(number)
            if merged.streams > STREAMS_MAX:
                raise _too_large(f"{merged.streams} streams; it may have {STREAMS_MAX}")
            additions = await self._additions(bucket, number)
            figures = (merged.messages, merged.bytes, number)
            outcome = await self._submit(
                CommitTransaction(bucket, app, version, additions, *figures, create, content_type, bucket_number)
            )
            self.on_committed(merged.bytes)
            return outcome
        except (OutcomeUnknown, asyncio.CancelledError):
            self.stored.discard(number)  # a restart may find the batch, and then the object must be there
            raise
        except MillstreamError:
            await self._remove_object(number)
            raise
        finally:
            self._preparing.discard(number)

    async def _additions(self, bucket: str, number: int) -> list[Addition]:
        """The object's index, in steps that delay nobody; its streams are fetched into memory on the way."""
        chunks = await asyncio.to_thread(lambda: list(read_additions(self._objects, number)))
        additions: list[Addition] = []
        for chunk in chunks:
            some = decode_additions(chunk)
            for addition in some:
                self._machine.find(f"{bucket}/{addition.stream}")
            additions += some
            await asyncio.sleep(0)
        return additions

    async def _submit(self, command: Command) -> Outcome:
        answered: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

        def done(answer: Answer) -> None:
            if answered.done():
                return
            if isinstance(answer, MillstreamError):
                answered.set_exception(answer)
            else:
                answered.set_result(answer)

        self._writer.submit(command, done)
        return (await answered).outcome

    # -- what goes ---------------------------------------------------------------------------------------

    def cooled(self, through: int) -> None:
        """The segments have what was committed up to this sequence, and memory points to no older object."""
        objects = self._machine.objects
        for number in [number for number, sequence in objects.items() if sequence <= through]:
            del objects[number]

    async def _sweep_forever(self) -> None:
        await clear_away(self._objects, self._garbage)
        while True:
            await self.sweep()
            await asyncio.sleep(_SWEEP_S)

    async def sweep(self) -> None:
        """Drop the parts whose time is up, and the objects that nothing needs."""
        parts = self.parts.all()
        for start in range(0, len(parts), _SWEEP_PARTS):
            expired = [part for part in parts[start : start + _SWEEP_PARTS] if self._is_outdated(part.head)]
            for part in expired:
                async with self._lock((part.head.bucket, part.head.app)):
                    self.parts.drop(part)
            await clear_away(self._objects, [part_name(part.number) for part in expired])
            await asyncio.sleep(0)
        garbage = self.stored - self._machine.objects.keys() - self._preparing
        if garbage:
            held_below = self._held()  # asked for after the garbage is known, see `leases`
            for number in [number for number in garbage if number >= held_below]:
                await self._remove_object(number)

    def _is_outdated(self, head: PartHead) -> bool:
        if head.staged_ms + self._limits.staged_ttl_s * 1000 <= self._clock.lease_ms():
            return True
        bucket = self._bucket_of(head)
        if bucket is None:
            return True
        known = (bucket.apps or {}).get(head.app)
        return known is not None and head.version <= known.version

    def _bucket_of(self, head: PartHead) -> BucketRecord | None:
        """The very bucket that a part was staged for, if it is still there."""
        bucket = self._machine.find_bucket(head.bucket)
        if bucket is None or bucket.deleted:
            return None
        return bucket if (bucket.created_ms, bucket.number) == (head.bucket_ms, head.bucket_number) else None

    async def _drop_versions(self, app: App, versions: Iterable[int]) -> None:
        names = [part_name(part.number) for version in versions for part in self.parts.drop_version(app, version)]
        await clear_away(self._objects, names)

    async def _remove_object(self, number: int) -> None:
        self.stored.discard(number)
        self._objects.forget(object_name(number))
        await clear_away(self._objects, [object_name(number)])

    # -- numbers and turns -------------------------------------------------------------------------------

    def _next_number(self) -> int:
        """A number that no part and no object has had. It tells about when it was given."""
        self._last_number = max(self._last_number + 1, self._clock.lease_ms())
        return self._last_number

    def _lock(self, app: App) -> asyncio.Lock:
        """One thing at a time for each application."""
        lock = self._locks.get(app)
        if lock is None:
            lock = self._locks[app] = asyncio.Lock()
        return lock


def _bucket_was_deleted() -> NotFound:
    return NotFound(
        "The bucket was deleted meanwhile. Stage the parts again if there is another.", code="bucket_not_found"
    )


def _too_large(what: str) -> TooLarge:
    return TooLarge(f"The transaction has {what}. Commit it as several.", code="transaction_too_large")
