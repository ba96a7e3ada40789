"""Checkpoints: turn a stretch of the journal into segments and catalog rows.

A checkpoint reads facts back from the journal files, applies them to the catalog's records with the engine's own
`apply`, writes the messages as blocks of one new segment and all facts into one new archive object, and commits
records, extents and the position in one transaction. It needs nothing from the serving process, so it runs beside it in
a process of its own, and the same code after a crash continues wherever the catalog says it stopped.

Order of safety: segment and archive object written and synced -> catalog committed -> journal files trimmed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from msgspec.structs import replace

from ..engine.applying import apply_to_bucket, apply_to_stream, born
from ..model import facts
from ..model.errors import StorageError
from ..model.facts import Fact, Producer
from ..model.names import split_key
from ..model.records import BucketRecord, StreamRecord
from ..storage.catalog import CatalogWriter
from ..storage.data_dir import DataDir
from ..storage.files import Files
from ..storage.journal.file import trim_files
from ..storage.journal.reading import JournalReader
from ..storage.objects import LocalObjects
from ..storage.segments.block import Columns
from ..storage.segments.segment import FOLDER, SegmentBuilder, segment_name, segment_number
from ..storage.transactions.objects import whole_fact
from .archiving import Archiver, Logged

_STRETCH_BYTES_MAX = 64 << 20  # of payload in memory at a time
_FETCHED_BYTES_MAX = 16 << 20  # of one stream's payload out of transactions' objects


_BUCKET_FACTS = frozenset(get_args(facts.BucketFact))

# A fact about a stream, its sequence and its time. A plain tuple: one is made for every append.
Happened = tuple[facts.StreamFact, int, int]


class Stretch:
    """A run of the journal, sorted by what its facts are about."""

    def __init__(self, after: int) -> None:
        self.last_sequence = after
        self.last_ms = 0
        self.payload_bytes = 0
        self.created: dict[int, StreamRecord] = {}
        self.happened: dict[int, list[Happened]] = {}
        self.bucket_facts: list[tuple[facts.BucketFact | facts.StreamCreated, int]] = []
        self.reshaped: list[int] = []  # streams that were trimmed or got a snapshot
        self.uploads: dict[int, list[bytes]] = {}
        self.log: list[Logged] = []  # everything but parts, in order; large bodies are whole

    def take(self, fact: Fact, sequence: int, at_ms: int, applied: int) -> None:
        """Facts up to `applied` are in the catalog; of those only the parts of open uploads matter."""
        self.last_sequence, self.last_ms = sequence, at_ms
        kind = type(fact)
        if kind is facts.PartStored:
            self.uploads.setdefault(fact.upload or sequence, []).append(fact.payload)  # type: ignore[union-attr]
        elif kind is facts.PartsDropped:
            self.uploads.pop(fact.upload, None)  # type: ignore[union-attr, arg-type]
        elif sequence <= applied:
            if isinstance(fact, facts.Appended) and fact.upload is not None:
                self.uploads.pop(fact.upload, None)
        elif isinstance(fact, facts.StreamCreated):
            self.created[sequence] = born(fact, sequence, at_ms)
            self.bucket_facts.append((fact, at_ms))
            self.log.append((fact, sequence, at_ms))
        elif kind in _BUCKET_FACTS:
            self.bucket_facts.append((fact, at_ms))  # type: ignore[arg-type]
            self.log.append((fact, sequence, at_ms))
        else:
            self._take_stream_fact(fact, sequence, at_ms)  # type: ignore[arg-type]

    def _take_stream_fact(self, fact: facts.StreamFact, sequence: int, at_ms: int) -> None:
        if type(fact) is facts.Appended:
            if fact.upload is not None:
                fact = self._whole(fact)
            self.payload_bytes += len(fact.payload)
        elif type(fact) is facts.SnapshotPublished:
            self.payload_bytes += len(fact.payload)
        if type(fact) is facts.SnapshotPublished or type(fact) is facts.Trimmed:
            self.reshaped.append(fact.stream)
        self.log.append((fact, sequence, at_ms))
        happened = self.happened.get(fact.stream)
        if happened is None:
            self.happened[fact.stream] = [(fact, sequence, at_ms)]
        else:
            happened.append((fact, sequence, at_ms))

    def _whole(self, fact: facts.Appended) -> facts.Appended:
        """An append whose payload came in parts, as if it had come in one."""
        assert fact.upload is not None
        return replace(fact, payload=b"".join(self.uploads.pop(fact.upload)), upload=None)

    def oldest_upload(self) -> int | None:
        return min(self.uploads, default=None)


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
        self._remove_orphans()

    @property
    def applied(self) -> int:
        return self.catalog.state("applied", 0)

    def advance(self, through: int) -> int:
        """Checkpoint the journal up to and including `through`; where the catalog stands then."""
        while self.applied < through:
            before = self.applied
            for stretch in self._stretches(through):
                self._commit(stretch)
                break  # what remains is read anew: the uploads it needs are found again through `replay_from`
            if self.applied == before:
                raise StorageError(f"The journal ends before sequence {through}; the catalog stands at {before}.")
        self.trim()
        return self.applied

    def trim(self) -> int:
        """Remove journal files that only hold what the catalog, the segments and the archive have."""
        return trim_files(self._data_dir.journal, self._files, self._replay_from() - 1)

    def next_segment(self) -> int:
        """A number no segment has had; the caller's transaction makes it final."""
        number = self.catalog.state("next_segment", 1)
        self.catalog.set_state("next_segment", number + 1)
        return number

    def close(self) -> None:
        self.catalog.close()
        self.objects.close()

    def _replay_from(self) -> int:
        return self.catalog.state("replay_from", self.applied + 1)

    def _stretches(self, through: int) -> Iterator[Stretch]:
        applied = self.applied
        stretch = Stretch(applied)
        for batch in self._journal.batches(self._replay_from() - 1, through):
            for index, fact in enumerate(batch.facts):
                stretch.take(fact, batch.first_sequence + index, batch.at_ms, applied)
            if stretch.payload_bytes >= _STRETCH_BYTES_MAX and stretch.last_sequence > applied:
                yield stretch
                return
        if stretch.last_sequence > applied:
            yield stretch

    def _commit(self, stretch: Stretch) -> None:
        with self.catalog.transaction():
            records = self._records(stretch)
            gone = [number for number, record in records.items() if record.deleted]
            superseded = self._reshape(stretch, records, gone)
            self._write_segment(stretch, records)
            self._archiver.archive(stretch.log, records)
            self.catalog.delete_streams([number for number in gone if number not in stretch.created])
            self.catalog.save_streams(record for record in records.values() if not record.deleted)
            self._save_producers(stretch, records)
            self.catalog.save_buckets(self._buckets(stretch, records))
            self.catalog.set_state("applied", stretch.last_sequence)
            self.catalog.set_state("at_ms", stretch.last_ms)
            self.catalog.set_state("replay_from", stretch.oldest_upload() or stretch.last_sequence + 1)
        for name in superseded:
            self.objects.delete(name)
        self.catalog.give_back_space()

    def _reshape(self, stretch: Stretch, records: dict[int, StreamRecord], gone: list[int]) -> set[str]:
        """Let go of blocks before what is kept, and of old snapshots; the objects that nothing will name any more."""
        reshaped = set(stretch.reshaped)
        kept = [records[number] for number in reshaped if not records[number].deleted]
        self.catalog.trim_extents((record.number, record.earliest) for record in kept)
        republished = {number for number in reshaped if _published_in(stretch.happened[number])}
        self.catalog.forget_extents(-r.number for r in kept if r.snapshot is None or r.number in republished)
        objects = {record.number: record.snapshot.object if record.snapshot else None for record in kept}
        before = self.catalog.snapshot_objects([*objects, *gone])
        self.catalog.save_snapshot_objects(objects | dict.fromkeys(gone))
        named = {fact.object for number in reshaped for fact, _, _ in _published_in(stretch.happened[number])}
        return {name for name in (named | set(before.values())) - set(objects.values()) if name is not None}

    def _records(self, stretch: Stretch) -> dict[int, StreamRecord]:
        """The streams of the stretch as they are after it."""
        records = dict(stretch.created)
        older = [number for number in stretch.happened if number not in records]
        for record in self.catalog.streams_numbered(older):
            records[record.number] = record
        for number, happened in stretch.happened.items():
            record = records[number]
            for fact, _, at_ms in happened:
                apply_to_stream(record, fact, at_ms)
        return records

    def _write_segment(self, stretch: Stretch, records: dict[int, StreamRecord]) -> None:
        builder: SegmentBuilder | None = None
        for number in sorted(stretch.happened):
            if records[number].deleted:
                continue
            record = records[number]
            for appends in self._in_memory(stretch.happened[number]):
                offset, columns = columns_in(appends, record.earliest)
                if columns.payloads:
                    builder = builder or SegmentBuilder(self.next_segment(), self._block_bytes)
                    builder.add(number, offset, columns)
                if builder is not None and builder.size >= _STRETCH_BYTES_MAX:
                    self._finish(builder)
                    builder = None
            snapshots = _published_in(stretch.happened[number]) if record.snapshot is not None else []
            if snapshots:
                builder = builder or SegmentBuilder(self.next_segment(), self._block_bytes)
                fact, sequence, at_ms = snapshots[-1]
                if fact.payload:  # a large one is an object already, an empty one is nothing
                    builder.add_snapshot(number, fact.offset, fact.payload, at_ms, sequence)
        if builder is not None:
            self._finish(builder)

    def _finish(self, builder: SegmentBuilder) -> None:
        size = builder.finish(self.objects)
        self.catalog.add_segment(builder.segment, size, builder.extents)

    def _in_memory(self, happened: list[Happened]) -> Iterator[list[Happened]]:
        """What happened to a stream, with the payloads that lie in transactions' objects; a few of those at a time."""
        ready: list[Happened] = []
        fetched = 0
        for fact, sequence, at_ms in happened:
            whole = whole_fact(self.objects, fact)
            if whole is not fact:
                fetched += facts.size_of(whole)  # type: ignore[arg-type]
            ready.append((whole, sequence, at_ms))  # type: ignore[arg-type]
            if fetched >= _FETCHED_BYTES_MAX:
                yield ready
                ready, fetched = [], 0
        yield ready

    def _save_producers(self, stretch: Stretch, records: dict[int, StreamRecord]) -> None:
        for number, happened in stretch.happened.items():
            if records[number].deleted:
                continue
            producers: dict[str, Producer] = {}
            for fact, _, _ in happened:
                if (type(fact) is facts.Appended or type(fact) is facts.Closed) and fact.producer is not None:
                    producers[fact.producer.id] = fact.producer
            if producers:
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
                end, _, at_ms = happened[-1]
                apply_to_bucket(bucket(split_key(records[number].key)[0], at_ms), end, at_ms)
        return list(buckets.values())

    def _remove_orphans(self) -> None:
        """A crash between writing a segment and committing it leaves an object that nothing names."""
        known = {use.segment for use in self.catalog.segments()}
        for name, _ in self.objects.list(FOLDER):
            if segment_number(name) not in known:
                self.objects.delete(segment_name(segment_number(name)))


