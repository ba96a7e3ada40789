"""A read in progress, for threads."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from ..frames import FRAME_BYTES_MAX, FrameDecoder
from ..progress import Progress
from ..values import Batch, Bookmark


class Reader(Progress, AbstractContextManager["Reader"]):
    """Iterate over it once: over batches, or over `chunks`, `text`, `json` or `frames`.

    Nothing is read ahead of the loop. Leaving the loop, or the `with` block, closes the connection.
    """

    def __init__(self, batches: Iterator[Batch], start: Bookmark, *, bootstraps: bool = False) -> None:
        super().__init__(start, bootstraps=bootstraps)
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, *, empty: bool = False) -> Iterator[Batch]:
        """Batches with their offsets. With `empty`, also those without data that only tell how things stand."""
        for batch in self._batches:
            self._note(batch)
            if batch or empty or batch.kind != "data":
                yield batch

    def chunks(self) -> Iterator[bytes]:
        """The stream's bytes, in pieces as they come."""
        self._check_items()
        for batch in self._batches:
            if batch:
                yield batch.data
            self._note(batch)

    def text(self) -> Iterator[str]:
        """The stream as text, in pieces that break no character."""
        self._check_items()
        decoder = codecs.getincrementaldecoder("utf-8")()
        for batch in self._batches:
            text = decoder.decode(batch.data)
            if text:
                yield text
            if not decoder.getstate()[0]:
                self._note(batch)
        decoder.decode(b"", final=True)

    def json(self) -> Iterator[Any]:
        """The messages of a JSON stream, one by one."""
        self._check_items()
        for batch in self._batches:
            yield from batch.json()
            self._note(batch)

    def frames(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> Iterator[bytes]:
        """Length-prefixed messages: see `encode_frame`."""
        self._check_items()
        decoder = FrameDecoder(frame_bytes_max)
        for batch in self._batches:
            yield from decoder.feed(batch.data)
            if not decoder.pending:
                self._note(batch)

    def read_all(self) -> bytes:
        """Everything up to the tail, in one piece."""
        return b"".join(self.chunks())

    def close(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
