"""A machine without a disk: what the node does around it, in memory and by hand.

`do` decides and commits; `decide` leaves the facts in flight until `commit`. Several batches may be in flight at
once (`seal` ends one), and each has one time, as in the journal.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

import pytest

from millstream.engine.applying import apply_to_bucket, apply_to_stream, born
from millstream.engine.machine import Change, Machine
from millstream.engine.state import Stream
from millstream.model import facts
from millstream.model.commands import (
    Addition,
    Append,
    Body,
    Command,
    CommitTransaction,
    Create,
    Delete,
    Expire,
    PublishSnapshot,
    Slice,
    Touch,
    Trim,
)
from millstream.model.errors import NotFound, Refused
from millstream.model.facts import Fact, Producer, Stored
from millstream.model.names import split_key
from millstream.model.positions import format_stream_id
from millstream.model.records import BucketRecord, StreamRecord
from millstream.model.replies import Receipt
from millstream.model.timeline import Timeline

INCARNATION = 0xABCD
START_MS = 1_700_000_000_000
TEXT = "text/plain"
JSON = "application/json"
KEY = "shop/orders"


class Shelf:
    """The catalog, as dictionaries."""

    def __init__(self) -> None:
        self.records: dict[int, StreamRecord] = {}
        self.producers: dict[tuple[int, str], tuple[int, int]] = {}
        self.buckets: dict[str, BucketRecord] = {}

    def stream(self, key: str) -> StreamRecord | None:
        return next((record for record in self.records.values() if record.key == key), None)

    def stream_numbered(self, number: int) -> StreamRecord | None:
        return self.records.get(number)

    def producer(self, number: int, producer_id: str) -> tuple[int, int] | None:
        return self.producers.get((number, producer_id))

    def bucket(self, name: str) -> BucketRecord | None:
        return self.buckets.get(name)


class Objects:
    """The objects of transactions, all in one place: an object's number says nothing, `at` is everything."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def put(self, payload: bytes, number: int = 1) -> Stored:
        """The same bytes lie in the same place, so that two worlds can have the same journal."""
        at = self._bytes.find(payload)
        if at < 0:
            at = len(self._bytes)
            self._bytes += payload
        return Stored(number, at, 0)

    def stored(self, where: Stored, size: int) -> bytes:
        return bytes(self._bytes[where.at : where.at + size])


OBJECTS = Objects()


class Entry(NamedTuple):
    """One fact as the journal has it."""

    fact: Fact
    sequence: int
    at_ms: int


