"""Where the messages of a bucket lie that were committed between two positions, and those messages.

A plan is a consistent cut: everything up to its `until`, nothing later. As far back as the archive reaches it consists
of archive chunks, before that of segment blocks, and behind both of what is in memory. It holds a lease, so that
nothing it names is deleted while somebody reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..model import facts
from ..model.errors import BadRequest, CorruptData, Unavailable
from ..model.facts import Fact
from ..model.names import split_key
from ..model.records import Extent, StreamRecord
from ..storage.archive.chunk import Chunk, ChunkStream, RowCollector, row_count
from ..storage.archive.object import archive_name
from ..storage.archive.rows import Row, Rows, Selection, rows_of_block, rows_of_chunk, rows_of_facts
from ..storage.buffers import BufferPool
from ..storage.catalog import CatalogReader
from ..storage.catalog.archives import ArchivedChunk
from ..storage.objects import LocalObjects
from ..storage.segments.block import decode_block
from ..storage.segments.segment import segment_name
from ..storage.transactions.objects import whole_fact
from .damage import DamageBook
from .feed import Feed
from .leases import Held, Lease, LeaseBook
from .recent import RecentChange, RecentFacts, losses_of

log = logging.getLogger(__name__)

_LAST = "\U0010ffff" * 2  # sorts behind every name
_HOT_SLICE = 4096  # changes made into rows at a time
_HOT_SLICE_BYTES = 1 << 20
_EVERY_CHUNK = -1
_UNBOUNDED = 1 << 62
_ATTEMPTS_MAX = 5
_records = msgspec.msgpack.Decoder(StreamRecord)


class SegmentRange(NamedTuple):
    """A block, and what of it belongs to the plan."""

    object: str
    at: int
    size: int
    stream: int
    first_offset: int
    next_offset: int
    after: int
    until: int
    messages: int
    bytes: int


class ArchiveRange(NamedTuple):
    """A chunk, and what of it belongs to the plan."""

    object: str
    at: int
    size: int
    after: int
    until: int
    messages: int
    bytes: int


class HotRange(NamedTuple):
    """Changes that are in no object yet."""

    after: int
    until: int
    messages: int
    bytes: int
    changes: Sequence[RecentChange]


Range = SegmentRange | ArchiveRange | HotRange


class Plan(NamedTuple):
    bucket: str
    prefix: str
    after: int
    until: int
    up_to_date: bool
    lease: Lease
    streams: dict[int, ChunkStream]  # of segment ranges
    gone: dict[int, int | None]  # what streams of archive and hot ranges have lost, see `Selection`
    rows: list[Row]  # gaps that no range shows
    ranges: list[Range]


class Bounds(NamedTuple):
    """How much a plan may hold; at least one change, whatever they say."""

    bytes_max: int | None = None
    messages_max: int | None = None


NO_BOUNDS = Bounds()


class _Block(NamedTuple):
    """A block, the last sequence in it, and one that no message in it comes before."""

    range: SegmentRange
    last_sequence: int
    not_before: int


class _Survey(NamedTuple):
    """What the catalog says about a range, all of one moment, and the changes that it has not yet."""

    begins: int  # the first sequence in the archive
    reaches: int  # the last one
    blocks: list[_Block]
    chunks: list[ArchiveRange]
    streams: dict[int, ChunkStream]
    trimmed: dict[int, int]  # the first offset that streams have kept whose messages no archive shows
    gone: dict[int, int | None]
    segments_below: int
    archives_below: int
    changes: Sequence[RecentChange] = ()

    def found(self) -> Held:
        """Which objects can be among what was found."""
        named = [change.fact.stored for change in self.changes if type(change.fact) is facts.Appended]
        newest = max((where.object for where in named if where is not None), default=-1)
        return Held(self.segments_below, self.archives_below, newest + 1)


class Bulk:
    def __init__(
        self,
        feed: Feed,
        recent: RecentFacts,
        catalog_path: Path,
        objects: LocalObjects,
        damage: DamageBook,
        leases: LeaseBook,
    ) -> None:
        self._feed = feed
        self._recent = recent
        self._catalog_path = catalog_path
        self._objects = objects
        self._damage = damage
        self.leases = leases

    # -- planning ----------------------------------------------------------------------------------------

    async def plan(self, bucket: str, prefix: str, after: int, until: int, bounds: Bounds = NO_BOUNDS) -> Plan:
        """The plan from `after` to `until`, or as far as the bounds allow. Its lease is the caller's to give back."""
        if after > until:
            raise BadRequest("until lies before after. Swap them, or leave until out.", code="bad_position")
        now = self._feed.now
        lease = self.leases.take(bucket)
        try:
            survey = await self._look(bucket, prefix, after, until)
            lease = self.leases.settle(lease, survey.found())
            until = await asyncio.to_thread(self._reach, survey, until, bounds)
            ranges = _ranges(survey, until)
            streams = {r.stream: survey.streams[r.stream] for r in ranges if isinstance(r, SegmentRange)}
            rows = _gaps(survey, after, until)
        except BaseException:
            self.leases.drop(lease)
            raise
        return Plan(bucket, prefix, after, until, until == now, lease, streams, survey.gone, rows, ranges)

    async def _look(self, bucket: str, prefix: str, after: int, until: int) -> _Survey:
        for _ in range(_ATTEMPTS_MAX):
            await self._recent.sort()
            lately = self._recent.tail(bucket).gone()
            survey = await asyncio.to_thread(self._survey, bucket, prefix, after, until, lately)
            if self._recent.after <= survey.reaches:
                tail = self._recent.tail(bucket)
                changes = tail.changes[tail.behind(max(after, survey.reaches)) : tail.behind(until)]
                return survey._replace(changes=changes, gone=losses_of(survey.gone, tail.gone()))
        raise Unavailable("The bucket could not be surveyed: checkpoints were faster. Try again.")

    def _survey(self, bucket: str, prefix: str, after: int, until: int, lately: dict[int, int | None]) -> _Survey:
        catalog = CatalogReader(self._catalog_path)
        try:
            with catalog.one_moment():
                shelf = catalog.archives
                begins, reaches = shelf.begins()[0], shelf.reaches()
                chunks = shelf.chunks(bucket, after, min(until, reaches), _EVERY_CHUNK)
                next_objects = catalog.state("next_segment") or 1, catalog.state("next_archive") or 1
                losses = shelf.losses(bucket, after)
                survey = _Survey(begins, reaches, [], [_archive_range(c, after, until) for c in chunks], {}, {}, losses,
                                 *next_objects)  # fmt: skip
                if after < begins - 1:
                    before_archive = min(until, begins - 1)
                    _survey_segments(catalog, survey, f"{bucket}/{prefix}", after, before_archive, lately)
                return survey
        finally:
            catalog.close()

    def _reach(self, survey: _Survey, until: int, bounds: Bounds) -> int:
        """How far the bounds allow to go."""
        if bounds == NO_BOUNDS:
            return until
        budget = _Budget(bounds)
        for block, last_sequence, _ in sorted(survey.blocks, key=attrgetter("last_sequence")):
            # What a merged block holds behind the plan's end, or in the archive as well, is not taken with it.
            if not budget.take(min(last_sequence, block.until), block.messages, block.bytes):
                return budget.reached
        for chunk in survey.chunks:
            if budget.has_room(chunk.messages, chunk.bytes):
                budget.take(chunk.until, chunk.messages, chunk.bytes)
            elif not self._take_some(chunk, budget, until):
                return max(budget.reached, survey.begins - 1)
        for change in survey.changes:
            if not budget.take(change.sequence, row_count(change.fact), _payload_size(change.fact)):
                return max(budget.reached, survey.reaches)
        return until

    def _take_some(self, place: ArchiveRange, budget: _Budget, until: int) -> bool:
        """Take the changes of a chunk one by one; False when they do not all fit."""
        chunk = Chunk(self._read(place))
        lengths, at = chunk.columns().lengths, 0
        for row in chunk.facts():
            count = row_count(row.fact)
            size = sum(lengths[at : at + count])
            at += count
            if place.after < row.sequence <= until and not budget.take(row.sequence, count, size):
                return False
        return True

    # -- reading -----------------------------------------------------------------------------------------

    def rows(self, plan: Plan, range_: Range, buffers: BufferPool | None = None) -> Iterator[tuple[Rows, Selection]]:
        """The rows of a range, and which of them are wanted. Safe in any thread. Who reads many ranges brings buffers:
        reading then takes half the time."""
        try:
            yield from self._rows(plan, range_, buffers)
        except CorruptData as error:
            if isinstance(range_, HotRange):
                raise
            where = f"{range_.object} at byte {range_.at}"
            raise self._damage.found(CorruptData(f"{where}: {error.message}", place=where)) from None

    def _rows(self, plan: Plan, range_: Range, buffers: BufferPool | None) -> Iterator[tuple[Rows, Selection]]:
        selection = Selection(range_.after, range_.until, plan.prefix, 0, plan.gone)
        if isinstance(range_, ArchiveRange):
            yield rows_of_chunk(Chunk(self._read(range_, buffers))), selection
        elif isinstance(range_, SegmentRange):
            block = decode_block(self._read(range_, buffers), range_.stream)
            rows = rows_of_block(block, plan.bucket, plan.streams[range_.stream])
            yield rows, selection._replace(first_offset=range_.first_offset, gone={})
        else:
            for changes in _slices(range_.changes):
                yield rows_of_facts(plan.bucket, _collected(self._whole(changes))), selection

    def _whole(self, changes: list[RecentChange]) -> list[RecentChange]:
        """With the payloads that lie in transactions' objects."""
        try:
            return [change._replace(fact=whole_fact(self._objects, change.fact)) for change in changes]
        except OSError as error:
            raise _unreadable("A transaction's object", error) from None

    def _read(self, place: ArchiveRange | SegmentRange, buffers: BufferPool | None = None) -> bytes | memoryview:
        try:
            if buffers is None:
                return self._objects.get_range(place.object, place.at, place.size)
            return self._objects.get_range_into(buffers, place.object, place.at, place.size)
        except OSError as error:
            raise _unreadable(place.object, error) from None


