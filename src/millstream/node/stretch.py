"""A stretch of the journal, read once: the helper's only pass over facts.

While it is read, streams and buckets are brought up to date with the engine's own `apply`, facts go into the archive,
and of an append only its message stays in memory, with its stream. There are hundreds of thousands in a stretch, so
whatever is done for each of them is most of what a checkpoint costs: measured by `bench/appends.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from sys import intern
from typing import NamedTuple

from msgspec.structs import replace

from ..engine.applying import apply_appended, apply_messages, apply_to_bucket, apply_to_stream, born
from ..model import facts
from ..model.facts import Fact, Producer
from ..model.names import split_key
from ..model.records import BucketRecord, StreamRecord
from ..storage.archive.chunk import ChunkStream, is_plain, messages_of
from ..storage.archive.object import ArchiveWriter, BucketWriter
from ..storage.catalog import CatalogWriter
from ..storage.catalog.archives import Loss
from ..storage.ports import Batch, ObjectStore
from ..storage.segments.block import Message
from ..storage.transactions.objects import whole_fact
from .archiving import loses

_FETCHED_BYTES_MAX = 16 << 20  # of one stream's payload out of transactions' objects


Shift = tuple[int, int]  # from which commit time on, and how far it is to leases' time


class StoredAppend(NamedTuple):
    """An append whose payload lies in a transaction's object. It stays there until a segment needs it."""

    fact: facts.Appended
    at_ms: int
    sequence: int


class StreamPart:
    """What a stretch has of a stream: its record, and its new messages.

    The record does not know of plain appends before it is `settled`: with many streams it is far away in memory, and
    the last append tells all.
    """

    __slots__ = ("archive", "bucket", "first_offset", "is_stored", "messages", "name", "record", "tail")

    archive: BucketWriter
    messages: list[Message | StoredAppend]

    def __init__(self, record: StreamRecord) -> None:
        self.record = record
        bucket, name = split_key(record.key)
        # Many streams have the same bucket and type: one text for all of them.
        self.bucket = intern(bucket)
        self.name = ChunkStream(record.number, name, intern(record.content_type))

    def begin(self, archive: BucketWriter) -> None:
        """A stretch in which something happens to the stream."""
        self.archive = archive
        self.first_offset = self.tail = self.record.tail
        self.messages = []
        self.is_stored = False  # whether there is a `StoredAppend` among them

    def end(self) -> None:
        """Let go of what the stretch had."""
        del self.archive, self.messages

    def runs(self, store: ObjectStore) -> Iterator[tuple[int, list[Message]]]:
        """Messages that follow each other, and the first one's offset; those in objects are fetched a few at a time."""
        if not self.is_stored:
            yield self.first_offset, self.messages  # type: ignore[misc]
            return
        first = offset = self.first_offset
        run: list[Message] = []
        for message in self.messages:
            if isinstance(message, StoredAppend):
                whole = whole_fact(store, message.fact)
                run += messages_of(whole, message.at_ms, message.sequence)  # type: ignore[arg-type]
                offset += facts.size_of(message.fact)
            else:
                run.append(message)
                offset += len(message[0])
            if offset - first >= _FETCHED_BYTES_MAX:
                yield first, run
                first, run = offset, []
        yield first, run


