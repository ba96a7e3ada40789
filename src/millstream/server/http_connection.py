"""One HTTP/1.1 connection: bytes in, requests out one at a time, responses back in order.

Hot code: an `asyncio.Protocol` fed to llhttp, no layers between (measured 3x a raw ASGI server; notes in
`docs/decisions/`). One request is served at a time; what a client pipelines behind it waits parsed, and reading pauses.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from ..model.errors import MillstreamError, Unavailable
from ..model.replies import Receipt
from ..protocol.http import headers as h
from ..protocol.http.error_table import error_body, error_lines, status_of
from ..protocol.http.requests import Request, origin_form
from ..protocol.http.responses import NO_STORE, head, plain_append

if TYPE_CHECKING:
    from .http_listener import HttpListener

log = logging.getLogger(__name__)

_LINGER_S = 2.0
_QUEUE_MAX = 32  # pipelined requests before reading pauses
_BODY_PROGRESS = 64 << 10  # a body must bring this much to earn more time
_JOIN_MAX = 64 << 10  # up to here one copy is cheaper than a longer list for the kernel; beyond, never copy a body
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_JSON = b"Content-Type: application/json\r\n"


class LiveRead(Protocol):
    """What a connection is busy with while it waits at the tail."""

    def cancel(self) -> None:
        """The client is gone."""

    def end(self) -> None:
        """The server stops: finish cleanly."""

    def writable(self) -> None:
        """The client has drained what it was sent."""


class HttpConnection(asyncio.Protocol):
    __slots__ = (
        "_begun",
        "_body",
        "_body_size",
        "_chunk",
        "_closing",
        "_ended",
        "_head_size",
        "_headers",
        "_held",
        "_lingering",
        "_listener",
        "_loop",
        "_more",
        "_owes_continue",
        "_parser",
        "_progress",
        "_queue",
        "_rejection",
        "_shares_chunk",
        "_trailer_size",
        "_transport",
        "_url",
        "busy",
        "cors",
        "deadline",
        "live",
        "paused",
        "receiving",
        "request",
    )

    def __init__(self, listener: HttpListener) -> None:
        self._listener = listener
        self._loop = listener.loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._queue: deque[Request] = deque()
        self._held = 0  # bytes of bodies this connection keeps in memory
        self._rejection: tuple[int, str, str] | None = None
        self._lingering = False
        self._closing = False
        self._ended = False
        self._owes_continue = False
        self.busy = False
        self.paused = False
        self.receiving = False
        self.request: Request | None = None  # the one being served
        self.cors = b""
        self.live: LiveRead | None = None
        self.deadline = listener.now + listener.settings.idle_timeout_s
        self._begun = False  # a request is arriving
        self._head_size = 0  # what has arrived with its head; of a chunk that it shares with others, nothing
        self._chunk = 0
        self._shares_chunk = False
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body = b""
        self._more: list[bytes] | None = None  # of a body that comes in several pieces
        self._body_size = 0
        self._progress = 0
        self._trailer_size = 0

    # -- transport -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class; it has all of one's methods
        self._transport.set_write_buffer_limits(high=256 << 10)
        if not self._listener.admit(self):
            self._reject(503, "too_many_connections", "The server has as many connections as it takes. Try again.")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._listener.forget(self)
        self._listener.inflight_bytes -= self._held
        self._held = 0
        self._queue.clear()
        live, self.live = self.live, None
        if live is not None:
            live.cancel()

    def pause_writing(self) -> None:
        self.paused = True
        self.deadline = self._listener.now + self._listener.settings.drain_timeout_s

    def resume_writing(self) -> None:
        self.paused = False
        self.deadline = 0.0
        if self.live is not None:
            self.live.writable()
        elif not self.busy:
            self._idle()

    def eof_received(self) -> bool:
        """The client has said all it had to say. It still gets its answers; a live read ends, as it may be gone."""
        self._ended = True
        return self.live is None and (self.busy or bool(self._queue))

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._closing or self._rejection is not None:
            return
        self._chunk = len(data)
        self._shares_chunk = False
        if not self._begun:
            if not self.busy:
                self.deadline = self._listener.now + self._listener.settings.idle_timeout_s
        elif not self.receiving:
            self._head_size += self._chunk
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # An upgrade is an offer; the request was served as it is, and this is its last on the connection.
            self._closing = True
        except httptools.HttpParserError as error:
            self._reject(400, "malformed_request", f"This is not valid HTTP/1.1: {error}.")
            return
        if self._begun and not self.receiving and self._head_size > self._listener.settings.head_bytes_max:
            self._reject_large_head()

    # -- parser callbacks ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._begin()
        self._begun = True
        self._head_size = 0 if self._shares_chunk else self._chunk

    def on_url(self, url: bytes) -> None:
        self._url = self._url + url if self._url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.receiving:
            self._on_trailer(name, value)
            return
        name = name.lower()
        headers = self._headers
        if name in headers:
            if name in h.SINGLE:
                self._rejection = (
                    400,
                    "repeated_header",
                    f"The header {name.decode('latin-1')} is given twice.",
                )
            value = headers[name] + b", " + value
        headers[name] = value

    def _on_trailer(self, name: bytes, value: bytes) -> None:
        """Whoever checks headers in front of us does not see trailers: they are read over, up to a limit."""
        self._trailer_size += len(name) + len(value)
        if self._trailer_size > self._listener.settings.head_bytes_max:
            self._reject_large_head()

    def on_headers_complete(self) -> None:
        self.receiving = True
        if self._rejection is not None:
            self._reject(*self._rejection)
            return
        headers = self._headers
        settings = self._listener.settings
        # Counted only where it can be too much: a head that came in one small chunk is small.
        may_be_large = max(self._head_size, self._chunk) > settings.head_bytes_max or self._shares_chunk
        if may_be_large and self._count_head() > settings.head_bytes_max:
            self._reject_large_head()
            return
        if h.TRANSFER_ENCODING in headers:
            if h.CONTENT_LENGTH in headers:
                self._reject(400, "ambiguous_length", "Content-Length and Transfer-Encoding exclude each other.")
                return
            if headers[h.TRANSFER_ENCODING].strip().lower() != b"chunked":
                self._reject(501, "bad_transfer_encoding", "The only Transfer-Encoding understood is chunked.")
                return
        length = headers.get(h.CONTENT_LENGTH)
        if length is not None and len(length) < 20 and int(length) > settings.append_bytes_max:
            self._reject_large_body()
            return
        if h.EXPECT in headers:
            self._expect(headers[h.EXPECT])

    def _count_head(self) -> int:
        return len(self._url) + sum(map(len, self._headers)) + sum(map(len, self._headers.values()))

    def on_body(self, data: bytes) -> None:
        if self._rejection is not None:
            return
        size = len(data)
        if not self._body_size:
            self._body = data
        elif self._more is None:
            self._more = [self._body, data]
        else:
            self._more.append(data)
        self._body_size += size
        self._held += size
        listener = self._listener
        listener.inflight_bytes += size
        if self._body_size > listener.settings.append_bytes_max:
            self._reject_large_body()
        elif listener.inflight_bytes > listener.settings.inflight_bytes_max:
            self._reject(503, "too_many_bodies", "The server holds as many request bodies as it takes. Try again.")
        elif self._body_size - self._progress >= _BODY_PROGRESS:
            self._progress = self._body_size
            self.deadline = listener.now + listener.settings.idle_timeout_s

    def on_message_complete(self) -> None:
        self.receiving = False
        self._owes_continue = False
        if self._rejection is not None:
            self._reject(*self._rejection)
            return
        parser = self._parser
        headers = self._headers
        path, _, query = self._url.partition(b"?")
        if path[:1] != b"/":
            path = origin_form(path)
        keep_alive = parser.should_keep_alive() and not (b"upgrade" in headers and parser.should_upgrade())
        request = Request(
            parser.get_method(),
            path,
            query,
            headers,
            self._body if self._more is None else b"".join(self._more),
            keep_alive,
            # Only HTTP/1.1 keeps a connection without being asked to; the parser formats its answer each time.
            "1.1" if keep_alive and b"connection" not in headers else parser.get_http_version(),
        )
        self._begun = False
        self._shares_chunk = True
        if self.busy or self.paused:
            self._queue.append(request)
            if len(self._queue) >= _QUEUE_MAX and self._transport is not None:
                self._transport.pause_reading()
        else:
            self._serve(request)

    def _expect(self, value: bytes) -> None:
        if value.lower() != b"100-continue":
            self._reject(417, "bad_expectation", "The only expectation understood is 100-continue.")
        elif self._transport is not None and not self.busy and not self._queue:
            self._transport.write(_CONTINUE)
        else:
            self._owes_continue = True  # once the requests before it are answered

    # -- serving ---------------------------------------------------------------------------------------

    def _serve(self, request: Request) -> None:
        self.busy = True
        self.request = request
        self.deadline = 0.0
        self.cors = b""
        try:
            self._listener.serve(self, request)
        except MillstreamError as error:
            self.respond_error(error)
        except Exception:
            log.exception("A request failed in a way it must not: %s %s", request.method, request.path)
            self.respond_problem(500, "internal", "The server made a mistake; it is in its log.")

    def respond(self, status: int, lines: bytes = b"", pieces: Sequence[bytes] = (), size: int | None = None) -> None:
        """Answer the request being served. HEAD, 204 and 304 have no body."""
        transport = self._transport
        request = self.request
        assert request is not None
        self._listener.count(request.method, status)
        if transport is None:
            return
        if size is None and status != 204 and status != 304:
            size = sum(map(len, pieces))
        if self.cors:
            lines = self.cors + lines
        if not request.keep_alive or self._closing:
            lines = b"Connection: close\r\n" + lines
        start = head(status, self._listener.common_lines, lines, size)
        if not pieces or request.method == b"HEAD":
            transport.write(start)
        elif size is not None and size <= _JOIN_MAX:
            transport.write(b"".join([start, *pieces]))
        else:
            transport.writelines([start, *pieces])
        self.finish()

    def respond_appended(self, tail: int, stream_id: bytes) -> None:
        """`respond` for the most frequent answer, in as few steps as can be."""
        request = self.request
        assert request is not None
        if self._transport is None or self.cors or self._closing or not request.keep_alive:
            lines = b'Stream-Next-Offset: %020d\r\nETag: "%b:%d"\r\nStream-Id: %b\r\n'
            self.respond(204, lines % (tail, stream_id, tail, stream_id))
            return
        self._listener.count(request.method, 204)
        self._transport.write(plain_append(self._listener.common_lines, tail, stream_id))
        self.finish()

    def receipt(self, answer: Receipt | MillstreamError) -> Receipt | None:
        """The receipt of a write that is to be answered. None if the client has left, or was told why not."""
        if self.request is None:
            return None
        if isinstance(answer, MillstreamError):
            self.respond_error(answer)
            return None
        return answer

    def respond_error(self, error: MillstreamError) -> None:
        lines = error_lines(error)
        self.respond_problem(status_of(error), error.code, error.message, lines)

    def respond_problem(self, status: int, code: str, message: str, lines: bytes = b"") -> None:
        self.respond(status, _JSON + NO_STORE + lines, [error_body(code, message)])

    def begin_stream(self, lines: bytes) -> bool:
        """Start a response without a known length; False when the client is gone."""
        request = self.request
        assert request is not None
        self._listener.count(request.method, 200)
        if self._transport is None:
            return False
        if self.is_chunked():
            lines += b"Transfer-Encoding: chunked\r\n"
        else:
            lines += b"Connection: close\r\n"
        self._transport.write(head(200, self._listener.common_lines, self.cors + lines, None))
        return True

    def is_chunked(self) -> bool:
        return self.request is not None and self.request.version == "1.1"

    def send(self, data: bytes) -> None:
        """More of a streamed response; already framed if it must be."""
        if self._transport is not None:
            self._transport.write(data)

    def end_stream(self) -> None:
        self.live = None
        if self._transport is None:
            return
        if self.is_chunked():
            self._transport.write(b"0\r\n\r\n")
        else:
            self._closing = True
        self.finish()

    def finish(self) -> None:
        """The request is answered: on to the next."""
        request, self.request = self.request, None
        self.live = None
        assert request is not None
        listener = self._listener
        size = len(request.body)
        if size:
            self._held -= size
            listener.inflight_bytes -= size
        if not request.keep_alive or self._closing:
            self.close()
            return
        self.busy = False
        if self._owes_continue and not self._queue and self._transport is not None:
            self._owes_continue = False
            self._transport.write(_CONTINUE)
        if self._queue or self._rejection is not None or self._ended:
            if not self.paused:
                self._idle()
        elif not self.paused:
            self.deadline = listener.now + listener.settings.idle_timeout_s

    def _idle(self) -> None:
        if self._queue:
            self.busy = True
            self._loop.call_soon(self._next)
        elif self._rejection is not None:
            self._reject(*self._rejection)
        elif self._ended:
            self.close()
        else:
            self.deadline = self._listener.now + self._listener.settings.idle_timeout_s

    def _next(self) -> None:
        if self._transport is None or not self._queue:
            return
        request = self._queue.popleft()
        if len(self._queue) == _QUEUE_MAX - 1:
            self._transport.resume_reading()
        self._serve(request)

    # -- ending ----------------------------------------------------------------------------------------

    def _reject_large_head(self) -> None:
        limit = self._listener.settings.head_bytes_max
        self._reject(431, "head_too_large", f"Request line and headers may take {limit} bytes together.")

    def _reject_large_body(self) -> None:
        limit = self._listener.settings.append_bytes_max
        self._reject(413, "body_too_large", f"A body may have {limit} bytes (append_bytes_max). Split the append.")

    def _reject(self, status: int, code: str, message: str) -> None:
        """Refuse what is coming in, after what came before it is answered; the connection ends with it."""
        self._rejection = (status, code, message)
        self._let_body_go()
        if self.busy or self._queue or self._transport is None or self._lingering:
            return
        lines = _JSON + NO_STORE + b"Connection: close\r\n"
        if status == 503:
            lines += error_lines(Unavailable(message))
        body = error_body(code, message)
        self._listener.count(b"-", status)
        self._transport.write(head(status, self._listener.common_lines, lines, len(body)) + body)
        self._linger()

    def _let_body_go(self) -> None:
        self._held -= self._body_size
        self._listener.inflight_bytes -= self._body_size
        self._body, self._more, self._body_size = b"", None, 0

    def _linger(self) -> None:
        """Closing at once with bytes unread would reset the connection and could destroy the answer on its way."""
        self._lingering = True
        self.deadline = self._listener.now + _LINGER_S
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def timed_out(self) -> None:
        """The deadline has passed."""
        if self._transport is None:
            return
        if self.paused or self._lingering or self._closing:
            self._transport.abort()
        elif self._begun:
            self._reject(408, "request_timeout", "The request did not arrive in time.")
        else:
            self.close()

    def close(self) -> None:
        """Close when everything is sent; a client that does not take it is dropped."""
        self._closing = True
        self.deadline = self._listener.now + self._listener.settings.drain_timeout_s
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def stop(self) -> None:
        """The server stops: finish what is being served, begin nothing more."""
        self._closing = True
        if self.live is not None:
            self.live.end()
        elif not self.busy:
            self.close()