class World:
    def __init__(self, shelf: Shelf | None = None, **options: object) -> None:
        self.shelf = shelf or Shelf()
        self.machine = Machine(self.shelf, incarnation=INCARNATION, time=self, payloads=OBJECTS, **options)
        self.now_ms = START_MS
        self.journal: list[Entry] = []
        self._batches: list[tuple[int, int, int, list[Change]]] = []
        self._sealed = True

    # -- time and commands

    def wait(self, ms: int) -> None:
        """Time passes, or steps back; what is decided from now on is in another batch."""
        self.now_ms += ms
        self.seal()

    def set_clock_ahead(self, ms: int) -> None:
        """Somebody sets the machine's clock: nothing has passed."""
        self.wait(ms)
        self.machine.shift_ms -= ms
        self._admit(facts.ClockRead(self.now_ms, self.lease_ms()))

    def lease_ms(self) -> int:
        return self.now_ms + self.machine.shift_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def decide(self, command: Command) -> Receipt:
        if self._sealed:
            self._batches.append((self.machine.next_sequence, self.now_ms, self.machine.shift_ms, []))
            self._sealed = False
        return self.machine.decide(command, self.now_ms, self._batches[-1][-1])

    def do(self, command: Command) -> Receipt:
        receipt = self.decide(command)
        self.commit()
        return receipt

    def refusal(self, command: Command) -> Refused:
        with pytest.raises(Refused) as caught:
            self.do(command)
        return caught.value

    # -- the journal

    def seal(self) -> None:
        self._sealed = True

    def commit_one(self) -> None:
        """The oldest batch is durable."""
        if self._batches:
            first, at_ms, shift_ms, changes = self._batches.pop(0)
            self._sealed = self._sealed or not self._batches
            self.machine.publish(changes, first, at_ms, shift_ms)
            self.journal += [Entry(fact, first + index, at_ms) for index, (_, fact) in enumerate(changes)]

    def commit(self) -> None:
        while self._batches:
            self.commit_one()

    def lose(self) -> None:
        """The journal failed."""
        for *_, changes in self._batches:
            self.machine.drop_overlays(changes)
        self._batches, self._sealed = [], True

    def in_flight(self) -> list[Fact]:
        return [fact for *_, changes in self._batches for _, fact in changes]

    def upload(self, *parts: bytes) -> int:
        """Journal a large body in parts; its number."""
        number = self.machine.next_sequence
        for index, part in enumerate(parts):
            self._admit(facts.PartStored(number if index else 0, part))
        return number

    def drop_upload(self, number: int) -> None:
        self._admit(facts.PartsDropped(number))

    def _admit(self, fact: facts.UploadFact | facts.ClockRead) -> None:
        self.seal()
        changes: list[Change] = []
        self._batches.append((self.machine.next_sequence, self.now_ms, self.machine.shift_ms, changes))
        self.machine.admit_other(fact, changes)
        self.commit()

    # -- checkpoints

    def checkpoint(self) -> None:
        """Everything committed goes to the shelf, and out of memory where the machine lets it."""
        assert not self._batches, "a checkpoint is made of what is committed"
        sequence = self.machine.next_sequence - 1
        streams, buckets = self.machine.cut(sequence)
        for stream in streams:
            self._shelve(stream)
        for bucket in buckets:
            self._shelve_bucket(bucket)
        for stream in streams:
            self.machine.checkpointed(stream, sequence)
        for bucket in buckets:
            self.machine.bucket_checkpointed(bucket, sequence)
        self.machine.cut_is_saved()

    def forget_idle(self) -> None:
        self.machine.coarse_s += 1
        for stream in list(self.machine.streams.values()):
            self.machine.evict_idle(stream, self.machine.next_sequence - 1, self.machine.coarse_s)

    def _shelve(self, stream: Stream) -> None:
        if stream.deleted:
            self.shelf.records.pop(stream.number, None)
            return
        self.shelf.records[stream.number] = stream_record(stream)
        for producer_id, state in (stream.producers or {}).items():
            self.shelf.producers[stream.number, producer_id] = state

    def _shelve_bucket(self, bucket: BucketRecord) -> None:
        if bucket.deleted:
            self.shelf.buckets.pop(bucket.name, None)
        else:
            self.shelf.buckets[bucket.name] = bucket_record(bucket)

    # -- looking

    def seen(self, key: str = KEY) -> StreamRecord:
        """The stream as readers see it."""
        return stream_record(self.machine.visible(key))

    def stream(self, key: str = KEY) -> Stream:
        return self.machine.visible(key)

    def exists(self, key: str = KEY) -> bool:
        try:
            self.machine.visible(key)
        except NotFound:
            return False
        return True

    def content(self, key: str = KEY) -> bytes:
        return b"".join(record.payload for record in self.stream(key).hot or ())

    def stream_id(self, key: str = KEY) -> str:
        return format_stream_id(INCARNATION, self.stream(key).number)

    def last_fact(self) -> Fact:
        return self.journal[-1].fact

    def appends(self) -> list[facts.Appended]:
        return [entry.fact for entry in self.journal if isinstance(entry.fact, facts.Appended)]


# --- short ways to say commands


def create(key: str = KEY, content_type: str | None = TEXT, payload: bytes = b"", **fields: object) -> Create:
    return Create(key, content_type, body=fields.pop("body", Body(payload)), **fields)  # type: ignore[arg-type]


def append(payload: bytes = b"x", key: str = KEY, content_type: str | None = TEXT, **fields: object) -> Append:
    return Append(key, content_type, fields.pop("body", Body(payload)), **fields)  # type: ignore[arg-type]


def close(key: str = KEY, **fields: object) -> Append:
    return append(b"", key, None, closes=True, **fields)


def delete(key: str = KEY, **fields: object) -> Delete:
    return Delete(key, **fields)  # type: ignore[arg-type]


def expire(number: int, key: str = KEY) -> Expire:
    return Expire(key, number)


def touch(number: int, key: str = KEY) -> Touch:
    return Touch(key, number)


def trim(offset: int, key: str = KEY, **fields: object) -> Trim:
    return Trim(key, offset, **fields)  # type: ignore[arg-type]


def snapshot(offset: int, payload: bytes = b"state", key: str = KEY, **fields: object) -> PublishSnapshot:
    return PublishSnapshot(key, offset, TEXT, len(payload), blake2b(payload).digest(), payload, **fields)  # type: ignore[arg-type]


