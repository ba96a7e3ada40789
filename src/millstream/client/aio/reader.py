"""A read in progress, on asyncio."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from ..frames import FRAME_BYTES_MAX, FrameDecoder
from ..progress import Progress
from ..values import Batch, Bookmark


class AsyncReader(Progress, AbstractAsyncContextManager["AsyncReader"]):
    """Iterate over it once: over batches, or over `chunks`, `text`, `json` or `frames`.

    Nothing is read ahead of the loop. Leaving the `async with` block, or cancelling the task, closes the connection.
    """

    def __init__(self, batches: AsyncIterator[Batch], start: Bookmark, *, bootstraps: bool = False) -> None:
        super().__init__(start, bootstraps=bootstraps)
        self._batches = batches

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self.batches()

    async def batches(self, *, empty: bool = False) -> AsyncIterator[Batch]:
        """Batches with their offsets. With `empty`, also those without data that only tell how things stand."""
        async for batch in self._batches:
            self._note(batch)
            if batch or empty or batch.kind != "data":
                yield batch

    async def chunks(self) -> AsyncIterator[bytes]:
        """The stream's bytes, in pieces as they come."""
        self._check_items()
        async for batch in self._batches:
            if batch:
                yield batch.data
            self._note(batch)

    async def text(self) -> AsyncIterator[str]:
        """The stream as text, in pieces that break no character."""
        self._check_items()
        decoder = codecs.getincrementaldecoder("utf-8")()
        async for batch in self._batches:
            text = decoder.decode(batch.data)
            if text:
                yield text
            if not decoder.getstate()[0]:
                self._note(batch)
        decoder.decode(b"", final=True)

    async def json(self) -> AsyncIterator[Any]:
        """The messages of a JSON stream, one by one."""
        self._check_items()
        async for batch in self._batches:
            for message in batch.json():
                yield message
            self._note(batch)

    async def frames(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> AsyncIterator[bytes]:
        """Length-prefixed messages: see `encode_frame`."""
        self._check_items()
        decoder = FrameDecoder(frame_bytes_max)
        async for batch in self._batches:
            for frame in decoder.feed(batch.data):
                yield frame
            if not decoder.pending:
                self._note(batch)

    async def read_all(self) -> bytes:
        """Everything up to the tail, in one piece."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def close(self) -> None:
        close = getattr(self._batches, "aclose", None)
        if close is not None:
            await close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
