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
_PAGE_BYTES_MAX = 4 << 20
_UNTOLD_MAX = 1000  # changes passed over before an SSE client is told how far it is


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
        budget = _EVENT_BYTES_MAX if query.live == "sse" else self.settings.read_bytes_max or _PAGE_BYTES_MAX
        wish = FeedWish(bucket, query.prefix, query.with_data, query.limit, budget)
        if query.live == "sse":
            self.node.feed.check_archived(after)
            tail = await self.node.feed.tail(bucket)
            if conn.request is not None:
                FeedEvents(self, conn, wish, after, tail).start()
            return
        if query.live == "long-poll":
            await self.poll(conn, wish, after, self._deadline(query.timeout_ms))
            return
        page = await self.node.feed.page(wish, after)
        if conn.request is not None:
            self.send_page(conn, bucket, page)

    def _deadline(self, timeout_ms: int | None) -> float:
        wait_ms = self.settings.long_poll_ms if timeout_ms is None else timeout_ms
        return asyncio.get_running_loop().time() + min(wait_ms, self.settings.long_poll_ms_max) / 1000

    async def poll(self, conn: HttpConnection, wish: FeedWish, after: int, deadline: float) -> None:
        """Answer with the first entries behind a sequence; where there are none, wait for them at the log's end."""
        loop = asyncio.get_running_loop()
        page = await self.node.feed.page(wish, after)
        while conn.request is not None and not page.entries and not page.up_to_date:
            if loop.time() >= deadline:
                self.send_nothing_new(conn, page)
                return
            page = await self.node.feed.page(wish, page.next_sequence)
        if conn.request is not None and page.entries:
            self.send_page(conn, wish.bucket, page)
            return
        tail = await self.node.feed.tail(wish.bucket)
        if conn.request is not None:
            FeedPoll(self, conn, wish, page, tail, deadline).start()

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

    def send_nothing_new(self, conn: HttpConnection, page: Page) -> None:
        conn.respond(204, page_lines(self.node.feed.token(page.next_sequence), page.up_to_date) + NO_STORE)


class FeedPoll:
    """One long-poll at the end of the log: answers when there is an entry, or time is up."""

    def __init__(
        self,
        routes: FeedRoutes,
        conn: HttpConnection,
        wish: FeedWish,
        page: Page,
        tail: BucketTail,
        deadline: float,
    ) -> None:
        self.queued = False
        self._routes = routes
        self._conn = conn
        self._wish = wish
        self._page = page  # the last one read; it is empty
        self._tail = tail
        self._deadline = deadline
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_at(self._deadline, self._time_up)
        self._conn.live = self
        self._routes.node.feed.follow(self._tail, self)
        self.stream_changed()  # something may have come since the page was read

    def stream_changed(self) -> None:
        if self._conn.live is not self:
            return
        after = self._page.next_sequence
        try:
            page = self._routes.node.feed.page_now(self._wish, after)
        except MillstreamError as error:
            self._leave()
            self._conn.respond_error(error)
            return
        if page is None:  # it was archived while we waited: we begin anew from here
            self._leave()
            self._routes.in_background(self._conn, self._routes.poll(self._conn, self._wish, after, self._deadline))
        elif page.entries:
            self._leave()
            self._routes.send_page(self._conn, self._wish.bucket, page)
        else:
            self._page = page

    def _time_up(self) -> None:
        self.stream_changed()  # we may be in line to be told; and others have moved the log's end
        if self._conn.live is self:
            self._leave()
            self._routes.send_nothing_new(self._conn, self._page)

    def cancel(self) -> None:
        self._leave()

    def end(self) -> None:
        self._deadline = asyncio.get_running_loop().time()
        self._time_up()

    def writable(self) -> None:
        """Nothing has been sent yet."""

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._conn.live = None
        self._routes.node.feed.leave(self._tail, self)


class FeedEvents(EventResponse):
    """One SSE response: a position that moves along the log, and one that the client knows of."""

    __slots__ = ("_after", "_feed", "_known", "_routes", "_said_up_to_date", "_tail", "_wish")

    def __init__(self, routes: FeedRoutes, conn: HttpConnection, wish: FeedWish, after: int, tail: BucketTail) -> None:
        super().__init__(conn, routes.settings)
        self._routes = routes
        self._feed = routes.node.feed
        self._wish = wish
        self._after = self._known = after
        self._said_up_to_date = False
        self._tail = tail

    def start(self) -> None:
        if not self._begin(_SSE):
            return
        self._feed.follow(self._tail, self)
        self._say_how_far()
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
            self._known, self._said_up_to_date = self._after, event.end == event.now
        else:
            self._say_how_far()

    def _say_how_far(self) -> None:
        """Without entries a client hears when it is at the end, and when much was passed over: it comes back there, and
        neither has us read all that again nor finds that the archive has gone on without it."""
        is_at_end = self._after == self._feed.now
        if (is_at_end and not self._said_up_to_date) or self._after - self._known >= _UNTOLD_MAX:
            self._send(feed_control(self._feed.token(self._after), is_at_end))
            self._known, self._said_up_to_date = self._after, is_at_end

    def _leave_followers(self) -> None:
        self._feed.leave(self._tail, self)
