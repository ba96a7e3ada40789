"""Checkpoints: turn a stretch of the journal into segments and catalog rows.

A checkpoint reads facts back from the journal files, applies them to the catalog's records with the engine's own
`apply`, writes the messages as blocks of one new segment and all facts into one new archive object, and commits
records, extents and the position in one transaction. It needs nothing from the serving process, so it runs beside it in
a process of its own, and the same code after a crash continues wherever the catalog says it stopped.

Order of safety: segment and archive object written and synced -> catalog committed -> journal files trimmed.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from ..engine.applying import apply_appended, apply_to_bucket, apply_to_stream, born
from ..model import facts
from ..model.errors import StorageError
from ..model.facts import Fact, Producer
from ..model.names import split_key
from ..model.records import BucketRecord, StreamRecord
from ..storage.archive.chunk import Logged
from ..storage.catalog import CatalogWriter
from ..storage.data_dir import DataDir
from ..storage.files import Files
from ..storage.journal.file import trim_files
from ..storage.journal.reading import JournalReader
from ..storage.objects import LocalObjects
from ..storage.ports import Batch
from ..storage.segments.block import Message
from ..storage.segments.segment import FOLDER, SegmentBuilder, segment_name, segment_number
from ..storage.transactions.objects import whole_fact
from .archiving import Archiver

_STRETCH_BYTES_MAX = 128 << 20  # of payload in memory at a time
_SEGMENT_BYTES_MAX = 64 << 20
_STEP_BYTES = 2 << 20  # of one stream that are made into blocks before those are written
_FEW = 64  # appends that are not worth more than one step
_FETCHED_BYTES_MAX = 16 << 20  # of one stream's payload out of transactions' objects
_KNOWN_MAX = 200_000  # records kept for the next stretch, about 400 bytes each


class Stretch:
    """A run of the journal, sorted by what its facts are about.

    An append is noted as one tuple that everybody shares: there are hundreds of thousands in a stretch.
    """

    def __init__(self, after: int) -> None:
        self.last_sequence = after
        self.last_ms = 0
        self.payload_bytes = 0
        self.created: dict[int, StreamRecord] = {}
        self.happened: defaultdict[int, list[Logged]] = defaultdict(list)  # to each stream
        self.bucket_facts: list[tuple[facts.BucketFact | facts.StreamCreated, int]] = []
        self.changed: set[int] = set()  # streams that got more than plain appends
        self.stored: set[int] = set()  # streams with payloads that lie in transactions' objects
        self.trimmed: set[int] = set()
        self.published: defaultdict[int, list[tuple[facts.SnapshotPublished, int, int]]] = defaultdict(list)
        self.producers: defaultdict[int, dict[str, Producer]] = defaultdict(dict)  # of each stream, as they are last
        self.uploads: dict[int, list[bytes]] = {}
        self.log: list[Logged] = []  # everything but parts, in order; large bodies are whole

    def take(self, batch: Batch, applied: int) -> None:
        """Facts up to `applied` are in the catalog; of those only the parts of open uploads matter."""
        at_ms, log, happened = batch.at_ms, self.log, self.happened
        for sequence, fact in enumerate(batch.facts, batch.first_sequence):
            if sequence <= applied:
                self._take_upload(fact, sequence)
            elif type(fact) is not facts.Appended:
                self._take_other(fact, sequence, at_ms)
            else:
                if fact.upload is not None:
                    fact = self._whole(fact)
                size = len(fact.payload)
                self.payload_bytes += size
                logged = (sequence, at_ms, fact.offset + (size or facts.size_of(fact)), fact)
                log.append(logged)
                happened[fact.stream].append(logged)
                if fact.producer is not None:
                    self.producers[fact.stream][fact.producer.id] = fact.producer
                    self.changed.add(fact.stream)
                if fact.closes or fact.stream_seq is not None or not size:
                    self.changed.add(fact.stream)
                if fact.stored is not None:
                    self.stored.add(fact.stream)
        self.last_sequence, self.last_ms = batch.last_sequence, at_ms

    def _take_other(self, fact: Fact, sequence: int, at_ms: int) -> None:
        if isinstance(fact, facts.UploadFact):
            self._take_upload(fact, sequence)
            return
        logged = (sequence, at_ms, 0, fact)
        self.log.append(logged)
        if isinstance(fact, facts.StreamCreated):
            self.created[sequence] = born(fact, sequence, at_ms)
            self.bucket_facts.append((fact, at_ms))
        elif isinstance(fact, facts.BucketFact):
            self.bucket_facts.append((fact, at_ms))
        else:
            self.happened[fact.stream].append(logged)
            self.changed.add(fact.stream)
        if isinstance(fact, facts.SnapshotPublished):
            self.payload_bytes += len(fact.payload)
            self.published[fact.stream].append((fact, sequence, at_ms))
        elif isinstance(fact, facts.Trimmed):
            self.trimmed.add(fact.stream)
        elif isinstance(fact, facts.Closed) and fact.producer is not None:
            self.producers[fact.stream][fact.producer.id] = fact.producer

    def _take_upload(self, fact: Fact, sequence: int) -> None:
        """What a fact does to the uploads that are open."""
        if isinstance(fact, facts.PartStored):
            self.uploads.setdefault(fact.upload or sequence, []).append(fact.payload)
        elif isinstance(fact, facts.PartsDropped | facts.Appended) and fact.upload is not None:
            self.uploads.pop(fact.upload, None)

    def _whole(self, fact: facts.Appended) -> facts.Appended:
        """An append whose payload came in parts, as if it had come in one."""
        assert fact.upload is not None
        return replace(fact, payload=b"".join(self.uploads.pop(fact.upload)), upload=None)

    def oldest_upload(self) -> int | None:
        return min(self.uploads, default=None)


# A stream, what happened to it, and the snapshot that was published last.
_Part = tuple[StreamRecord, list[Logged], tuple[facts.SnapshotPublished, int, int] | None]


class Checkpointer:
    """Moves the catalog forward along the journal."""

    def __init__(self, data_dir: DataDir, files: Files, *, block_bytes: int) -> None:
        self._data_dir = data_dir
        self._files = files
        self._block_bytes = block_bytes
        self.objects = LocalObjects(data_dir.objects, files)
        self.objects.prepare(FOLDER)
        self.catalog = CatalogWriter(data_dir.catalog)
        self._archiver = Archiver(self.catalog, self.objects)
        self._journal = JournalReader(data_dir.journal, files)
        self._known: dict[int, StreamRecord] = {}  # written to in the last stretch: most are in the next one too
        self._remove_orphans()

    @property
    def applied(self) -> int:
        return self.catalog.state("applied", 0)

    def advance(self, through: int) -> int:
        """Checkpoint the journal up to and including `through`; where the catalog stands then."""
        while self.applied < through:
            with _without_collector():
                self._advance_once(through)
        self.trim()
        return self.applied

    def _advance_once(self, through: int) -> None:
        before = self.applied
        for stretch in self._stretches(through):
            self._commit(stretch)
            break  # what remains is read anew: the uploads it needs are found again through `replay_from`
        if self.applied == before:
            raise StorageError(f"The journal ends before sequence {through}; the catalog stands at {before}.")

    def trim(self) -> int:
        """Remove journal files that only hold what the catalog, the segments and the archive have."""
        return trim_files(self._data_dir.journal, self._files, self._replay_from() - 1)

    def next_segment(self) -> int:
        """A number no segment has had; the caller's transaction makes it final."""
        number = self.catalog.state("next_segment", 1)
        self.catalog.set_state("next_segment", number + 1)
        return number

    def rest(self) -> None:
        """Let go of what only speeds up the next checkpoint."""
        self._known = {}

    def close(self) -> None:
        self.catalog.close()
        self.objects.close()

    def _replay_from(self) -> int:
        return self.catalog.state("replay_from", self.applied + 1)

    def _stretches(self, through: int) -> Iterator[Stretch]:
        applied = self.applied
        stretch = Stretch(applied)
        for batch in self._journal.batches(self._replay_from() - 1, through):
            stretch.take(batch, applied)
            if stretch.payload_bytes >= _STRETCH_BYTES_MAX and stretch.last_sequence > applied:
                yield stretch
                return
        if stretch.last_sequence > applied:
            yield stretch

    def _commit(self, stretch: Stretch) -> None:
        with self.catalog.transaction():
            records = self._records(stretch)
            gone = {number for number, record in records.items() if record.deleted}
            superseded = self._reshape(stretch, records, gone)
            self._write_segments(stretch, records)
            self._archiver.archive(stretch.log, records, stretch.stored)
            self.catalog.delete_streams(sorted(gone - stretch.created.keys()))
            self.catalog.save_streams(records[number] for number in sorted(_to_save(stretch, records) - gone))
            self._save_producers(stretch, records)
            self.catalog.save_buckets(self._buckets(stretch, records))
            self.catalog.set_state("applied", stretch.last_sequence)
            self.catalog.set_state("at_ms", stretch.last_ms)
            self.catalog.set_state("replay_from", stretch.oldest_upload() or stretch.last_sequence + 1)
        self._know(stretch, records)
        for name in superseded:
            self.objects.delete(name)
        self.catalog.give_back_space()

    def _reshape(self, stretch: Stretch, records: dict[int, StreamRecord], gone: set[int]) -> set[str]:
        """Let go of blocks before what is kept, and of old snapshots; the objects that nothing will name any more."""
        reshaped = stretch.trimmed | stretch.published.keys()
        kept = [records[number] for number in reshaped if not records[number].deleted]
        self.catalog.trim_extents((record.number, record.earliest) for record in kept)
        self.catalog.forget_extents(-r.number for r in kept if r.snapshot is None or r.number in stretch.published)
        objects = {record.number: record.snapshot.object if record.snapshot else None for record in kept}
        before = self.catalog.snapshot_objects([*objects, *gone])
        self.catalog.save_snapshot_objects(objects | dict.fromkeys(gone))
        named = {fact.object for published in stretch.published.values() for fact, _, _ in published}
        return {name for name in (named | set(before.values())) - set(objects.values()) if name is not None}

    def _records(self, stretch: Stretch) -> dict[int, StreamRecord]:
        """The streams of the stretch as they are after it."""
        known, self._known = self._known, {}  # what is changed and then not committed is not known any more
        records = dict(stretch.created)
        unknown: list[int] = []
        for number in stretch.happened.keys() - records.keys():
            record = known.get(number)
            if record is None:
                unknown.append(number)
            else:
                records[number] = record
        for record in self.catalog.streams_numbered(sorted(unknown)):
            records[record.number] = record
        # In the order of the journal, not stream by stream: facts lie in memory like that, and most of the time goes
        # into waiting for it.
        for _, at_ms, _, fact in stretch.log:
            if type(fact) is facts.Appended:
                apply_appended(records[fact.stream], fact, at_ms)
            elif isinstance(fact, facts.StreamFact):
                apply_to_stream(records[fact.stream], fact, at_ms)
        return records

    def _know(self, stretch: Stretch, records: dict[int, StreamRecord]) -> None:
        """Keep the records of streams that were written to. Of those that were only created many may stay quiet."""
        if len(stretch.happened) <= _KNOWN_MAX:
            written = (records[number] for number in stretch.happened)
            self._known = {record.number: record for record in written if not record.deleted}

    def _write_segments(self, stretch: Stretch, records: dict[int, StreamRecord]) -> None:
        parts = self._parts(stretch, records)
        while True:
            number = self.catalog.state("next_segment", 1)
            builder = SegmentBuilder(number, self._block_bytes)
            size = builder.write(self.objects, _filling(builder, parts))
            if not size:
                return
            self.catalog.set_state("next_segment", number + 1)
            self.catalog.add_segment(number, size, builder.extents)

    def _parts(self, stretch: Stretch, records: dict[int, StreamRecord]) -> Iterator[_Part]:
        """What segments need of a stretch, stream by stream and in steps."""
        for number in sorted(stretch.happened):
            record, happened = records[number], stretch.happened[number]
            if record.deleted:
                continue
            for appends in self._in_memory(happened) if number in stretch.stored else _steps(happened):
                yield record, appends, None
            if record.snapshot is not None and number in stretch.published:
                yield record, [], stretch.published[number][-1]

    def _in_memory(self, happened: list[Logged]) -> Iterator[list[Logged]]:
        """What happened to a stream, with the payloads that lie in transactions' objects; a few of those at a time."""
        ready: list[Logged] = []
        fetched = 0
        for sequence, at_ms, behind, fact in happened:
            whole = whole_fact(self.objects, fact)
            if whole is not fact:
                fetched += facts.size_of(whole)  # type: ignore[arg-type]
            ready.append((sequence, at_ms, behind, whole))
            if fetched >= _FETCHED_BYTES_MAX:
                yield ready
                ready, fetched = [], 0
        yield ready

    def _save_producers(self, stretch: Stretch, records: dict[int, StreamRecord]) -> None:
        for number, producers in stretch.producers.items():
            if not records[number].deleted:
                self.catalog.save_producers(number, producers)

    def _buckets(self, stretch: Stretch, records: dict[int, StreamRecord]) -> list[BucketRecord]:
        buckets: dict[str, BucketRecord] = {}

        def bucket(name: str, at_ms: int) -> BucketRecord:
            if name not in buckets:
                buckets[name] = self.catalog.bucket(name) or BucketRecord(name, at_ms, deleted=True)
            return buckets[name]

        for fact, at_ms in stretch.bucket_facts:
            name = split_key(fact.key)[0] if isinstance(fact, facts.StreamCreated) else fact.bucket
            apply_to_bucket(bucket(name, at_ms), fact, at_ms)
        for number, happened in stretch.happened.items():
            if records[number].deleted:
                _, at_ms, _, end = happened[-1]
                apply_to_bucket(bucket(split_key(records[number].key)[0], at_ms), end, at_ms)
        return list(buckets.values())

    def _remove_orphans(self) -> None:
        """A crash between writing a segment and committing it leaves an object that nothing names."""
        known = {use.segment for use in self.catalog.segments()}
        for name, _ in self.objects.list(FOLDER):
            if segment_number(name) not in known:
                self.objects.delete(segment_name(segment_number(name)))


