"""Reads of a whole bucket in progress, on asyncio: its feed, and bulk reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import bulk
from ..bulk import Opened, Row, RowDecoder
from ..feeding import FeedEntry, FeedPage
from ..progress import FeedProgress

if TYPE_CHECKING:
    import pyarrow


class AsyncFeedReader(FeedProgress, AbstractAsyncContextManager["AsyncFeedReader"]):
    """Iterate over it once: over entries, or over `pages` of them."""

    def __init__(self, pages: AsyncIterator[FeedPage], after: str) -> None:
        super().__init__(after)
        self._pages = pages

    async def __aiter__(self) -> AsyncIterator[FeedEntry]:
        async for page in self._pages:
            for entry in page.entries:
                yield entry
            self._note(page)

    async def pages(self, *, empty: bool = False) -> AsyncIterator[FeedPage]:
        """Entries as they came together; with `empty`, also pages that only move the position."""
        async for page in self._pages:
            self._note(page)
            if page.entries or empty:
                yield page

    async def close(self) -> None:
        close = getattr(self._pages, "aclose", None)
        if close is not None:
            await close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncBulkReader:
    """The rows of a bulk read; iterate over it once. `next_position` is the `after` of the next one, once begun."""

    def __init__(self, chunks: AsyncIterator[bytes], opened: Opened) -> None:
        self._chunks = chunks
        self._opened = opened

    @property
    def next_position(self) -> str | None:
        return self._opened.next_position

    async def __aiter__(self) -> AsyncIterator[Row]:
        decoder = RowDecoder()
        async for chunk in self._chunks:
            for row in decoder.feed(chunk):
                yield row
        decoder.finish()


class AsyncArrowReader:
    """The record batches of a bulk read; iterate over it once. pyarrow waits in a thread, so that the loop does not."""

    def __init__(self, chunks: AsyncIterator[bytes], opened: Opened) -> None:
        self._chunks = chunks
        self._opened = opened

    @property
    def next_position(self) -> str | None:
        return self._opened.next_position

    async def __aiter__(self) -> AsyncIterator[pyarrow.RecordBatch]:
        loop = asyncio.get_running_loop()
        chunks: Any = self._chunks

        async def next_chunk() -> bytes:
            found: bytes = await anext(chunks, b"")
            return found

        async with aclosing(chunks):
            batches = bulk.record_batches(lambda: asyncio.run_coroutine_threadsafe(next_chunk(), loop).result())
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                yield batch
