"""The road of every read: plan, fetch. Sending and waiting at the tail belong to the listener.

The hot tail is in memory, everything older in segment blocks. A read answers at once when what it needs is in memory
or in the page cache; only where the disk must be waited for does it go to a thread.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..engine.machine import Machine
from ..engine.reading import (
    Cut,
    cut_hot,
    cut_messages,
    hot_boundary,
    hot_piece_end,
    last_boundary,
    resolve_offset,
    split_messages,
    take_messages,
)
from ..engine.state import Stream
from ..model.errors import CorruptData, NotFound, Unavailable
from ..model.media import is_json
from ..model.records import Extent, Snapshot
from ..storage.catalog import CatalogReader
from ..storage.objects import LocalObjects
from ..storage.segments.block import decode_block, decode_payload
from ..storage.segments.segment import damaged, segment_name
from .damage import DamageBook

_T = TypeVar("_T")
_REPLANS_MAX = 5
_EXTENTS_MAX = 2048
_RUN_BYTES_MAX = 4 << 20
Blob = bytes | memoryview


class Reader:
    def __init__(self, machine: Machine, catalog: CatalogReader, objects: LocalObjects, damage: DamageBook) -> None:
        self._machine = machine
        self._catalog = catalog
        self._objects = objects
        self._damage = damage

    def read_now(self, stream: Stream, start: int, bytes_max: int) -> Cut | None:
        """The cut if no disk has to be waited for."""
        if start < stream.earliest:
            resolve_offset(stream, start)  # trimmed since the reader began: says so
        if start >= stream.hot_from:
            return cut_hot(stream, start, bytes_max)
        cold = self._read_blocks(stream, start, bytes_max)
        return None if cold is None else self._with_hot(stream, cold, bytes_max)

    def _read_blocks(self, stream: Stream, start: int, bytes_max: int) -> Cut | None:
        extents = self._extents(stream, start, bytes_max)
        blobs = self._cached(extents)
        return None if blobs is None else self._assemble(stream, start, bytes_max, extents, blobs)

    def _cached(self, extents: Sequence[Extent]) -> list[Blob] | None:
        """The blocks, if no disk has to be waited for."""
        blobs: list[Blob] = []
        for run in _neighbours(extents):
            first = run[0]
            size = run[-1].at + run[-1].size - first.at
            try:
                joined = self._objects.get_range_cached(segment_name(first.segment), first.at, size)
            except OSError:  # merged away since the catalog was asked, or worse; the slow road finds out
                return None
            if joined is None:
                return None
            blobs += [joined[extent.at - first.at : extent.at - first.at + extent.size] for extent in run]
        return blobs

    async def read(self, stream: Stream, start: int, bytes_max: int) -> Cut:
        """The cut, whatever it takes."""
        for _ in range(_REPLANS_MAX):
            ready = self.read_now(stream, start, bytes_max)
            if ready is not None:
                return ready
            extents = self._extents(stream, start, bytes_max)
            blobs = await self._fetch_any(stream, extents)
            if blobs is not None:
                return self._assemble(stream, start, bytes_max, extents, blobs)
        raise _moving()

    async def bytes_between(self, stream: Stream, start: int, end: int) -> bytes:
        """A few bytes, whichever tiers they lie in; `end` must not lie beyond the tail."""
        found = bytearray()
        while start + len(found) < end:
            cut = await self.read(stream, start + len(found), end - start - len(found))
            found += b"".join(cut.pieces)
        return bytes(found)

    async def messages(self, stream: Stream, start: int, bytes_max: int) -> Cut:
        """A cut of whole messages, one piece each, whatever the stream holds. `start` must be a boundary."""
        for _ in range(_REPLANS_MAX):
            if start < stream.earliest:
                resolve_offset(stream, start)
            if start >= stream.hot_from:
                return cut_messages(stream, start, bytes_max)
            extents = self._extents(stream, start, bytes_max)
            blobs = self._cached(extents) or await self._fetch_any(stream, extents)
            if blobs is not None:
                return self._assemble(stream, start, bytes_max, extents, blobs, whole_messages=True)
        raise _moving()

    async def is_boundary(self, stream: Stream, offset: int) -> bool:
        """Whether a message ends, or the first one begins, at an offset that is kept."""
        return await self.boundary(stream, offset) == offset

    async def boundary(self, stream: Stream, offset: int) -> int:
        """The last place at or before an offset that is kept where a message ends, or the first one begins."""
        if offset in (stream.earliest, stream.tail):
            return offset
        if offset >= stream.hot_from:
            return hot_boundary(stream, offset)
        return last_boundary(*await self.block_at(stream, offset), offset)

    def piece_end(self, stream: Stream, start: int, bytes_max: int, messages_max: int) -> int:
        """Where to stop for about so much: with a block or an append, as a part of one costs as much as all of it."""
        if start >= stream.hot_from:
            return hot_piece_end(stream, start, bytes_max, messages_max)
        messages, end = 0, start
        for extent in self._extents(stream, start, bytes_max):
            messages += extent.messages
            end = extent.next_offset
            if messages >= messages_max:
                break
        return end

    async def block_at(self, stream: Stream, offset: int) -> tuple[int, Sequence[int]]:
        """The first offset and the lengths of the messages in the block that holds an offset."""
        for _ in range(_REPLANS_MAX):
            extents = self._catalog.extents(stream.number, offset, offset + 1, 1)
            check_contiguous(stream, offset, offset + 1, extents)
            blobs = await self._fetch_any(stream, extents)
            if blobs is not None:
                return self._decoded(decode_payload, stream, extents[0], blobs[0])[:2]
        raise _moving()

    async def small_snapshot(self, stream: Stream, snapshot: Snapshot) -> bytes:
        """The bytes of a snapshot that is not an object of its own, as long as it is the latest."""
        assert snapshot.object is None
        for _ in range(_REPLANS_MAX):
            if snapshot.size == 0:
                return b""
            if stream.snapshot_hot is not None and stream.snapshot is snapshot:
                return stream.snapshot_hot[1]
            extents = self._catalog.extents(-stream.number, snapshot.offset, snapshot.offset + 1, 1)
            if stream.snapshot is not snapshot:
                raise NotFound("A newer snapshot has just replaced this one.", code="no_such_snapshot")
            blobs = await self._fetch_any(stream, extents)
            if not blobs:
                continue
            payload = self._decoded(decode_payload, stream, extents[0], blobs[0])[2]
            if extents[0].first_offset != snapshot.offset or len(payload) != snapshot.size:
                raise CorruptData(f"Stream {stream.key}: the catalog names a block that is not its snapshot.")
            return bytes(payload)
        if stream.deleted:
            raise NotFound("The stream was deleted.")
        raise CorruptData(f"Stream {stream.key}: no segment block holds its snapshot.")

    async def _fetch_any(self, stream: Stream, extents: Sequence[Extent]) -> list[Blob] | None:
        """The blocks; None where they were merged away since the catalog was asked."""
        try:
            return await asyncio.to_thread(self._fetch, extents)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._damage.note(f"{stream.key}: {error}", f"A segment of stream {stream.key} cannot be read: {error}.")
            raise Unavailable("The data cannot be read from disk now; the server's log has more.") from None

    async def offset_since(self, stream: Stream, since_ms: int) -> int:
        """Where the first message lies that was committed at or after a time; the tail if there is none."""
        for _ in range(_REPLANS_MAX):
            extent = self._catalog.extent_since(stream.number, since_ms)
            if extent is None or extent.first_offset >= stream.hot_from:
                break
            blobs = await self._fetch_any(stream, [extent])
            if blobs is None:
                continue  # merged away since the catalog was asked
            block = self._decoded(decode_block, stream, extent, blobs[0])
            index = bisect_left(block.times_ms, since_ms)
            return max(block.first_offset + sum(block.lengths[:index]), stream.earliest)
        else:
            raise _moving()
        for record in stream.hot or ():
            if record.at_ms >= since_ms:
                return record.offset
        return stream.tail

    def _extents(self, stream: Stream, start: int, bytes_max: int) -> list[Extent]:
        end = min(start + bytes_max, stream.hot_from)
        extents = self._catalog.extents(stream.number, start, max(end, start + 1), _EXTENTS_MAX)
        if len(extents) == _EXTENTS_MAX:
            end = min(end, extents[-1].next_offset)  # very many small blocks: a shorter answer
        check_contiguous(stream, start, end, extents)
        return extents

    def _fetch(self, extents: Sequence[Extent]) -> list[Blob]:
        return [self._objects.get_range(segment_name(e.segment), e.at, e.size) for e in extents]

    def _assemble(
        self,
        stream: Stream,
        start: int,
        bytes_max: int,
        extents: Sequence[Extent],
        blobs: Sequence[Blob],
        *,
        whole_messages: bool = False,
    ) -> Cut:
        try:
            return assemble(stream, start, bytes_max, extents, blobs, whole_messages or is_json(stream.content_type))
        except CorruptData as error:
            raise self._damage.found(error) from None

    def _decoded(self, decode: Callable[[Blob, int], _T], stream: Stream, extent: Extent, blob: Blob) -> _T:
        try:
            return decode(blob, extent.stream)
        except CorruptData as error:
            raise self._damage.found(damaged(extent, stream.key, error)) from None

    def _with_hot(self, stream: Stream, cold: Cut, bytes_max: int) -> Cut:
        room = bytes_max - (cold.end - cold.start)
        # Behind `hot_from` if a merge has put what memory still holds into one block with what it does not.
        if cold.end < stream.hot_from or cold.end >= stream.tail or room <= 0:
            return cold
        hot = cut_hot(stream, cold.end, room)
        if hot.end - cold.start > bytes_max:
            return cold  # a single message larger than the room: it starts the next read
        return Cut(cold.start, hot.end, cold.pieces + hot.pieces)


def _neighbours(extents: Sequence[Extent]) -> list[list[Extent]]:
    """Blocks that lie behind each other in one segment, together: each run is one read."""
    runs: list[list[Extent]] = []
    segment, end, size = -1, -1, 0
    for extent in extents:
        if extent.segment == segment and extent.at == end and size + extent.size <= _RUN_BYTES_MAX:
            runs[-1].append(extent)
            size += extent.size
        else:
            runs.append([extent])
            segment, size = extent.segment, extent.size
        end = extent.at + extent.size
    return runs


def check_contiguous(stream: Stream, start: int, end: int, extents: Sequence[Extent]) -> None:
    """What is not in memory must be in blocks, without a gap; otherwise no data is better than wrong data."""
    covered = start
    for index, extent in enumerate(extents):
        if extent.first_offset > covered or (index and extent.first_offset != covered):
            break
        covered = extent.next_offset
    if covered < end:
        if stream.deleted:
            raise NotFound("The stream was deleted.")
        resolve_offset(stream, start)  # says so if it was trimmed meanwhile
        raise CorruptData(f"Stream {stream.key}: no segment block holds offset {covered}.")


def _moving() -> Unavailable:
    return Unavailable("The read could not be served: its segments kept moving. Try again.")


def assemble(
    stream: Stream, start: int, bytes_max: int, extents: Sequence[Extent], blobs: Sequence[Blob], whole_messages: bool
) -> Cut:
    """Cut the wanted range out of checked blocks: messages one by one, or bytes in as few pieces as can be."""
    pieces: list[bytes] = []
    end = start
    for extent, blob in zip(extents, blobs, strict=True):
        try:
            first_offset, lengths, payload = decode_payload(blob, extent.stream)
        except CorruptData as error:
            raise damaged(extent, stream.key, error) from None
        if first_offset != extent.first_offset or first_offset + len(payload) != extent.next_offset:
            raise CorruptData(f"Stream {stream.key}: a block holds other offsets than the catalog says.")
        skip = end - first_offset
        if whole_messages:
            end, full = take_messages(split_messages(payload, lengths, skip), pieces, start, end, bytes_max)
            if full:
                break
        else:
            end = _take_bytes(payload, lengths, skip, pieces, start, end, bytes_max)
            if end != extent.next_offset:
                break
    return Cut(start, end, pieces)


def _take_bytes(
    payload: memoryview,
    lengths: Sequence[int],
    skip: int,
    pieces: list[bytes],
    start: int,
    end: int,
    bytes_max: int,
) -> int:
    room = bytes_max - (end - start)
    rest = payload[skip:] if skip else payload
    if len(rest) > room:
        rest = rest[: _whole_messages(lengths, skip, room) or (0 if pieces else room)]
    if rest:
        pieces.append(rest)  # type: ignore[arg-type]  # transports take views; nothing is copied
    return end + len(rest)


def _whole_messages(lengths: Sequence[int], skip: int, room: int) -> int:
    """How many bytes after `skip` are whole messages that fit."""
    at, fitting = 0, 0
    for length in lengths:
        at += length
        if at - skip > room:
            break
        if at > skip:
            fitting = at - skip
    return fitting