def _to_save(stretch: Stretch, records: dict[int, StreamRecord]) -> set[int]:
    """The streams whose records cannot be told from the rows that there are and the last extents."""
    more = (number for number, record in records.items() if record.lease is not None or record.client_ids)
    return stretch.changed.union(stretch.created, more)


@contextmanager
def _without_collector() -> Iterator[None]:
    """A stretch is a million values without a cycle among them: the collector would walk through them in vain."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _steps(happened: list[Logged]) -> Iterator[list[Logged]]:
    """What happened to a stream, about so much at a time that blocks come out full."""
    if len(happened) <= _FEW:
        yield happened
        return
    start, begins = 0, None
    for index, (_, _, behind, fact) in enumerate(happened):
        if type(fact) is facts.Appended:
            if begins is None:
                begins = fact.offset
            if behind - begins >= _STEP_BYTES:
                yield happened[start : index + 1]
                start, begins = index + 1, behind
    if start < len(happened):
        yield happened[start:]


def _filling(builder: SegmentBuilder, parts: Iterator[_Part]) -> Iterator[None]:
    """Add parts until the segment is large enough."""
    for record, happened, published in parts:
        if published is None:
            add_appends(builder, record.number, happened, record.earliest)
        else:
            fact, sequence, at_ms = published
            if fact.payload:  # a large one is an object already, an empty one is nothing
                builder.add_snapshot(record.number, fact.offset, fact.payload, at_ms, sequence)
        yield
        if builder.size >= _SEGMENT_BYTES_MAX:
            return


def add_appends(builder: SegmentBuilder, stream: int, happened: list[Logged], earliest: int) -> None:
    """Add the messages a stream got in a stretch, as far as they are kept."""
    messages: list[Message] = []
    first_offset = None
    for sequence, at_ms, behind, fact in happened:
        if type(fact) is not facts.Appended or (earliest and behind <= earliest):
            continue
        if fact.lengths is None:
            messages.append((fact.payload, at_ms, fact.id_ms, fact.id_seq, sequence))
        elif fact.payload:
            messages += _split(fact, at_ms, sequence)
        else:
            continue
        if first_offset is None:
            first_offset = fact.offset
    if first_offset is not None:
        builder.add(stream, first_offset, messages)


def _split(fact: facts.Appended, at_ms: int, sequence: int) -> Iterator[Message]:
    """The messages of an append that has several; their ids follow each other."""
    at = 0
    for index, size in enumerate(fact.lengths or ()):
        yield fact.payload[at : at + size], at_ms, fact.id_ms, fact.id_seq + index, sequence
        at += size