def _published_in(happened: list[Happened]) -> list[tuple[facts.SnapshotPublished, int, int]]:
    """The snapshots a stream got in a stretch, in order."""
    return [(fact, sequence, at_ms) for fact, sequence, at_ms in happened if type(fact) is facts.SnapshotPublished]


def columns_in(happened: list[Happened], earliest: int = 0) -> tuple[int, Columns]:
    """The messages a stream got in a stretch, as far as they are kept, and the offset of the first."""
    appends = [
        (fact, sequence, at_ms)
        for fact, sequence, at_ms in happened
        if type(fact) is facts.Appended
        and (fact.payload or fact.lengths is None)
        and (not earliest or fact.offset + len(fact.payload) > earliest)
    ]
    if not appends:
        return 0, Columns([], [], [], [], [])
    columns = Columns(
        [fact.payload for fact, _, _ in appends],
        [at_ms for _, _, at_ms in appends],
        [fact.id_ms for fact, _, _ in appends],
        [fact.id_seq for fact, _, _ in appends],
        [sequence for _, sequence, _ in appends],
    )
    if any(fact.lengths is not None for fact, _, _ in appends):
        columns = _split(columns, [fact.lengths for fact, _, _ in appends])
    return appends[0][0].offset, columns


def _split(columns: Columns, lengths: list[list[int] | None]) -> Columns:
    """Appends of several messages taken apart; their ids follow each other."""
    parts = Columns([], [], [], [], [])
    for (payload, at_ms, id_ms, id_seq, sequence), sizes in zip(zip(*columns, strict=True), lengths, strict=True):
        at = 0
        for index, size in enumerate([len(payload)] if sizes is None else sizes):
            parts.payloads.append(payload[at : at + size])
            parts.times_ms.append(at_ms)
            parts.ids_ms.append(id_ms)
            parts.id_seqs.append(id_seq + index)
            parts.sequences.append(sequence)
            at += size
    return parts
