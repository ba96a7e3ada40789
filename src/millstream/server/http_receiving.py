"""The receiving half of an HTTP/1.1 connection: bytes in, requests out one at a time.

Hot code: an `asyncio.Protocol` fed to llhttp, no layers between (measured 3x a raw ASGI server; notes in
`docs/decisions/`); a request that is like those before it does without the parser (`known_heads`). What a client
pipelines behind the request being served waits parsed, and reading pauses. A body is collected in memory, up to
`append_bytes_max`; where a route claims a large one, it goes to the route's `BodySink` piece by piece instead.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import TYPE_CHECKING, Protocol

import httptools

from ..model.commands import Append
from ..model.errors import MillstreamError
from ..protocol.http import headers as h
from ..protocol.http.error_table import status_of
from ..protocol.http.requests import PlainAppend, PlainRead, Request, origin_form
from .draining import Drain

if TYPE_CHECKING:
    from .http_listener import HttpListener

QUEUE_MAX = 32  # pipelined requests before reading pauses
_BODY_PROGRESS = 64 << 10  # a body must bring this much to earn more time
_PATIENCE_MAX = 64  # requests in a row that resemble no known one, until a connection's are not looked up for a while
_PAUSE = 256  # requests of such a connection that go to the parser at once
_REQUEST_LINE_REST = len("GET  HTTP/1.1\r\n")
_HEADER_LINE_REST = len(": \r\n")
_METHOD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?: |\Z)")  # how any could begin
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class LiveRead(Protocol):
    """What a connection is busy with while a response goes on: a wait at the tail, or a long answer."""

    def cancel(self) -> None:
        """The client is gone."""

    def end(self) -> None:
        """The server stops: finish cleanly."""

    def writable(self) -> None:
        """The client has drained what it was sent."""


class BodySink(Protocol):
    """Where a large request body goes while it arrives."""

    def feed(self, data: bytes) -> bool:
        """Take the next piece; False asks for a pause until `RequestReceiver.resume_body`. May raise a refusal."""
        ...

    def abort(self) -> None:
        """The rest will not come: forget what was taken."""


class RequestReceiver(asyncio.Protocol):
    """What `HttpConnection` is made of on its way in. It serves and refuses; this reads."""

    __slots__ = (
        "_begun",
        "_body",
        "_body_size",
        "_chunk",
        "_closing",
        "_drain",
        "_ended",
        "_head_size",
        "_headers",
        "_held",
        "_lines_size",
        "_lingering",
        "_listener",
        "_loop",
        "_more",
        "_offers",
        "_owes_continue",
        "_parser",
        "_patience",
        "_progress",
        "_queue",
        "_rejection",
        "_shares_chunk",
        "_sink",
        "_transport",
        "_url",
        "_whole",
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
        self.deadline = listener.idle_until
        self._begun = False  # a request is arriving
        self._head_size = 0  # what has arrived with its head; of a chunk that it shares with others, nothing
        self._chunk = 0
        self._shares_chunk = False
        self._offers = False  # an upgrade, with the head that has just been parsed
        self._whole: Request | None = None  # the request that began with the chunk and is complete
        self._patience = _PATIENCE_MAX
        self._drain = Drain()
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body = b""
        self._more: list[bytes] | None = None  # of a body that comes in several pieces
        self._body_size = 0
        self._sink: BodySink | None = None
        self._progress = 0
        self._lines_size = 0  # what is not in `_headers`: of repeated names, and of trailers

    # -- transport -------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self.paused = True
        self._watch_drain()

    def resume_writing(self) -> None:
        self.paused = False
        self.deadline = 0.0
        if self.live is not None:
            self.live.writable()
        elif self._lingering or (self._transport is not None and self._transport.is_closing()):
            self._watch_drain()  # there is a rest that must be taken as well
        elif not self.busy:
            self._idle()

    def _watch_drain(self) -> None:
        """From now on the client has to take something in time."""
        self._drain.watch(self._transport)
        self.deadline = self._listener.now + self._listener.settings.drain_timeout_s

    def eof_received(self) -> bool:
        """The client has said all it had to say. It still gets its answers; a live read ends, as it may be gone."""
        self._ended = True
        return self.live is None and (self.busy or bool(self._queue))

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._closing or self._rejection is not None:
            return
        is_fresh = not self._begun and self._patience > 0
        if is_fresh and not self.busy and not self.paused and self._serve_known(data):
            return  # nothing is queued either: that would be served, or wait for a pause to end
        self._chunk = len(data)
        self._shares_chunk = False
        if not self._begun:
            if not self.busy:
                self.deadline = self._listener.idle_until
        elif not self.receiving:
            self._head_size += self._chunk
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as stop:
            if not self._parse_on(stop, data):
                return
        whole, self._whole = self._whole, None
        if self._begun:
            if not self.receiving and self._head_size > self._listener.settings.head_bytes_max:
                self._reject_large_head()
        elif is_fresh and whole is not None:
            self._listener.heads.learn(data, whole)
        if self._patience <= 0:
            self._patience = self._patience - 1 if self._patience > -_PAUSE else 1

    def _serve_known(self, data: bytes) -> bool:
        """Serve a request whose header lines are known, without the parser: it stands between two requests."""
        known = self._listener.heads.recall(data)
        if known is None:
            self._patience -= 1
            return False
        if self._patience < _PATIENCE_MAX:
            self._patience += 1
        if isinstance(known, PlainAppend):
            if self._listener.submit is None:
                return False  # it is held until there is one, and for that it must be known in full
            if self._takes(known.request.body_size):
                self.serve(known.request, known.command)
        elif type(known) is PlainRead and self._answer_again(known.asked):
            pass
        elif not known.body_size or self._takes(known.body_size):
            self.serve(known)
        return True

    def _parse_on(self, stop: Exception, data: bytes) -> bool:
        """Go on where the parser stopped; False if what has come cannot be read, which is answered.

        With an offer to upgrade it stops behind the head, as the rest could be another protocol's. The head is fed once
        more then, without the offer, and after it the rest.
        """
        pieces: list[bytes | memoryview] = [data]
        while isinstance(stop, httptools.HttpParserUpgrade):
            if not self._offers or self._rejection is not None:
                self._closing = True  # a tunnel was asked for, and is refused: the rest is not for us
                return True
            pieces += (memoryview(pieces.pop())[stop.args[0] :], self._head_without_offer())
            self._offers = False
            self._parser = httptools.HttpRequestParser(self)
            try:
                while pieces:
                    self._parser.feed_data(pieces[-1])
                    pieces.pop()
                return True
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as next_stop:
                stop = next_stop
        self._reject_unreadable(stop, data)
        return False

    def _head_without_offer(self) -> bytes:
        parser = self._parser
        lines = [b"%b: %b\r\n" % line for line in self._headers.items() if line[0] != h.UPGRADE]
        start = parser.get_method(), self._url, parser.get_http_version().encode()
        return b"%b %b HTTP/%b\r\n%b\r\n" % (*start, b"".join(lines))

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
        value = value.strip()  # white space around a value is not part of it (RFC 9112, section 5.1)
        headers = self._headers
        if name in headers:
            self._lines_size += len(name) + 2
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
        self._lines_size += len(name) + len(value)
        if self._lines_size > self._listener.settings.head_bytes_max:
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
        if h.UPGRADE in headers and self._parser.should_upgrade():
            self._offers, self.receiving = True, False
            return
        if h.TRANSFER_ENCODING in headers:
            if h.CONTENT_LENGTH in headers:
                self._reject(400, "ambiguous_length", "Content-Length and Transfer-Encoding exclude each other.")
                return
            if headers[h.TRANSFER_ENCODING].lower() != b"chunked":
                self._reject(400, "bad_transfer_encoding", "The only Transfer-Encoding understood is chunked.")
                return
        if not self._accepts_length(headers.get(h.CONTENT_LENGTH)):
            return
        if h.EXPECT in headers and self._parser.get_http_version() != "1.0":  # which knows no 1xx
            self._expect(headers[h.EXPECT])

    def _accepts_length(self, length: bytes | None) -> bool:
        """Whether the body may come; a large one may be claimed by a route, which then bounds it."""
        size = int(length) if length is not None and len(length) < 20 else 0
        if size > self._listener.settings.part_bytes or h.TRANSFER_ENCODING in self._headers:
            try:
                self._sink = self._listener.claim_body(self, self._request(b""))
            except MillstreamError as error:
                self._reject(status_of(error), error.code, error.message)
                return False
        if self._sink is None and size > self._listener.settings.append_bytes_max:
            self._reject_large_body()
            return False
        return True

    def _count_head(self) -> int:
        headers = self._headers
        line_ends = _REQUEST_LINE_REST + _HEADER_LINE_REST * len(headers) + self._lines_size
        return len(self._url) + sum(map(len, headers)) + sum(map(len, headers.values())) + line_ends

    def on_body(self, data: bytes) -> None:
        if self._rejection is not None:
            return
        if self._sink is not None:
            self._feed_sink(self._sink, data)
            return
        size = len(data)
        if not self._body_size:
            self._body = data
        elif self._more is None:
            self._more = [self._body, data]
        else:
            self._more.append(data)
        if not self._takes(size):
            return
        listener = self._listener
        self._body_size += size
        if self._body_size > listener.settings.append_bytes_max:
            self._reject_large_body()
        elif self._body_size - self._progress >= _BODY_PROGRESS:
            self._progress = self._body_size
            self.deadline = listener.idle_until

    def _takes(self, size: int) -> bool:
        """Whether there is room for more of a body; it is counted then, until `finish` or a refusal."""
        listener = self._listener
        if listener.inflight_bytes + size > listener.settings.inflight_bytes_max:
            self._reject(503, "too_many_bodies", "The server holds as many request bodies as it takes. Try again.")
            return False
        self._held += size
        listener.inflight_bytes += size
        return True

    def on_message_complete(self) -> None:
        if self._offers:
            return
        self.receiving = False
        self._owes_continue = False
        if self._rejection is not None:
            self._reject(*self._rejection)
            return
        request = self._request(self._body if self._more is None else b"".join(self._more))
        self._sink = None  # the request's from here on
        self._begun = False
        self._whole = None if self._shares_chunk else request
        self._shares_chunk = True
        if self.busy or self.paused:
            self._queue.append(request)
            if len(self._queue) >= QUEUE_MAX and self._transport is not None:
                self._transport.pause_reading()
        else:
            self.serve(request)

    def _request(self, body: bytes) -> Request:
        parser = self._parser
        headers = self._headers
        path, _, query = self._url.partition(b"?")
        method, keep_alive, version = parser.get_method(), parser.should_keep_alive(), "1.1"
        if not keep_alive or b"connection" in headers:
            # Only HTTP/1.1 keeps a connection without being asked to; the parser formats its answer each time.
            version = parser.get_http_version()
            keep_alive = keep_alive and version == "1.1"
        if path[:1] != b"/":
            host, path = origin_form(path)
            if host is not None and (h.HOST in headers or version != "1.1"):
                headers[h.HOST] = host  # RFC 9112, section 3.2.2: whatever the header says
            keep_alive = keep_alive and method != b"CONNECT"
        return Request(method, path, query, headers, body, keep_alive, version, self._sink, len(body))

    def _feed_sink(self, sink: BodySink, data: bytes) -> None:
        listener = self._listener
        self._progress += len(data)
        if self._progress >= _BODY_PROGRESS:
            self._progress = 0
            self.deadline = listener.idle_until
        try:
            takes_more = sink.feed(data)
        except MillstreamError as error:
            self._reject(status_of(error), error.code, error.message)
            return
        if not takes_more and self._transport is not None:
            self._transport.pause_reading()

    def resume_body(self) -> None:
        """The sink takes more."""
        if self._transport is not None and not self._transport.is_closing():
            self.deadline = self._listener.idle_until
            self._transport.resume_reading()

    def _expect(self, value: bytes) -> None:
        if value.lower() != b"100-continue":
            self._reject(417, "bad_expectation", "The only expectation understood is 100-continue.")
        elif self._transport is not None and not self.busy and not self._queue:
            self._transport.write(CONTINUE)
        else:
            self._owes_continue = True  # once the requests before it are answered

    # -- refusing ----------------------------------------------------------------------------------------

    def _reject_unreadable(self, error: Exception, data: bytes) -> None:
        is_method = isinstance(error, httptools.HttpParserInvalidMethodError) and not self._shares_chunk
        if is_method and _METHOD.match(data):
            self._reject(
                501, "unknown_method", "This method is not known here. Methods are in upper case, such as GET."
            )
        else:
            self._reject(400, "malformed_request", f"This is not valid HTTP/1.1: {error}.")

    def _reject_large_head(self) -> None:
        limit = self._listener.settings.head_bytes_max
        self._reject(431, "head_too_large", f"Request line and headers may take {limit} bytes together.")

    def _reject_large_body(self) -> None:
        limit = self._listener.settings.append_bytes_max
        self._reject(413, "body_too_large", f"A body may have {limit} bytes (append_bytes_max). Split the append.")

    def _let_body_go(self) -> None:
        self._held -= self._body_size
        self._listener.inflight_bytes -= self._body_size
        if self._sink is not None:
            self._sink.abort()
            self._sink = None
        self._body, self._more, self._body_size = b"", None, 0

    # -- the other half ------------------------------------------------------------------------------------

    def serve(self, request: Request, append: Append | None = None) -> None:
        """Serve a whole request; or what it asks for, if that is known."""
        raise NotImplementedError

    def _answer_again(self, target: bytes) -> bool:
        """Answer a plain read as it was answered before, if that is kept and holds; in as few steps as can be."""
        raise NotImplementedError

    def _reject(self, status: int, code: str, message: str) -> None:
        """Refuse what is coming in, after what came before it is answered."""
        raise NotImplementedError

    def _idle(self) -> None:
        """Nothing is being served: go on with what waits."""
        raise NotImplementedError