def _unreadable(name: str, error: OSError) -> Unavailable:
    log.error("%s cannot be read: %s", name, error)
    return Unavailable("The data cannot be read from disk now; the server's log has more.")


class _Budget:
    def __init__(self, bounds: Bounds) -> None:
        self._bytes = _UNBOUNDED if bounds.bytes_max is None else bounds.bytes_max
        self._messages = _UNBOUNDED if bounds.messages_max is None else bounds.messages_max
        self._is_empty = True
        self.reached = 0

    def has_room(self, messages: int, size: int) -> bool:
        return messages <= self._messages and size <= self._bytes

    def take(self, sequence: int, messages: int, size: int) -> bool:
        """Take what was committed with this sequence, if it fits or is the first that counts."""
        if not self._is_empty and not self.has_room(messages, size):
            return False
        self._messages -= messages
        self._bytes -= size
        self._is_empty = self._is_empty and messages == 0
        self.reached = max(self.reached, sequence)
        return True


def _archive_range(chunk: ArchivedChunk, after: int, until: int) -> ArchiveRange:
    place = (archive_name(chunk.archive), chunk.at, chunk.size)
    part = (max(after, chunk.first_sequence - 1), min(until, chunk.last_sequence))
    return ArchiveRange(*place, *part, chunk.rows, chunk.bytes)


