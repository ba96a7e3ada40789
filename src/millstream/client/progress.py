"""How far a read has come; shared by the readers of both clients."""

from __future__ import annotations

from .feeding import FeedPage
from .values import Batch, Bookmark


class Progress:
    """`bookmark` is where to go on with what has not been handed out in full."""

    def __init__(self, start: Bookmark, *, bootstraps: bool) -> None:
        self.bookmark = start
        self.up_to_date = False
        self.closed = False
        self.content_type: str | None = None
        self._bootstraps = bootstraps

    @property
    def offset(self) -> str:
        return self.bookmark.offset

    def _note(self, batch: Batch) -> None:
        self.bookmark = Bookmark(batch.next_offset, batch.stream_id or self.bookmark.stream_id)
        self.up_to_date = batch.up_to_date
        self.closed = batch.closed
        self.content_type = batch.content_type or self.content_type

    def _check_items(self) -> None:
        if self._bootstraps:
            raise ValueError(
                "A read with bootstrap=True may bring a snapshot, which is no item of the stream: "
                "iterate over its batches and look at `batch.kind`."
            )


class FeedProgress:
    """`position` is where to go on with what has not been handed out in full."""

    def __init__(self, after: str) -> None:
        self.position = after
        self.up_to_date = False

    def _note(self, page: FeedPage) -> None:
        self.position = page.next_position
        self.up_to_date = page.up_to_date
