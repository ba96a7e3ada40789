"""The bucket feed: catch-up, long-poll, Server-Sent Events."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from ..model.errors import MillstreamError
from ..node.feed import FeedWish, Page
from ..node.recent import BucketTail
from ..protocol.http import headers as h
from ..protocol.http.extension.feed import (
    FeedQuery,
    entries_body,
    feed_control,
    feed_event,
    page_body,
    page_lines,
    parse_feed,
)
from ..protocol.http.requests import Request
from ..protocol.http.responses import NO_STORE
from .event_response import EventResponse, chunk
from .http_connection import HttpConnection
from .stream_routes import StreamRoutes

_JSON = b"Content-Type: application/json\r\n"
_SSE = b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
_EVENT_BYTES_MAX = 256 << 10


class SentPage(NamedTuple):
    """An event as it went to one follower: the next hundreds at the same place get the same bytes."""

    wish: FeedWish | None
    after: int
    now: int
    end: int
    data: bytes
    chunk: bytes


_NO_PAGE = SentPage(None, 0, 0, 0, b"", b"")


class FeedRoutes:
    def __init__(self, streams: StreamRoutes) -> None:
        self.node = streams.node
        self.settings = streams.settings
        self.in_background = streams.in_background
        self.last_page = _NO_PAGE

    def serve(self, conn: HttpConnection, request: Request, bucket: str) -> None:
        last_event_id = request.headers.get(h.LAST_EVENT_ID, b"").decode("latin-1")
        query = parse_feed(request.query, last_event_id)
        self.node.bucket(bucket)
        self.in_background(conn, self._serve(conn, bucket, query))

    async def _serve(self, conn: HttpConnection, bucket: str, query: FeedQuery) -> None:
        after = await self._start(bucket, query)
        budget = _EVENT_BYTES_MAX if query.live == "sse" else self.settings.read_bytes_max
        wish = FeedWish(bucket, query.prefix, query.with_data, query.limit, budget)
        if query.live == "sse":
            self.node.feed.check_archived(after)
            tail = await self.node.feed.tail(bucket)
            if conn.request is not None:
                FeedEvents(self, conn, wish, after, tail).start()
            return
        page = await self.node.feed.page(wish, after)
        while query.live == "long-poll" and not page.entries and not page.up_to_date:
            page = await self.node.feed.page(wish, page.next_sequence)
        if conn.request is None:
            return
        if query.live == "long-poll" and not page.entries:
            tail = await self.node.feed.tail(bucket)
            FeedPoll(self, conn, wish, page.next_sequence, tail, query.timeout_ms).start()
        else:
            self.send_page(conn, bucket, page)

    async def _start(self, bucket: str, query: FeedQuery) -> int:
        feed, place = self.node.feed, query.after
        if place.is_now:
            return feed.now
        if place.since_ms is not None:
            return await feed.sequence_before(bucket, place.since_ms)
        return feed.earliest if place.position is None else feed.sequence_of(place.position)

    def send_page(self, conn: HttpConnection, bucket: str, page: Page) -> None:
        token = self.node.feed.token
        following = token(page.next_sequence)
        lines = page_lines(following, page.up_to_date) + _JSON + NO_STORE
        entries = entries_body(page.entries, token)
        conn.respond(200, lines, [page_body(bucket, entries, following, page.up_to_date)])

    def send_nothing_new(self, conn: HttpConnection, after: int) -> None:
        conn.respond(204, page_lines(self.node.feed.token(after), True) + NO_STORE)


class FeedPoll:
    """One long-poll on a bucket: answers when there is an entry, or time is up."""

    def __init__(
        self,
        routes: FeedRoutes,
        conn: HttpConnection,
        wish: FeedWish,
        after: int,
        tail: BucketTail,
        timeout_ms: int | None,
    ) -> None:
        self.queued = False
        self._routes = routes
        self._conn = conn
        self._wish = wish
        self._after = after
        self._tail = tail
        settings = routes.settings
        wait_ms = settings.long_poll_ms if timeout_ms is None else timeout_ms
        self._delay_s = min(wait_ms, settings.long_poll_ms_max) / 1000
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._delay_s, self._time_up)
        self._conn.live = self
        self._routes.node.feed.follow(self._tail, self)
        self.stream_changed()  # something may have come since the page was read

    def stream_changed(self) -> None:
        if self._conn.live is not self:
            return
        try:
            page = self._routes.node.feed.page_now(self._wish, self._after)
        except MillstreamError as error:
            self._leave()
            self._conn.respond_error(error)
            return
        if page is None:  # it was archived while we waited: it is read as any other page
            self._leave()
            self._routes.in_background(self._conn, self._send_archived())
        elif page.entries:
            self._leave()
            self._routes.send_page(self._conn, self._wish.bucket, page)
        else:
            self._after = page.next_sequence

    async def _send_archived(self) -> None:
        page = await self._routes.node.feed.page(self._wish, self._after)
        if self._conn.request is not None:
            self._routes.send_page(self._conn, self._wish.bucket, page)

    def _time_up(self) -> None:
        self._leave()
        self._routes.send_nothing_new(self._conn, self._after)

    def cancel(self) -> None:
        self._leave()

    def end(self) -> None:
        self._time_up()

    def writable(self) -> None:
        """Nothing has been sent yet."""

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._conn.live = None
        self._routes.node.feed.leave(self._tail, self)


class FeedEvents(EventResponse):
    """One SSE response: a position that moves along the log."""

    __slots__ = ("_after", "_feed", "_routes", "_tail", "_wish")

    def __init__(self, routes: FeedRoutes, conn: HttpConnection, wish: FeedWish, after: int, tail: BucketTail) -> None:
        super().__init__(conn, routes.settings)
        self._routes = routes
        self._feed = routes.node.feed
        self._wish = wish
        self._after = after
        self._tail = tail

    def start(self) -> None:
        if not self._begin(_SSE):
            return
        self._feed.follow(self._tail, self)
        if self._after == self._feed.now:
            self._send(feed_control(self._feed.token(self._after), True))
        self.stream_changed()

    def stream_changed(self) -> None:
        """Send what has happened behind our position, as far as the client drains it."""
        while not self._done and self._fetch is None and not self._conn.paused and self._after < self._feed.now:
            sent = self._routes.last_page
            if (sent.wish, sent.after, sent.now) == (self._wish, self._after, self._feed.now):
                self._send_event(sent)
                continue
            try:
                page = self._feed.page_now(self._wish, self._after)
            except MillstreamError:
                self.end()  # who asks again sees the error
                return
            if page is None:
                self._go_on_with(lambda: self._feed.page(self._wish, self._after), self._send_page)
            else:
                self._send_page(page)

    def _send_page(self, page: Page) -> None:
        data = b""
        if page.entries:
            entries = entries_body(page.entries, self._feed.token)
            data = feed_event(entries, self._feed.token(page.next_sequence), page.up_to_date)
        event = SentPage(self._wish, self._after, self._feed.now, page.next_sequence, data, chunk(data))
        self._routes.last_page = event
        self._send_event(event)

    def _send_event(self, event: SentPage) -> None:
        self._after = event.end
        if event.data:
            self._conn.send(event.chunk if self._conn.is_chunked() else event.data)

    def _leave_followers(self) -> None:
        self._feed.leave(self._tail, self)
