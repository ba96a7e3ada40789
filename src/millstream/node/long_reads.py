"""Everything between two offsets of a stream, a piece at a time: catch-up reads of any length in little memory.

The end is fixed when a read begins. No lease is taken: each piece is planned anew, wherever the stream has it by then,
and a read whose stream was trimmed or deleted underneath ends with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

from ..engine.reading import Cut, count_between, count_hot
from ..engine.state import Stream
from ..model.errors import CorruptData, Unavailable
from ..storage.catalog import CatalogReader
from .reader import Reader

_PIECE_BYTES = 768 << 10  # with the block that it ends in, less than a megabyte
_PIECE_MESSAGES = 10_000  # each costs its share of the loop's time, however small it is
_SMALL_BYTES = 4 << 20  # who reads pieces of this size waits for nobody: connections are bounded
_LARGE_BYTES_MAX = 256 << 20  # of larger ones, which lie in blocks of large messages, all reads hold so many together
_PATIENCE_S = 10.0
_COUNTED_MAX = 10_000  # blocks, or appends in memory, that are counted in one turn of the loop


class Room:
    """What large pieces may take of the memory, all together. Whoever finds no room waits for others, but not for long:
    theirs may be slow clients."""

    def __init__(self) -> None:
        self._held = 0
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def holding(self, size: int) -> AsyncIterator[None]:
        if size <= _SMALL_BYTES:
            yield
            return
        try:
            async with asyncio.timeout(_PATIENCE_S), self._freed:
                while self._held and self._held + size > _LARGE_BYTES_MAX:
                    await self._freed.wait()
                self._held += size
        except TimeoutError:
            raise Unavailable(
                "Too many large messages are being read at once. Try again, or read with max_bytes.",
                code="read_pressure",
            ) from None
        try:
            yield
        finally:
            self._held -= size
            async with self._freed:
                self._freed.notify_all()


class LongRead:
    def __init__(
        self,
        reader: Reader,
        catalog: CatalogReader,
        room: Room,
        present: Callable[[Stream], Stream],
        stream: Stream,
        start: int,
        end: int,
    ) -> None:
        """`present` finds the stream as it is by now, or raises. The range must end with a message."""
        self._reader = reader
        self._catalog = catalog
        self._room = room
        self._present = present
        self._stream = stream
        self._start = start
        self._end = end

    async def cuts(self) -> AsyncGenerator[Cut]:
        at = self._start
        while at < self._end:
            self._stream = stream = self._present(self._stream)
            end = min(self._reader.piece_end(stream, at, _PIECE_BYTES, _PIECE_MESSAGES), self._end)
            # What is in memory already costs nothing more.
            async with self._room.holding(0 if at >= stream.hot_from else end - at):
                self._stream = stream = self._present(stream)
                cut = await self._reader.read(stream, at, end - at)
                if not at < cut.end <= self._end:
                    raise CorruptData(f"Stream {stream.key}: a read from {at} went to {cut.end}, over {self._end}.")
                at = cut.end
                yield cut
                del cut

    async def count(self) -> int:
        """How many messages there are."""
        at, count = self._start, 0
        while at < self._end:
            self._stream = stream = self._present(self._stream)
            if at >= stream.hot_from:
                more, at = count_hot(stream, at, self._end, _COUNTED_MAX)
            else:
                more, until = self._catalog.count_messages(stream.number, at, self._end, _COUNTED_MAX)
                if until == at:  # in the middle of a block, or the end is
                    first_offset, lengths = await self._reader.block_at(stream, at)
                    more = count_between(first_offset, lengths, at, self._end)
                    until = min(first_offset + sum(lengths), self._end)
                at = until
            count += more
            await asyncio.sleep(0)
        return count
