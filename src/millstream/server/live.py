"""Reads that wait at the tail: long-poll and Server-Sent Events (protocol sections 5.7 and 5.8)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from ..model.errors import MillstreamError, NotFound
from ..model.media import is_json, is_text
from ..node import Cut, Stream
from ..protocol.http.cursors import interval, next_cursor
from ..protocol.http.requests import ReadQuery
from ..protocol.http.responses import NO_STORE, SANDBOX, read_lines
from ..protocol.http.sse import control_event, data_event, whole_characters
from .event_response import EventResponse, chunk
from .http_connection import HttpConnection

if TYPE_CHECKING:
    from .stream_routes import StreamRoutes

_EVENT_BYTES_MAX = 256 << 10
_CR = 0x0D


class LongPoll:
    """One long-poll: answers when there is data, the stream ends, or time is up."""

    __slots__ = ("_conn", "_query", "_routes", "_start", "_stream", "_timer", "queued")

    def __init__(
        self, routes: StreamRoutes, conn: HttpConnection, stream: Stream, start: int, query: ReadQuery
    ) -> None:
        self.queued = False
        self._routes = routes
        self._conn = conn
        self._stream = stream
        self._start = start
        self._query = query
        settings = routes.settings
        wait_ms = settings.long_poll_ms if query.timeout_ms is None else query.timeout_ms
        delay_s = min(wait_ms, settings.long_poll_ms_max) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._time_up)
        routes.node.followers.follow(stream, self)
        routes.node.sweeper.watch(stream)
        conn.live = self

    def stream_changed(self) -> None:
        if self._conn.live is not self:
            return
        stream = self._stream
        if stream.deleted:
            self._leave()
            has_expired = self._routes.node.seconds_left(stream) == 0
            self._conn.respond_error(NotFound("The stream has expired." if has_expired else "The stream was deleted."))
        elif stream.tail > self._start:
            self._leave()
            self._routes.send_range(self._conn, stream, self._start, self._query)
        elif stream.closed:
            self._time_up()

    def _time_up(self) -> None:
        if self._stream.tail > self._start or self._stream.deleted:
            self.stream_changed()  # we are in line to be told: "nothing new at the tail" would skip what is there
            return
        self._leave()
        send_nothing_new(self._routes, self._conn, self._stream, self._query)

    def cancel(self) -> None:
        self._leave()

    def end(self) -> None:
        self._time_up()

    def writable(self) -> None:
        """Nothing has been sent yet."""

    def _leave(self) -> None:
        self._timer.cancel()
        self._conn.live = None
        self._routes.node.followers.leave(self._stream, self)


def send_nothing_new(routes: StreamRoutes, conn: HttpConnection, stream: Stream, query: ReadQuery) -> None:
    """The 204 of a long-poll: at the tail, and perhaps at the end."""
    lines, _ = read_lines(stream, routes.node.stream_id(stream.number), stream.tail, stream.tail)
    if not stream.closed:
        lines += b"Stream-Cursor: %d\r\n" % next_cursor(routes.node.clock.commit_ms(), query.cursor)
    conn.respond(204, lines + NO_STORE)


class SentEvent(NamedTuple):
    """An event as it went to one follower: the next thousand at the same place get the same bytes."""

    key: tuple[int, int, int, bool, int] | None  # stream, start, tail, closed, cursor
    end: int
    data: bytes
    chunk: bytes


NO_EVENT = SentEvent(None, 0, b"", b"")


class EventFeed(EventResponse):
    """One SSE response: an offset that moves along the stream."""

    __slots__ = ("_content_type", "_least_cursor", "_offset", "_routes", "_stream")

    def __init__(
        self, routes: StreamRoutes, conn: HttpConnection, stream: Stream, start: int, query: ReadQuery
    ) -> None:
        super().__init__(conn, routes.settings)
        self._routes = routes
        self._stream = stream
        self._content_type = stream.content_type
        self._offset = start
        self._least_cursor = next_cursor(routes.node.clock.commit_ms(), query.cursor)

    def start(self) -> None:
        lines = b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n" + SANDBOX
        lines += b"Stream-Id: %b\r\n" % self._routes.node.stream_id(self._stream.number).encode()
        if self._stream.closed and self._offset == self._stream.tail:
            lines += b"Stream-Up-To-Date: true\r\nStream-Closed: true\r\n"
        if not is_text(self._stream.content_type):
            lines += b"Stream-SSE-Data-Encoding: base64\r\n"
        if not self._begin(lines):
            return
        self._routes.node.followers.follow(self._stream, self)
        self._routes.node.sweeper.watch(self._stream)
        if self._offset == self._stream.tail and not self._stream.closed:
            self._send(self._control(self._offset))
        self.stream_changed()

    def stream_changed(self) -> None:
        """Send what lies between our offset and the tail, as far as the client drains it."""
        stream = self._stream
        while not self._done and self._fetch is None and not self._conn.paused:
            if stream.deleted or self._offset < stream.earliest:
                self.end()  # who asks again is told why
            elif not self._offset and self._content_type != stream.content_type:
                self.end()  # the first append has brought another type, and with it another head
            elif self._offset < stream.tail:
                key = (stream.number, self._offset, stream.tail, stream.closed, self._cursor())
                if key == self._routes.last_event.key:
                    self._send_event(self._routes.last_event)
                else:
                    self._send_next()
            elif stream.closed:
                self._send(self._control(self._offset))
                self.end()
            else:
                return

    def _send_next(self) -> None:
        reader = self._routes.node.reader
        try:
            cut = reader.read_now(self._stream, self._offset, _EVENT_BYTES_MAX)
        except MillstreamError:
            self.end()  # who asks again sees the error
            return
        if cut is None:
            self._go_on_with(lambda: reader.read(self._stream, self._offset, _EVENT_BYTES_MAX), self._send_cut)
        else:
            self._send_cut(cut)

    def _send_cut(self, cut: Cut) -> None:
        stream = self._stream
        cut = _whole_text(stream, cut)
        json, text = is_json(stream.content_type), is_text(stream.content_type)
        data = data_event(cut.pieces, json=json, text=text) + self._control(cut.end)
        key = (stream.number, cut.start, stream.tail, stream.closed, self._cursor())
        self._routes.last_event = event = SentEvent(key, cut.end, data, chunk(data))
        self._send_event(event)

    def _send_event(self, event: SentEvent) -> None:
        self._offset = event.end
        self._conn.send(event.chunk if self._conn.is_chunked() else event.data)
        stream = self._stream
        if stream.closed and event.end == stream.tail:
            self.end()

    def _control(self, end: int) -> bytes:
        stream = self._stream
        at_tail = end == stream.tail
        return control_event(end, self._cursor(), up_to_date=at_tail, closed=at_tail and stream.closed)

    def _cursor(self) -> int:
        """Of the interval we are in, but never less than what this client was given."""
        self._least_cursor = max(self._least_cursor, interval(self._routes.node.clock.wall_ms()))
        return self._least_cursor

    def _leave_followers(self) -> None:
        self._routes.node.followers.leave(self._stream, self)


def _whole_text(stream: Stream, cut: Cut) -> Cut:
    """Text is cut between characters; the rest of a broken one comes with the next event."""
    if cut.end == stream.tail or not is_text(stream.content_type) or is_json(stream.content_type):
        return cut
    last = cut.pieces[-1]
    whole = whole_characters(last)
    if whole > 1 and last[whole - 1] == _CR:
        whole -= 1  # its LF may be the next byte, and CR LF is one line end
    if whole == len(last) or (whole == 0 and len(cut.pieces) == 1):
        return cut
    return Cut(cut.start, cut.end - len(last) + whole, [*cut.pieces[:-1], bytes(last[:whole])])
