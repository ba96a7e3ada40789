"""Keeping the archive: each checkpoint adds an object, small neighbours are merged, old ones are dropped.

All of it happens in the upkeep process. An object is written and synced before the catalog names it, and deleted after
the catalog has forgotten it; what the catalog does not name is garbage unless a read lease holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import groupby
from typing import TypeVar

from ..model import facts
from ..model.errors import CorruptData
from ..model.facts import Fact
from ..storage.archive.chunk import ArchivedFact, Chunk, ChunkStream, subject_of
from ..storage.archive.object import (
    CHUNK_BYTES,
    CHUNK_FACTS,
    FOLDER,
    ArchiveWriter,
    ChunkRow,
    StoredChunk,
    archive_name,
    read_chunk,
)
from ..storage.catalog import CatalogWriter
from ..storage.catalog.archives import ArchivedChunk, ArchiveUse
from ..storage.objects import LocalObjects

_MERGED_BYTES_MAX = 64 << 20
_MERGE_BELOW = 16 << 20  # objects that have grown this large stay as they are
_TIER_FACTOR = 4
_TIER_BYTES = 64 << 10
_T = TypeVar("_T")


class Archiver:
    """Stores what checkpoints read. The caller's transaction makes it final."""

    def __init__(self, catalog: CatalogWriter, objects: LocalObjects) -> None:
        self._catalog = catalog
        self._objects = objects
        objects.prepare(FOLDER)
        self._remove_orphans()
        if catalog.state("archive_from", 0) == 0:
            # A directory from before there was an archive has one from here on.
            with catalog.transaction():
                catalog.set_state("archive_from", catalog.state("applied", 0) + 1)
                catalog.set_state("archive_from_ms", catalog.state("at_ms", -1))

    @contextmanager
    def archive(self) -> Iterator[ArchiveWriter]:
        """A new object, to be written while the journal is read. It is stored at the end, if anything is in it."""
        with ArchiveWriter(self._objects, self._catalog.state("next_archive", 1)) as archive:
            yield archive
            size = archive.finish()
            if size:
                next_archive(self._catalog)
                add_to_catalog(self._catalog, archive, size)

    def _remove_orphans(self) -> None:
        """A crash before the commit leaves an object whose number will be given again."""
        unused = self._catalog.state("next_archive", 1)
        for number in self._objects.numbers(FOLDER, archive_name):
            if number >= unused:
                self._objects.delete(archive_name(number))


def next_archive(catalog: CatalogWriter) -> int:
    """A number no archive object has had; the caller's transaction makes it final."""
    number = catalog.state("next_archive", 1)
    catalog.set_state("next_archive", number + 1)
    return number


def add_to_catalog(catalog: CatalogWriter, writer: ArchiveWriter, size: int) -> None:
    chunks = [chunk_at(writer.archive, row) for row in writer.rows]
    first, last = min(row.first_sequence for row in chunks), max(row.last_sequence for row in chunks)
    catalog.archives.add(ArchiveUse(writer.archive, size, first, last, max(row.last_ms for row in chunks)), chunks)


def chunk_at(archive: int, row: ChunkRow) -> ArchivedChunk:
    place = (archive, row.at, row.size)
    return ArchivedChunk(row.bucket, row.last_sequence, row.first_sequence, row.last_ms, *place, row.rows, row.bytes)


def loses(fact: Fact) -> bool:
    """Whether a fact takes messages away."""
    if isinstance(fact, facts.SnapshotPublished):
        return fact.trims
    return isinstance(fact, facts.StreamDeleted | facts.StreamExpired | facts.Trimmed)


