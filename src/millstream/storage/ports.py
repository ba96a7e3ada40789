"""The seams of storage: small protocols that S3 and a replicated log will fit as well.

`Journal` is what the node's writer drives; `ObjectStore` is where immutable things go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from ..model.facts import Fact

Piece = bytes | bytearray | memoryview


class Batch(NamedTuple):
    """Facts that became durable together."""

    first_sequence: int
    at_ms: int
    facts: list[Fact]

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + len(self.facts) - 1


class Journal(Protocol):
    """One shard's log. One batch is in flight at a time: `write`, then `sync`, then the next `write`."""

    incarnation: int
    last_sequence: int

    def write(self, first_sequence: int, at_ms: int, facts: bytes | bytearray) -> None:
        """Hand over a batch as `codec` encoded it; it is not durable yet."""

    def sync(self) -> None:
        """Return when everything written is durable. After a failure the journal is not to be used again."""

    def batches(self, after: int) -> Iterator[Batch]:
        """The durable batches that hold sequences after the given one, in order."""
        ...

    def trim(self, through: int) -> None:
        """Forget files that hold nothing after `through`."""


class NewObject(Protocol):
    """An object that is being written; it is not there before `finish`."""

    size: int

    def write(self, data: Piece) -> None: ...

    def finish(self) -> None:
        """Store durably; refuses a taken name."""

    def abort(self) -> None:
        """Let go of what was written; after `finish` this does nothing."""


class ObjectStore(Protocol):
    """Immutable objects under names such as ``segments/000042``."""

    def put(self, name: str, pieces: Iterable[Piece]) -> int:
        """Store durably, all or nothing, refusing a taken name; returns the size."""
        ...

    def begin(self, name: str) -> NewObject:
        """The same, for somebody who writes piece by piece."""
        ...

    def get_range(self, name: str, at: int, size: int) -> bytes: ...

    def size(self, name: str) -> int: ...

    def delete(self, name: str) -> None:
        """Remove; an absent object is fine."""

    def list(self, prefix: str) -> list[tuple[str, int]]:
        """Names and sizes under a folder."""
        ...
