"""Reading by message rather than by byte: whole messages with their ids, and the place behind an id.

What S3P is served from. As for every read, what lies in memory or in the page cache is answered at once; only where the
disk must be waited for does it go to a thread. Hot code: measured by `bench/s3p.py`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate

from ..engine.reading import Records, hot_offset_after, records_hot
from ..engine.state import Stream
from ..model.errors import CorruptData, Unavailable
from ..model.ids import MessageId
from ..model.records import Extent
from ..storage.catalog import CatalogReader
from ..storage.objects import LocalObjects
from ..storage.segments.block import Block, decode_block
from ..storage.segments.segment import damaged, segment_name
from .damage import DamageBook

_REPLANS_MAX = 5
_BLOCKS_MAX = 16  # decoded and kept: who reads in small steps asks for the same block again
_BLOCK_KEPT_BYTES_MAX = 1 << 20
_PLACES_MAX = 8192


class OpenBlock:
    """A decoded block and where each of its messages ends."""

    __slots__ = ("block", "ends")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.ends = list(accumulate(block.lengths, initial=block.first_offset))[1:]

    def count_up_to(self, last: MessageId) -> int:
        """How many messages have an id up to this one."""
        block = self.block
        return bisect_right(range(len(self.ends)), tuple(last), key=lambda at: (block.ids_ms[at], block.id_seqs[at]))

    def first_id(self) -> tuple[int, int]:
        return self.block.ids_ms[0], self.block.id_seqs[0]

    def last_id(self) -> tuple[int, int]:
        return self.block.ids_ms[-1], self.block.id_seqs[-1]


class RecordReader:
    def __init__(self, catalog: CatalogReader, objects: LocalObjects, damage: DamageBook) -> None:
        self._catalog = catalog
        self._objects = objects
        self._damage = damage
        # Segments never change and numbers are never used again, so neither of these is ever wrong.
        self._blocks: OrderedDict[tuple[int, int, int], OpenBlock] = OrderedDict()  # (stream, segment, place)
        self._places: OrderedDict[tuple[int, int, int], int] = OrderedDict()  # (stream, id) -> the place behind it

    # -- finding a place -----------------------------------------------------------------------------------

    def place_after_now(self, stream: Stream, last: MessageId) -> int | None:
        """Where the first message with a later id lies, or will lie; None if segments must be searched."""
        if last >= (stream.id_ms, stream.id_seq):
            return stream.tail
        if stream.hot:
            place = hot_offset_after(stream.hot, last)
            if place is not None:
                return max(place, stream.earliest)
        if stream.hot_from <= stream.earliest or last == (0, 0):
            return stream.earliest
        known = self._places.get((stream.number, last.ms, last.seq))
        return None if known is None else max(known, stream.earliest)

    async def place_after(self, stream: Stream, last: MessageId) -> int:
        for _ in range(_REPLANS_MAX):
            place = self.place_after_now(stream, last)
            if place is not None:
                return place
            try:
                return max(await self._search(stream, last), stream.earliest)
            except FileNotFoundError:
                continue  # merged away since the catalog was asked
        raise _moving()

    async def _search(self, stream: Stream, last: MessageId) -> int:
        """Halve the range of offsets: ids grow with them, and every look at a block rules out one half."""
        low, high = stream.earliest, stream.hot_from
        while low < high:
            extent = self._extent(stream, (low + high) // 2)
            block = await self._open(stream, extent)
            if last >= block.last_id():
                low = extent.next_offset
            elif last < block.first_id():
                high = extent.first_offset
            else:
                return block.ends[block.count_up_to(last) - 1]
        return low

    # -- reading -------------------------------------------------------------------------------------------

    def read_now(self, stream: Stream, start: int, count_max: int, bytes_max: int) -> Records | None:
        """Messages from a message's place on, if no disk has to be waited for."""
        if start >= stream.hot_from:
            return records_hot(stream, start, count_max, bytes_max)
        records = Records(start, [], [], [])
        while _has_room(records, start, count_max, bytes_max) and records.end < stream.hot_from:
            extent = self._extent(stream, records.end)
            block = self._open_cached(stream, extent)
            if block is None:
                return None
            more = _take(block, records, start, count_max, bytes_max)
            if more is records:
                break
            records = more
        return self._with_hot(stream, records, start, count_max, bytes_max)

    async def read(self, stream: Stream, start: int, count_max: int, bytes_max: int) -> Records:
        """The same, whatever it takes."""
        records = Records(start, [], [], [])
        replans = 0
        while _has_room(records, start, count_max, bytes_max) and records.end < stream.hot_from:
            try:
                block = await self._open(stream, self._extent(stream, records.end))
            except FileNotFoundError:
                replans += 1
                if replans == _REPLANS_MAX:
                    raise _moving() from None
                continue  # merged away since the catalog was asked
            more = _take(block, records, start, count_max, bytes_max)
            if more is records:
                break
            records = more
        return self._with_hot(stream, records, start, count_max, bytes_max)

    def _with_hot(self, stream: Stream, cold: Records, start: int, count_max: int, bytes_max: int) -> Records:
        if cold.payloads:
            self._remember(stream, cold)
        room = bytes_max - (cold.end - start)
        count = count_max - len(cold.payloads)
        if cold.end < stream.hot_from or cold.end >= stream.tail or room <= 0 or count <= 0:
            return cold
        hot = records_hot(stream, cold.end, count, room)
        if cold.payloads and hot.end - start > bytes_max:
            return cold  # a single message larger than the room: it starts the next read
        return _joined(cold, hot)

    def _remember(self, stream: Stream, records: Records) -> None:
        """Who reads on asks for what follows the last id it got: it need not be searched."""
        places = self._places
        places[stream.number, records.ids_ms[-1], records.id_seqs[-1]] = records.end
        if len(places) > _PLACES_MAX:
            places.popitem(last=False)

    # -- blocks --------------------------------------------------------------------------------------------

    def _extent(self, stream: Stream, offset: int) -> Extent:
        found = self._catalog.extents(stream.number, offset, offset + 1, 1)
        if not found or not found[0].first_offset <= offset < found[0].next_offset:
            raise CorruptData(f"Stream {stream.key}: no segment block holds offset {offset}.")
        return found[0]

    def _open_cached(self, stream: Stream, extent: Extent) -> OpenBlock | None:
        known = self._known(extent)
        if known is not None:
            return known
        try:
            blob = self._objects.get_range_cached(segment_name(extent.segment), extent.at, extent.size)
        except OSError:  # merged away since the catalog was asked, or worse; the slow road finds out
            return None
        # Copied: the buffer is lent, and the block is kept.
        return None if blob is None else self._keep(extent, self._decoded(stream, extent, bytes(blob)))

    async def _open(self, stream: Stream, extent: Extent) -> OpenBlock:
        known = self._known(extent)
        if known is not None:
            return known
        name = segment_name(extent.segment)
        try:
            blob = await asyncio.to_thread(self._objects.get_range, name, extent.at, extent.size)
        except FileNotFoundError:
            raise
        except OSError as error:
            self._damage.note(f"{stream.key}: {error}", f"A segment of stream {stream.key} cannot be read: {error}.")
            raise Unavailable("The data cannot be read from disk now; the server's log has more.") from None
        return self._keep(extent, self._decoded(stream, extent, blob))

    def _decoded(self, stream: Stream, extent: Extent, blob: bytes) -> OpenBlock:
        try:
            block = decode_block(blob, extent.stream)
            if block.first_offset != extent.first_offset or block.next_offset != extent.next_offset:
                raise CorruptData("It holds other offsets than the catalog says.")
        except CorruptData as error:
            raise self._damage.found(damaged(extent, stream.key, error)) from None
        return OpenBlock(block)

    def _known(self, extent: Extent) -> OpenBlock | None:
        key = (extent.stream, extent.segment, extent.at)
        found = self._blocks.get(key)
        if found is not None:
            self._blocks.move_to_end(key)
        return found

    def _keep(self, extent: Extent, block: OpenBlock) -> OpenBlock:
        if extent.size <= _BLOCK_KEPT_BYTES_MAX:
            self._blocks[extent.stream, extent.segment, extent.at] = block
            if len(self._blocks) > _BLOCKS_MAX:
                self._blocks.popitem(last=False)
        return block


