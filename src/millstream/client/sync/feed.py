"""Reads of a whole bucket in progress, for threads: its feed, and bulk reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .. import bulk
from ..bulk import Opened, Row, RowDecoder
from ..feeding import FeedEntry, FeedPage
from ..progress import FeedProgress

if TYPE_CHECKING:
    import pyarrow


class FeedReader(FeedProgress, AbstractContextManager["FeedReader"]):
    """Iterate over it once: over entries, or over `pages` of them. Leaving the loop closes the connection."""

    def __init__(self, pages: Iterator[FeedPage], after: str) -> None:
        super().__init__(after)
        self._pages = pages

    def __iter__(self) -> Iterator[FeedEntry]:
        for page in self._pages:
            yield from page.entries
            self._note(page)

    def pages(self, *, empty: bool = False) -> Iterator[FeedPage]:
        """Entries as they came together; with `empty`, also pages that only move the position."""
        for page in self._pages:
            self._note(page)
            if page.entries or empty:
                yield page

    def close(self) -> None:
        close = getattr(self._pages, "close", None)
        if close is not None:
            close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BulkReader:
    """The rows of a bulk read; iterate over it once. `next_position` is the `after` of the next one, once begun."""

    def __init__(self, chunks: Iterator[bytes], opened: Opened) -> None:
        self._chunks = chunks
        self._opened = opened

    @property
    def next_position(self) -> str | None:
        return self._opened.next_position

    def __iter__(self) -> Iterator[Row]:
        decoder = RowDecoder()
        for chunk in self._chunks:
            yield from decoder.feed(chunk)
        decoder.finish()


class ArrowReader:
    """The record batches of a bulk read; iterate over it once. `next_position` as for rows."""

    def __init__(self, chunks: Iterator[bytes], opened: Opened) -> None:
        self._chunks = chunks
        self._opened = opened

    @property
    def next_position(self) -> str | None:
        return self._opened.next_position

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        chunks: Any = self._chunks
        with closing(chunks):
            yield from bulk.record_batches(lambda: next(chunks, b""))