class Stretch:
    """A run of the journal behind what the catalog has, and what it has made of streams and buckets."""

    def __init__(
        self,
        catalog: CatalogWriter,
        store: ObjectStore,
        archive: ArchiveWriter,
        applied: int,
        known: dict[int, StreamPart],
    ) -> None:
        """`known` are streams that need not be looked up. They will be changed."""
        self._catalog = catalog
        self._store = store
        self._archive = archive
        self._applied = applied
        self._known = known
        self.last_sequence = applied
        self.timeline = catalog.timeline()
        self._shifts: list[Shift] = [(0, self.timeline.shift_ms)]
        self.payload_bytes = 0
        self.parts: dict[int, StreamPart] = {}  # of streams to which something happened
        self.created: dict[int, StreamRecord] = {}
        self.buckets: dict[str, BucketRecord] = {}  # that have changed
        self.changed: set[int] = set()  # streams whose record says more than the row and the extents that they have
        self.trimmed: set[int] = set()
        self.published: defaultdict[int, list[tuple[facts.SnapshotPublished, int, int]]] = defaultdict(list)
        self.producers: defaultdict[int, dict[str, Producer]] = defaultdict(dict)  # of each stream, as they are last
        self._losing: list[tuple[int, int]] = []  # facts that take messages away, and their streams
        self._uploads: dict[int, list[bytes]] = {}

    def take(self, batch: Batch) -> None:
        at_ms, parts, size = batch.at_ms, self.parts, 0
        for sequence, fact in enumerate(self._new_facts(batch), max(batch.first_sequence, self._applied + 1)):
            if type(fact) is not facts.Appended:
                self._take_other(fact, sequence, batch)
                continue
            part = parts.get(fact.stream) or self._meet(fact.stream, batch)
            if is_plain(fact):
                payload, offset, id_ms = fact.payload, fact.offset, fact.id_ms
                if offset != part.tail:
                    raise AssertionError((part.record.key, offset, part.tail))
                part.tail = offset + len(payload)
                # Most ids have the batch's time: one number for all of them is less memory to walk through later.
                message = (payload, at_ms, at_ms if id_ms == at_ms else id_ms, fact.id_seq, sequence)
                part.messages.append(message)
                part.archive.add_message(part.name, offset, message)
                size += len(payload)
            else:
                self._take_append(part, fact, sequence, at_ms)
        self.payload_bytes += size
        if batch.last_sequence > self._applied:
            self.last_sequence, self.timeline.at_ms = batch.last_sequence, at_ms

    def settled(self, part: StreamPart) -> StreamRecord:
        """The record of a stream as it is by now."""
        record = part.record
        if record.tail != part.tail:
            _, at_ms, id_ms, id_seq, _ = part.messages[-1]  # type: ignore[misc]  # that of the last plain append
            shift_ms = 0 if record.lease is None else self._shift_at(at_ms)
            apply_messages(record, part.tail, at_ms, shift_ms, id_ms, id_seq)
        return record

    def _shift_at(self, at_ms: int) -> int:
        return self._shifts[bisect_right(self._shifts, at_ms, key=_from_ms) - 1][1]

    def records(self) -> dict[int, StreamRecord]:
        """The streams to which more happened than plain appends, as they are after the stretch."""
        parts, created = self.parts, self.created
        changed = self.changed.union(created)
        return {
            number: self.settled(parts[number]) if number in parts else created[number] for number in sorted(changed)
        }

    def losses(self) -> Iterator[Loss]:
        """Which streams have lost messages, and what they have kept."""
        for sequence, number in self._losing:
            record = self.settled(self.parts[number])
            kept = None if record.deleted else record.earliest
            yield Loss(number, split_key(record.key)[0], sequence, kept)

    def oldest_upload(self) -> int | None:
        return min(self._uploads, default=None)

    # -- looking up ------------------------------------------------------------------------------------

    def _meet(self, number: int, batch: Batch) -> StreamPart:
        """A stream that had nothing happen to it in this stretch yet."""
        if number in self.created:
            part = StreamPart(self.created[number])
        else:
            if number not in self._known:
                self._fetch(batch)
            part = self._known[number]
            if part.record.lease is not None or part.record.client_ids:
                self.changed.add(number)
        self.parts[number] = part
        part.begin(self._archive.bucket(part.bucket))
        return part

    def _fetch(self, batch: Batch) -> None:
        """Look up what the batch is about, all at once."""
        wanted = {fact.stream for fact in batch.facts if isinstance(fact, facts.StreamFact)}
        wanted = {n for n in wanted if n not in self.parts and n not in self.created and n not in self._known}
        for record in self._catalog.streams_numbered(sorted(wanted)):
            self._known[record.number] = StreamPart(record)

    def _bucket(self, name: str, at_ms: int) -> BucketRecord:
        bucket = self.buckets.get(name)
        if bucket is None:
            bucket = self._catalog.bucket(name) or BucketRecord(name, at_ms, deleted=True)
            self.buckets[name] = bucket
        return bucket

    # -- everything but plain appends ------------------------------------------------------------------

    def _new_facts(self, batch: Batch) -> list[Fact]:
        """The facts that the catalog does not have. Of those that it has, the parts of open uploads matter."""
        known = max(self._applied + 1 - batch.first_sequence, 0)
        if not known:
            return batch.facts
        for sequence, fact in enumerate(batch.facts[:known], batch.first_sequence):
            self._take_upload(fact, sequence)
        return batch.facts[known:]

    def _take_append(self, part: StreamPart, fact: facts.Appended, sequence: int, at_ms: int) -> None:
        if fact.upload is not None:
            fact = replace(fact, payload=b"".join(self._uploads.pop(fact.upload)), upload=None)
        apply_appended(self.settled(part), fact, at_ms, self.timeline.shift_ms)
        part.tail = part.record.tail
        self.payload_bytes += len(fact.payload)
        if fact.stored is not None:
            part.messages.append(StoredAppend(fact, at_ms, sequence))
            part.is_stored = True
        elif fact.payload:
            part.messages += messages_of(fact, at_ms, sequence)
        self._note_producer(fact.stream, fact.producer)
        if fact.closes or fact.stream_seq is not None or not fact.payload:
            self.changed.add(fact.stream)
        behind = fact.offset + facts.size_of(fact)
        part.archive.add(part.name, (sequence, at_ms, behind, whole_fact(self._store, fact)))

    def _take_other(self, fact: Fact, sequence: int, batch: Batch) -> None:
        at_ms = batch.at_ms
        if isinstance(fact, facts.UploadFact):
            self._take_upload(fact, sequence)
        elif isinstance(fact, facts.StreamCreated):
            self._take_created(fact, sequence, at_ms)
        elif isinstance(fact, facts.ClockRead):
            self.timeline.take(fact, at_ms)
            self._shifts.append((at_ms, self.timeline.shift_ms))
        elif isinstance(fact, facts.BucketFact):
            apply_to_bucket(self._bucket(fact.bucket, at_ms), fact, sequence, at_ms)
            self._archive.bucket(fact.bucket).add(None, (sequence, at_ms, 0, fact))
        else:
            self._take_about_stream(fact, sequence, batch)

    def _take_created(self, fact: facts.StreamCreated, sequence: int, at_ms: int) -> None:
        bucket, name = split_key(fact.key)
        self.created[sequence] = born(fact, sequence, at_ms, self.timeline.shift_ms)
        apply_to_bucket(self._bucket(bucket, at_ms), fact, sequence, at_ms)
        self._archive.bucket(bucket).add(ChunkStream(sequence, name, fact.content_type), (sequence, at_ms, 0, fact))

    def _take_about_stream(self, fact: facts.StreamFact, sequence: int, batch: Batch) -> None:
        number, at_ms = fact.stream, batch.at_ms
        part = self.parts.get(number) or self._meet(number, batch)
        apply_to_stream(self.settled(part), fact, at_ms, self.timeline.shift_ms)
        if isinstance(fact, facts.ContentTypeTaken):
            part.name = part.name._replace(content_type=part.record.content_type)
        part.archive.add(part.name, (sequence, at_ms, part.tail, fact))
        self.changed.add(number)
        if loses(fact):
            self._losing.append((sequence, number))
        if isinstance(fact, facts.SnapshotPublished):
            self.payload_bytes += len(fact.payload)
            self.published[number].append((fact, sequence, at_ms))
        elif isinstance(fact, facts.Trimmed):
            self.trimmed.add(number)
        elif isinstance(fact, facts.Closed) and not fact.is_repeated:
            self._note_producer(number, fact.producer)
        elif isinstance(fact, facts.StreamDeleted | facts.StreamExpired):
            apply_to_bucket(self._bucket(part.bucket, at_ms), fact, sequence, at_ms)

    def _note_producer(self, number: int, producer: Producer | None) -> None:
        if producer is not None:
            self.producers[number][producer.id] = producer
            self.changed.add(number)

    def _take_upload(self, fact: Fact, sequence: int) -> None:
        """What a fact does to the uploads that are open."""
        if isinstance(fact, facts.PartStored):
            self._uploads.setdefault(fact.upload or sequence, []).append(fact.payload)
        elif isinstance(fact, facts.PartsDropped | facts.Appended) and fact.upload is not None:
            self._uploads.pop(fact.upload, None)


def _from_ms(shift: Shift) -> int:
    return shift[0]