def _has_room(records: Records, start: int, count_max: int, bytes_max: int) -> bool:
    return len(records.payloads) < count_max and records.end - start < bytes_max


def _take(opened: OpenBlock, records: Records, start: int, count_max: int, bytes_max: int) -> Records:
    """What fits of a block, behind what there is; at least one message in all."""
    block, ends = opened.block, opened.ends
    first = bisect_right(ends, records.end)
    fitting = bisect_right(ends, start + bytes_max)
    last = min(first + count_max - len(records.payloads), fitting)
    if last <= first:
        if records.payloads:
            return records
        last = first + 1
    base, at = block.first_offset, records.end
    payload = bytes(block.payload[at - base : ends[last - 1] - base])
    pieces: list[bytes] = []
    origin = at
    for end in ends[first:last]:
        pieces.append(payload[at - origin : end - origin])
        at = end
    return _joined(records, Records(at, pieces, list(block.ids_ms[first:last]), list(block.id_seqs[first:last])))


def _joined(one: Records, other: Records) -> Records:
    if not one.payloads:
        return other
    return Records(other.end, one.payloads + other.payloads, one.ids_ms + other.ids_ms, one.id_seqs + other.id_seqs)


def _moving() -> Unavailable:
    return Unavailable("The read could not be served: its segments kept moving. Try again.")