class ArchiveKeeper:
    """Merges small objects and drops old ones."""

    def __init__(
        self, catalog: CatalogWriter, objects: LocalObjects, *, merge_min: int, age_s: float, bytes_max: int
    ) -> None:
        self._catalog = catalog
        self._objects = objects
        self._merge_min = merge_min
        self._age_ms = int(age_s * 1000)
        self._bytes_max = bytes_max
        self._damaged: set[int] = set()  # objects that stay as they are until they are dropped

    def merge(self) -> bool:
        """One merge, if one is due; whether there was one. Raises `CorruptData` where a chunk cannot be read: nothing
        has changed then, and the next merge leaves that object as it is."""
        chosen = choose(self._catalog.archives.all(), self._merge_min, self._damaged)
        if not chosen:
            return False
        chunks = self._catalog.archives.chunks_of(chosen)
        with self._catalog.transaction(), ArchiveWriter(self._objects, next_archive(self._catalog)) as writer:
            self._rewrite(chunks, writer)
            size = writer.finish()
            self._catalog.archives.remove(chosen)
            add_to_catalog(self._catalog, writer, size)
        return True

    def drop(self, lease_ms: int) -> bool:
        """Let the oldest go where they are too old, or too much in all; whether any went."""
        archives = self._catalog.archives.all()
        total = sum(use.bytes for use in archives)
        dropped: list[ArchiveUse] = []
        oldest_ms = self._catalog.timeline().older_than(self._age_ms, lease_ms)
        for use in archives:
            if use.last_ms >= oldest_ms and total <= self._bytes_max:
                break
            dropped.append(use)
            total -= use.bytes
        if not dropped:
            return False
        begins = dropped[-1].last_sequence + 1
        with self._catalog.transaction():
            self._catalog.archives.remove([use.archive for use in dropped])
            self._catalog.archives.forget_losses(begins)
            self._catalog.set_state("archive_from", begins)
            self._catalog.set_state("archive_from_ms", dropped[-1].last_ms)
        return True

    def collect(self, held: Callable[[], int] = lambda: 0) -> int:
        """Delete what the catalog does not name, but for objects that leases hold; how many that were."""
        known = {use.archive for use in self._catalog.archives.all()}
        garbage = self._objects.numbers(FOLDER, archive_name) - known
        if garbage:
            held_below = held()  # asked for after the garbage is known, see `leases`
            garbage = {number for number in garbage if number >= held_below}
        for number in sorted(garbage):
            self._objects.delete(archive_name(number))
        return len(garbage)

    def _rewrite(self, chunks: list[ArchivedChunk], writer: ArchiveWriter) -> None:
        """Small chunks are taken apart and put together anew; large ones stay as they are."""
        for place in chunks:
            if _is_large(place):
                writer.add_stored(self._read(self._stored, place))
            else:
                bucket = writer.bucket(place.bucket)
                for name, fact in self._read(self._facts, place):
                    bucket.add(name, fact)

    def _read(self, reading: Callable[[ArchivedChunk], _T], place: ArchivedChunk) -> _T:
        try:
            return reading(place)
        except (CorruptData, OSError) as error:
            self._damaged.add(place.archive)
            where = f"{archive_name(place.archive)} at byte {place.at}"
            why = str(error).rstrip(".")
            raise CorruptData(f"The chunk in {where} cannot be read: {why}.", place=where) from None

    def _facts(self, place: ArchivedChunk) -> list[tuple[ChunkStream | None, ArchivedFact]]:
        chunk = read_chunk(self._objects, place.archive, place.at, place.size)
        # A snapshot may stand under its stream's name with another type: the stream itself comes first.
        names = {stream.number: stream for stream in reversed(chunk.names()[1])}
        return [(names.get(subject_of(fact.sequence, fact.fact)), fact) for fact in chunk.whole_facts()]

    def _stored(self, place: ArchivedChunk) -> StoredChunk:
        data = self._objects.get_range(archive_name(place.archive), place.at, place.size)
        count = Chunk(data).fact_count  # checked: a damaged chunk must not be passed on as if it were good
        span = (place.first_sequence, place.last_sequence, place.last_ms)
        return StoredChunk(ChunkRow(place.bucket, 0, place.size, *span, count, place.rows, place.bytes), data)


def _is_large(chunk: ArchivedChunk) -> bool:
    """Whether a chunk is not worth putting together with its neighbours."""
    return chunk.size >= CHUNK_BYTES // 4 or chunk.rows >= CHUNK_FACTS // 2


def choose(archives: Sequence[ArchiveUse], merge_min: int, damaged: Set[int] = frozenset()) -> list[int]:
    """Which objects to merge now: neighbours of one size, of which there have come to be many."""
    for tier, alike in groupby(archives, key=lambda use: -1 if use.archive in damaged else _tier(use.bytes)):
        run: list[ArchiveUse] = []
        if tier < 0:
            continue
        for use in alike:
            if use.bytes >= _MERGE_BELOW or sum(other.bytes for other in run) + use.bytes > _MERGED_BYTES_MAX:
                break
            run.append(use)
        if len(run) >= merge_min:
            return [use.archive for use in run]
    return []


def _tier(size: int) -> int:
    tier = 0
    while size > _TIER_BYTES:
        size //= _TIER_FACTOR
        tier += 1
    return tier
