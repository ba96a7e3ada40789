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
from ..protocol.http.sse import control_event, data_event, unfinished_bytes
from .event_response import EventResponse, chunk
from .http_connection import HttpConnection

if TYPE_CHECKING:
    from .stream_routes import StreamRoutes

_EVENT_BYTES_MAX = 256 << 10


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

    key: tuple[int, int, bytes, int, bool, int] | None  # stream, start, held back before, tail, closed, cursor
    end: int
    held: bytes  # back
    data: bytes
    chunk: bytes


NO_EVENT = SentEvent(None, 0, b"", b"", b"")


class EventFeed(EventResponse):
    """One SSE response: an offset that moves along the stream.

    Of text it may be a little ahead of what was sent: the beginning of a character or of a line end is held back until
    the rest is there, or the stream is closed.
    """

    __slots__ = ("_content_type", "_held", "_least_cursor", "_offset", "_routes", "_stream")

    def __init__(
        self, routes: StreamRoutes, conn: HttpConnection, stream: Stream, start: int, query: ReadQuery
    ) -> None:
        super().__init__(conn, routes.settings)
        self._routes = routes
        self._stream = stream
        self._content_type = stream.content_type
        self._offset = start
        self._held = b""  # what was read before the offset and not sent
        self._least_cursor = next_cursor(routes.node.clock.commit_ms(), query.cursor)

    def start(self) -> None:
        lines = b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n" + SANDBOX
        stream, stream_id = self._stream, self._routes.node.stream_id(self._stream.number)
        if stream.closed and self._offset == stream.tail:
            lines += read_lines(stream, stream_id, self._offset, self._offset)[0]
        else:
            lines += b"Stream-Id: %b\r\n" % stream_id.encode()
        if not is_text(stream.content_type):
            lines += b"Stream-SSE-Data-Encoding: base64\r\n"
        if not self._begin(lines):
            return
        self._routes.node.followers.follow(stream, self)
        self._routes.node.sweeper.watch(stream)
        if self._offset == stream.tail and not stream.closed:
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
                key = (stream.number, self._offset, self._held, stream.tail, stream.closed, self._cursor())
                if key == self._routes.last_event.key:
                    self._send_event(self._routes.last_event)
                else:
                    self._send_next()
            elif stream.closed:
                self._send(self._data([self._held] if self._held else []) + self._control(self._offset))
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
        pieces, held = cut.pieces, b""
        if is_text(stream.content_type) and not is_json(stream.content_type):
            pieces, held = self._whole_text(cut)
        data = self._data(pieces) + self._control(cut.end, len(held))
        key = (stream.number, cut.start, self._held, stream.tail, stream.closed, self._cursor())
        self._routes.last_event = event = SentEvent(key, cut.end, held, data, chunk(data))
        self._send_event(event)

    def _whole_text(self, cut: Cut) -> tuple[list[bytes], bytes]:
        """What can be sent of what is there by now, and what has to wait for its rest."""
        text = b"".join([self._held, *cut.pieces])
        is_last = self._stream.closed and cut.end == self._stream.tail
        size = len(text) - (0 if is_last else unfinished_bytes(text))
        return [text[:size]] if size else [], text[size:]

    def _data(self, pieces: list[bytes]) -> bytes:
        kind = self._stream.content_type
        return data_event(pieces, json=is_json(kind), text=is_text(kind)) if pieces else b""

    def _send_event(self, event: SentEvent) -> None:
        self._offset = event.end
        self._held = event.held
        self._conn.send(event.chunk if self._conn.is_chunked() else event.data)
        stream = self._stream
        if stream.closed and event.end == stream.tail:
            self.end()

    def _control(self, end: int, held: int = 0) -> bytes:
        """Up to date is also who waits for no more than the rest of a character."""
        stream = self._stream
        at_tail = end == stream.tail
        return control_event(end - held, self._cursor(), up_to_date=at_tail, closed=at_tail and stream.closed)

    def _cursor(self) -> int:
        """Of the interval we are in, but never less than what this client was given."""
        self._least_cursor = max(self._least_cursor, interval(self._routes.node.clock.wall_ms()))
        return self._least_cursor

    def _leave_followers(self) -> None:
        self._routes.node.followers.leave(self._stream, self)
