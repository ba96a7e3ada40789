"""What one stream and one bucket are while they are in memory: their record and what surrounds it."""

from __future__ import annotations

import copy
from sys import intern
from typing import Any, Protocol

import msgspec

from ..model.facts import Appended, Stored
from ..model.records import BucketRecord, StreamRecord
from .applying import apply_appended


class HotRecord(msgspec.Struct, frozen=True, gc=False):
    """One append that is not in a segment yet."""

    offset: int
    payload: bytes
    lengths: list[int] | None
    at_ms: int
    id_ms: int
    id_seq: int
    sequence: int

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.payload)

    @property
    def weight(self) -> int:
        """What it takes of the memory for payloads."""
        return len(self.payload)

    def as_fact(self, stream: int) -> Appended:
        """The append as the stream with this number remembers it: neither who it was nor whether it was the last."""
        return Appended(stream, self.offset, self.id_ms, self.id_seq, self.payload, self.lengths)


class Payloads(Protocol):
    """Where the payloads lie that are not in the journal."""

    def stored(self, where: Stored, size: int) -> bytes: ...


class StoredRecord(msgspec.Struct, frozen=True, gc=False):
    """A `HotRecord` whose payload stays where the transaction put it, until it is in a segment."""

    offset: int
    size: int
    lengths: list[int]
    at_ms: int
    id_ms: int
    id_seq: int
    sequence: int
    where: Stored
    payloads: Payloads

    @property
    def payload(self) -> bytes:
        return self.payloads.stored(self.where, self.size)

    @property
    def next_offset(self) -> int:
        return self.offset + self.size

    @property
    def weight(self) -> int:
        return 200 + 40 * len(self.lengths)


Hot = HotRecord | StoredRecord


class Stream(StreamRecord, gc=False):
    """A stream in memory. The inherited fields are the committed state.

    `pending` is the overlay: the state as it will be once everything in flight is durable. Decisions look at
    it, readers never do. With one append in flight it is that append and its times: with many streams most are written
    before the next decision about them, and nobody has asked for the state in between.
    """

    # What every append looks at comes first: with many streams most of them are far away in memory.
    pending: StreamRecord | tuple[Appended, int, int] | None = None
    inflight: int = 0
    changed: int = 0  # sequence of the last committed change; the catalog has it once it checkpointed that far
    hot: list[Hot] | None = None
    used: int = 0  # when it was last asked for, in the machine's coarse seconds
    pending_producers: dict[str, tuple[int, int]] | None = None
    snapshot_hot: tuple[int, bytes] | None = None  # sequence and bytes of a small one that is not in a segment yet
    followers: dict[Any, None] | None = None  # of `node.followers`; the engine only asks whether there are any
    producers: dict[str, tuple[int, int]] | None = None  # (epoch, seq), as far as loaded
    seen_ms: int = 0  # the last renewal of a TTL, journaled or not; see `leasing`

    @classmethod
    def from_record(cls, record: StreamRecord) -> Stream:
        stream = cls(*(getattr(record, field) for field in StreamRecord.__struct_fields__))
        stream.content_type = intern(record.content_type)  # there are few, and every append compares them
        if record.lease is not None:
            stream.seen_ms = record.lease.promised_ms()
        return stream

    def view(self) -> StreamRecord:
        """What a decision must look at."""
        return self if self.pending is None else self.overlay()

    def overlay(self) -> StreamRecord:
        pending = self.pending
        if pending is None or type(pending) is tuple:
            self.pending = None
            # copy.copy() would spend a microsecond on finding this method.
            overlay: StreamRecord = self.__copy__()  # type: ignore[attr-defined]
            if pending is not None:
                apply_appended(overlay, *pending)
            self.pending = pending = overlay
        return pending  # type: ignore[return-value]

    def settle(self) -> None:
        """One change in flight less."""
        self.inflight -= 1
        if self.inflight == 0:
            self.pending = None
            self.pending_producers = None

    @property
    def hot_from(self) -> int:
        """The first offset that is in memory."""
        return self.hot[0].offset if self.hot else self.tail


class Time(Protocol):
    """What time it is. Only decisions and readers ask, and only where a stream may end; replay never does."""

    def lease_ms(self) -> int: ...
    def wall_ms(self) -> int: ...


class Bucket(BucketRecord, gc=False):
    pending: BucketRecord | None = None
    inflight: int = 0
    changed: int = 0

    @classmethod
    def from_record(cls, record: BucketRecord) -> Bucket:
        return cls(*(getattr(record, field) for field in BucketRecord.__struct_fields__))

    def view(self) -> BucketRecord:
        return self.pending or self

    def overlay(self) -> BucketRecord:
        if self.pending is None:
            self.pending = copy.copy(self)
        return self.pending

    def settle(self) -> None:
        self.inflight -= 1
        if self.inflight == 0:
            self.pending = None


class Shelf(Protocol):
    """Where streams that are not in memory are looked up (the catalog, or a dictionary in tests)."""

    def stream(self, key: str) -> StreamRecord | None: ...
    def stream_numbered(self, number: int) -> StreamRecord | None: ...
    def producer(self, number: int, producer_id: str) -> tuple[int, int] | None: ...
    def bucket(self, name: str) -> BucketRecord | None: ...