def _survey_segments(
    catalog: CatalogReader, survey: _Survey, first_key: str, after: int, until: int, lately: dict[int, int | None]
) -> None:
    """Add the blocks that hold what was committed behind `after` and not behind `until`, stream by stream."""
    found = catalog.blocks_behind(first_key, first_key + _LAST, after, until)
    for encoded, of_stream in groupby(found, key=itemgetter(0)):
        record = _records.decode(encoded)
        kept = lately.get(record.number, record.earliest)
        if kept is None:
            continue  # deleted; the catalog just does not know yet
        survey.streams[record.number] = ChunkStream(record.number, split_key(record.key)[1], record.content_type)
        extents = [extent for _, extent in of_stream if extent is not None]
        # Where the first kept message came before `after`, nothing behind `after` was trimmed.
        if kept and (extents[0].first_offset <= kept if extents else after == 0):
            survey.trimmed[record.number] = kept
        previous = record.number  # the sequence of its creation
        for extent in extents:
            if previous <= until and extent.next_offset > kept:
                block = _Block(_segment_range(extent, kept, after, until), extent.last_sequence, previous)
                survey.blocks.append(block)
            previous = extent.last_sequence


def _segment_range(extent: Extent, kept: int, after: int, until: int) -> SegmentRange:
    place = (segment_name(extent.segment), extent.at, extent.size)
    first, following = max(extent.first_offset, kept), extent.next_offset
    return SegmentRange(*place, extent.stream, first, following, after, until, extent.messages, following - first)


def _ranges(survey: _Survey, until: int) -> list[Range]:
    """What of a survey lies within `until`."""
    blocks = [block.range for block in survey.blocks if block.not_before <= until]
    ranges: list[Range] = [block._replace(until=min(block.until, until)) for block in blocks]
    ranges += [chunk._replace(until=min(chunk.until, until)) for chunk in survey.chunks if chunk.after < until]
    changes = [change for change in survey.changes if change.sequence <= until]
    if changes:
        messages, size = sum(row_count(c.fact) for c in changes), sum(_payload_size(c.fact) for c in changes)
        ranges.append(HotRange(changes[0].sequence - 1, until, messages, size, changes))
    return ranges


def _gaps(survey: _Survey, after: int, until: int) -> list[Row]:
    position = min(survey.begins - 1, until)
    rows = []
    for number, kept in survey.trimmed.items():
        _, name, content_type = survey.streams[number]
        rows.append(Row(name, 0, kept, position, None, None, content_type, "gap", None))
    return rows if position > after else []


def _slices(changes: Sequence[RecentChange]) -> Iterator[list[RecentChange]]:
    """Changes in portions of bounded size."""
    portion: list[RecentChange] = []
    size = 0
    for change in changes:
        portion.append(change)
        size += _payload_size(change.fact)
        if len(portion) == _HOT_SLICE or size >= _HOT_SLICE_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _collected(changes: Sequence[RecentChange]) -> RowCollector:
    collected = RowCollector()
    names: dict[int, ChunkStream] = {}
    for sequence, at_ms, offset, stream, fact in changes:
        named = names.get(stream.number)
        if named is None:
            named = names[stream.number] = ChunkStream(stream.number, split_key(stream.key)[1], stream.content_type)
        collected.take(named, (sequence, at_ms, offset, _filled(fact)))
    return collected


def _filled(fact: Fact) -> Fact:
    """A large body that its stream has lost already is a gap, but the columns need its bytes to count."""
    if type(fact) is facts.Appended and fact.lengths and not fact.payload:
        return msgspec.structs.replace(fact, payload=bytes(sum(fact.lengths)))
    return fact


def _payload_size(fact: Fact) -> int:
    if type(fact) is facts.Appended:
        return facts.size_of(fact)
    return len(getattr(fact, "payload", b""))
