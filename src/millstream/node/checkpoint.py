"""Checkpoints: turn a stretch of the journal into segments and catalog rows.

A checkpoint reads facts back from the journal files and applies them to the catalog's records (`stretch`), which also
writes them into one new archive object; then it writes the messages as blocks of new segments, and commits records,
extents and the position in one transaction. It needs nothing from the serving process, so it runs beside it in a
process of its own, and the same code after a crash continues wherever the catalog says it stopped.

Order of safety: segments and archive object written and synced -> catalog committed -> journal files trimmed.
"""

from __future__ import annotations

import gc
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

from ..model import facts
from ..model.errors import StorageError
from ..model.records import StreamRecord
from ..storage.catalog import CatalogWriter
from ..storage.data_dir import DataDir
from ..storage.files import Files
from ..storage.journal.file import trim_files
from ..storage.journal.reading import JournalReader
from ..storage.objects import LocalObjects
from ..storage.segments.block import Message
from ..storage.segments.segment import FOLDER, SegmentBuilder, segment_name
from .archiving import Archiver
from .stretch import StreamPart, Stretch

_STRETCH_BYTES_MAX = 128 << 20  # of payload in memory at a time
_SEGMENT_BYTES_MAX = 64 << 20
_STEP_BYTES = 2 << 20  # of one stream that are made into blocks before those are written
_FEW = 64  # messages that are not worth more than one step
_KNOWN_MAX = 200_000  # streams kept for the next stretch, about 700 bytes each

_Published = tuple[facts.SnapshotPublished, int, int]  # with its sequence and time


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
        self._known: dict[int, StreamPart] = {}  # written to in the last stretch: most are in the next one too
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
        """One stretch. What remains is read anew: the uploads it needs are found again through `replay_from`."""
        before = self.applied
        known, self._known = self._known, {}  # what is changed and then not committed is not known any more
        with self.catalog.transaction(), self._archiver.archive() as archive:
            stretch = Stretch(self.catalog, self.objects, archive, before, known)
            self._read(stretch, through)
            if stretch.last_sequence == before:
                raise StorageError(f"The journal ends before sequence {through}; the catalog stands at {before}.")
            superseded = self._save(stretch)
        self._know(stretch)
        for name in superseded:
            self.objects.delete(name)
        self.catalog.give_back_space()

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

    def _read(self, stretch: Stretch, through: int) -> None:
        """Read the journal, as far as memory for messages allows."""
        for batch in self._journal.batches(self._replay_from() - 1, through):
            stretch.take(batch)
            if stretch.payload_bytes >= _STRETCH_BYTES_MAX:
                return

    def _save(self, stretch: Stretch) -> set[str]:
        """Segments and rows for what was read; the objects to delete once that is final."""
        records = stretch.records()
        gone = {number for number, record in records.items() if record.deleted}
        superseded = self._reshape(stretch, records, gone)
        self._write_segments(stretch)
        self.catalog.archives.add_losses(stretch.losses())
        self.catalog.delete_streams(sorted(gone - stretch.created.keys()))
        self.catalog.save_streams(record for record in records.values() if not record.deleted)
        for number in stretch.producers.keys() - gone:
            self.catalog.save_producers(number, stretch.producers[number])
        self.catalog.save_buckets(stretch.buckets.values())
        self.catalog.set_state("applied", stretch.last_sequence)
        self.catalog.save_timeline(stretch.timeline)
        self.catalog.set_state("replay_from", stretch.oldest_upload() or stretch.last_sequence + 1)
        return superseded

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

    def _know(self, stretch: Stretch) -> None:
        """Keep the records of streams that were written to. Of those that were only created many may stay quiet."""
        if len(stretch.parts) <= _KNOWN_MAX:
            self._known = {number: part for number, part in stretch.parts.items() if not part.record.deleted}
            for part in self._known.values():
                part.end()

    def _write_segments(self, stretch: Stretch) -> None:
        contents = self._contents(stretch)
        while True:
            number = self.catalog.state("next_segment", 1)
            builder = SegmentBuilder(number, self._block_bytes)
            size = builder.write(self.objects, _filling(builder, contents))
            if not size:
                return
            self.catalog.set_state("next_segment", number + 1)
            self.catalog.add_segment(number, size, builder.extents)

    def _contents(self, stretch: Stretch) -> Iterator[tuple[int, int, int, list[Message] | _Published]]:
        """What segments need of a stretch, stream by stream and in steps: messages and where they begin and end, or the
        snapshot that was published last."""
        for number in sorted(stretch.parts):
            part = stretch.parts[number]
            record = stretch.settled(part)
            if record.deleted:
                continue
            if len(part.messages) <= _FEW and not part.is_stored and record.earliest <= part.first_offset:
                # They leave memory with the block that they go into, while they are still in the processor's cache.
                few, part.messages = part.messages, []
                if few:
                    yield number, part.first_offset, part.tail, few  # type: ignore[misc]
            else:
                for first_offset, messages in part.runs(self.objects):
                    for start, end, step in _steps(first_offset, messages, record.earliest):
                        yield number, start, end, step
            if record.snapshot is not None and number in stretch.published:
                at = record.snapshot.offset
                yield number, at, at, stretch.published[number][-1]

    def _remove_orphans(self) -> None:
        """A crash between writing a segment and committing it leaves an object that nothing names."""
        known = {use.segment for use in self.catalog.segments()}
        for number in self.objects.numbers(FOLDER, segment_name):
            if number not in known:
                self.objects.delete(segment_name(number))


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


def _steps(first_offset: int, messages: list[Message], earliest: int) -> Iterator[tuple[int, int, list[Message]]]:
    """What is kept of messages, about so much at a time that blocks come out full."""
    ends = list(accumulate([len(message[0]) for message in messages], initial=first_offset))
    start = max(bisect_right(ends, earliest) - 1, 0)
    while start < len(messages):
        end = min(bisect_left(ends, ends[start] + _STEP_BYTES, start + 1), len(messages))
        yield ends[start], ends[end], messages[start:end]
        start = end


def _filling(
    builder: SegmentBuilder, contents: Iterator[tuple[int, int, int, list[Message] | _Published]]
) -> Iterator[None]:
    """Add to a segment until it is large enough."""
    for number, offset, end, content in contents:
        if isinstance(content, list):
            builder.add(number, offset, content, end - offset)
        else:
            fact, sequence, at_ms = content
            if fact.payload:  # a large one is an object already, an empty one is nothing
                builder.add_snapshot(number, offset, fact.payload, at_ms, sequence)
        yield
        if builder.size >= _SEGMENT_BYTES_MAX:
            return
