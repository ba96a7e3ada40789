"""How each fact changes a record. The only code that does: running, replay, overlays and checkpoints share it.

Facts are dated in commit time; `shift_ms` leads from there to the time in which leases are counted (`model.timeline`).

Nothing here judges. An assertion that fails means that the journal and the state have parted, which must stop
the process rather than serve wrong data.
"""

from __future__ import annotations

from sys import intern

from msgspec.structs import replace

from ..model import facts
from ..model.facts import Producer
from ..model.records import (
    DEFAULT_BUCKET_SETTINGS,
    Application,
    BucketRecord,
    Lease,
    Snapshot,
    StreamRecord,
    Writers,
)

_NO_WRITERS = Writers()


def born(fact: facts.StreamCreated, sequence: int, at_ms: int, shift_ms: int) -> StreamRecord:
    """The record of a stream that has just been created."""
    record = StreamRecord(
        sequence, fact.key, fact.content_type, at_ms, at_ms, client_ids=fact.client_ids, takes_type=fact.takes_type
    )
    if fact.ttl_s is not None or fact.expires_at_ms is not None:
        record.lease = Lease(fact.ttl_s, fact.expires_at_ms, at_ms + shift_ms, fact.sliding)
    return record


def apply_to_stream(record: StreamRecord, fact: facts.StreamFact, at_ms: int, shift_ms: int) -> None:
    kind = type(fact)
    if kind is facts.Appended:
        apply_appended(record, fact, at_ms, shift_ms)  # type: ignore[arg-type]
    elif kind is facts.Touched:
        _renew(record, at_ms + shift_ms)
    elif kind is facts.Closed:
        assert isinstance(fact, facts.Closed)
        record.written_ms = at_ms
        _renew(record, at_ms + shift_ms)
        _close(record, fact.producer)
    elif isinstance(fact, facts.ContentTypeTaken):
        record.content_type = intern(fact.content_type)  # there are few, and every append compares them
    elif isinstance(fact, facts.Trimmed):
        _trim(record, fact.offset)
    elif isinstance(fact, facts.SnapshotPublished):
        record.snapshot = Snapshot(fact.offset, fact.content_type, fact.size, fact.digest, fact.object)
        _renew(record, at_ms + shift_ms)
        if fact.trims:
            _trim(record, fact.offset)
    else:
        record.deleted = True


def _trim(record: StreamRecord, offset: int) -> None:
    record.earliest = max(record.earliest, offset)
    if record.snapshot is not None and record.snapshot.offset < record.earliest:
        record.snapshot = None


def apply_to_bucket(record: BucketRecord, fact: facts.Fact, sequence: int, at_ms: int) -> None:
    """A bucket's own facts, and the coming and going of its streams."""
    if isinstance(fact, facts.StreamCreated):
        record.streams += 1
    elif isinstance(fact, facts.StreamDeleted | facts.StreamExpired):
        record.streams -= 1
    elif isinstance(fact, facts.BucketCreated):
        record.number = sequence
        record.created_ms = at_ms
        record.implicit = fact.implicit
        record.deleted = False
        record.settings = fact.settings or DEFAULT_BUCKET_SETTINGS
    elif isinstance(fact, facts.BucketChanged):
        record.settings = fact.settings
    elif isinstance(fact, facts.BucketDeleted):
        record.deleted = True
        record.apps = None
    elif isinstance(fact, facts.TransactionCommitted):
        app = Application(fact.version, fact.messages, fact.bytes, fact.streams, fact.created, at_ms)
        record.apps = {**(record.apps or {}), fact.app: app}
    elif isinstance(fact, facts.TransactionsForgotten):
        record.apps = {name: app for name, app in (record.apps or {}).items() if name != fact.app} or None


def apply_appended(record: StreamRecord, fact: facts.Appended, at_ms: int, shift_ms: int) -> None:
    if fact.offset != record.tail:
        raise AssertionError((record.key, fact.offset, record.tail))
    record.tail += len(fact.payload) or facts.size_of(fact)
    record.written_ms = at_ms
    record.id_ms = fact.id_ms
    record.id_seq = fact.id_seq if fact.lengths is None else fact.id_seq + max(len(fact.lengths) - 1, 0)
    if record.lease is not None:
        _renew(record, at_ms + shift_ms)
    if fact.stream_seq is not None:
        record.writers = replace(record.writers or _NO_WRITERS, stream_seq=fact.stream_seq)
    if fact.closes:
        _close(record, fact.producer)
    elif fact.producer is not None and fact.producer.is_new:
        _count_producer(record)


def apply_messages(record: StreamRecord, tail: int, at_ms: int, shift_ms: int, id_ms: int, id_seq: int) -> None:
    """What any number of plain appends have done to a record, told by the last one: its end, time and id."""
    record.tail = tail
    record.written_ms = at_ms
    record.id_ms = id_ms
    record.id_seq = id_seq
    if record.lease is not None:
        _renew(record, at_ms + shift_ms)


def _close(record: StreamRecord, producer: Producer | None) -> None:
    record.closed = True
    if producer is not None:
        if producer.is_new:
            _count_producer(record)
        record.writers = replace(record.writers or _NO_WRITERS, closed_by=producer)


def _count_producer(record: StreamRecord) -> None:
    writers = record.writers or _NO_WRITERS
    record.writers = replace(writers, producer_count=writers.producer_count + 1)


def _renew(record: StreamRecord, lease_ms: int) -> None:
    lease = record.lease
    if lease is not None and lease.sliding and lease_ms > lease.renewed_ms:
        record.lease = replace(lease, renewed_ms=lease_ms)