def by(producer_id: str, epoch: int, seq: int) -> Producer:
    return Producer(producer_id, epoch, seq)


def batch(*messages: bytes) -> Body:
    return Body(b"".join(messages), [len(message) for message in messages])


def transaction(
    version: int,
    messages: dict[str, list[bytes]],
    bucket: str = "shop",
    app: str = "etl",
    faults: dict[str, str] | None = None,
    **fields: object,
) -> CommitTransaction:
    """Messages for streams, by name; the payloads go to `OBJECTS`."""
    additions = [
        Addition(name, [Slice(OBJECTS.put(b"".join(group)), list(map(len, group)))], (faults or {}).get(name))
        for name, group in messages.items()
    ]
    sizes = [len(message) for group in messages.values() for message in group]
    fields = {"create": True, "object": 1 if messages else None, **fields}
    return CommitTransaction(bucket, app, version, additions, len(sizes), sum(sizes), **fields)  # type: ignore[arg-type]


# --- state, comparable


def stream_record(stream: StreamRecord) -> StreamRecord:
    return StreamRecord(*(getattr(stream, field) for field in StreamRecord.__struct_fields__))


def bucket_record(bucket: BucketRecord) -> BucketRecord:
    return BucketRecord(*(getattr(bucket, field) for field in BucketRecord.__struct_fields__))


def committed(machine: Machine) -> dict[str, object]:
    """Everything that is committed, field by field. Caches and clocks of the running process are not part of it."""
    return {
        "next": machine.next_sequence,
        "streams": {key: stream_record(stream) for key, stream in machine.streams.items()},
        "changed": {key: stream.changed for key, stream in machine.streams.items()},
        "hot": {key: stream.hot for key, stream in machine.streams.items()},
        "snapshots": {key: stream.snapshot_hot for key, stream in machine.streams.items()},
        "hot_bytes": machine.hot_bytes,
        "producers": {key: stream.producers or {} for key, stream in machine.streams.items()},
        "buckets": {name: bucket_record(b) for name, b in machine.buckets.items() if not b.deleted},
        "uploads": {number: b"".join(parts) for number, parts in machine.uploads.items()},
    }


def everything(machine: Machine) -> dict[str, object]:
    """The committed state and what lies over it."""
    streams = {**machine.streams, **{f"{key} (arriving)": stream for key, stream in machine._arriving.items()}}
    return {
        **committed(machine),
        "inflight": {key: stream.inflight for key, stream in streams.items()},
        "views": {key: stream_record(stream.view()) for key, stream in streams.items()},
        "pending producers": {key: dict(stream.pending_producers or {}) for key, stream in streams.items()},
        "bucket views": {name: (b.inflight, bucket_record(b.view())) for name, b in machine.buckets.items()},
    }


def replayed(journal: Iterable[Entry], **options: object) -> Machine:
    """A machine that was started on this journal."""
    machine = Machine(Shelf(), incarnation=INCARNATION, time=World(), payloads=OBJECTS, **options)
    known: dict[int, Stream] = {}
    for fact, sequence, at_ms in journal:
        machine.replay(fact, sequence, at_ms, known)
    return machine


def applied(journal: Iterable[Entry]) -> tuple[dict[int, StreamRecord], dict[str, BucketRecord]]:
    """The records that `engine.applying` alone makes of a journal, as a checkpoint does."""
    streams: dict[int, StreamRecord] = {}
    buckets: dict[str, BucketRecord] = {}
    timeline = Timeline()
    for fact, sequence, at_ms in journal:
        if isinstance(fact, facts.ClockRead):
            timeline.take(fact, at_ms)
        if isinstance(fact, facts.PartStored | facts.PartsDropped | facts.ClockRead):
            continue
        if isinstance(fact, facts.StreamCreated):
            streams[sequence] = born(fact, sequence, at_ms, timeline.shift_ms)
            name = split_key(fact.key)[0]
        elif isinstance(fact, facts.BucketFact):
            name = fact.bucket
        else:
            apply_to_stream(streams[fact.stream], fact, at_ms, timeline.shift_ms)
            name = split_key(streams[fact.stream].key)[0]
        bucket = buckets.setdefault(name, BucketRecord(name, at_ms, deleted=True))
        apply_to_bucket(bucket, fact, sequence, at_ms)
    return streams, buckets
