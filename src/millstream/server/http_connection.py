"""One HTTP/1.1 connection: requests are served one at a time and answered in order.

Reading them is the business of `http_receiving`.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Sequence
from socket import SO_LINGER, SOL_SOCKET
from typing import cast

from ..model.commands import Append
from ..model.errors import MillstreamError, Unavailable
from ..model.positions import format_stream_id
from ..model.replies import APPENDED, Receipt
from ..node.writer import Answer
from ..protocol.http.error_table import error_body, error_lines, status_of
from ..protocol.http.requests import Request
from ..protocol.http.responses import NO_STORE, head, options_lines, write_lines, write_status
from .descriptors import TOLD_MAX
from .http_receiving import CONTINUE, QUEUE_MAX, RequestReceiver

log = logging.getLogger(__name__)

_LINGER_S = 2.0
_RESET = struct.pack("ii", 1, 0)  # linger for no time: what is closed is reset
_JOIN_MAX = 64 << 10  # up to here one copy is cheaper than a longer list for the kernel; beyond, never copy a body
_PLAIN_APPEND = (b"POST", 204)
_PLAIN_READ = (b"GET", 200)
_ALL_METHODS = b"GET, HEAD, PUT, POST, PATCH, DELETE, OPTIONS"
_JSON = b"Content-Type: application/json\r\n"


class HttpConnection(RequestReceiver):
    __slots__ = ()

    # -- life ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class; it has all of one's methods
        self._transport.set_write_buffer_limits(high=256 << 10)
        over = self._listener.admit(self)
        if over > TOLD_MAX:
            self.abort()
        elif over > 0:
            self._reject(503, "too_many_connections", "The server has as many connections as it takes. Try again.")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._listener.forget(self)
        self._listener.inflight_bytes -= self._held
        self._held = 0
        for sink in (self._sink, self.request and self.request.sink, *(waiting.sink for waiting in self._queue)):
            if sink is not None:
                sink.abort()
        self._sink = self.request = None
        self._queue.clear()
        # The parser and we hold each other: without this we, and the request we hold, would wait for a collection.
        del self._parser
        self._begin()
        live, self.live = self.live, None
        if live is not None:
            live.cancel()

    # -- serving ---------------------------------------------------------------------------------------

    def serve(self, request: Request, append: Append | None = None) -> None:
        self.busy = True
        self.request = request
        self.deadline = 0.0
        self.cors = b""
        listener = self._listener
        try:
            if append is not None and listener.submit is not None:
                listener.submit(append, self.respond_written)
            else:
                listener.serve(self, request)
        except MillstreamError as error:
            if request.method == b"OPTIONS":
                self.respond_not_allowed(_ALL_METHODS)  # or a page would never see why its request is refused
            else:
                self.respond_error(error)
        except Exception:
            log.exception("A request failed in a way it must not: %s %s", request.method, request.path)
            self.respond_problem(500, "internal", "The server made a mistake; it is in its log.")

    def respond(
        self, status: int, lines: bytes = b"", pieces: Sequence[bytes | memoryview] = (), size: int | None = None
    ) -> None:
        """Answer the request being served. HEAD, 204 and 304 have no body; HEAD tells its length if that is known."""
        transport = self._transport
        request = self.request
        assert request is not None
        self._listener.answered[request.method, status] += 1
        if transport is None:
            return
        if size is None and status != 204 and status != 304 and (pieces or request.method != b"HEAD"):
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

    def respond_written(self, answer: Answer) -> None:
        """Answer an append. Most are plain ones, and those in as few steps as can be."""
        request, transport, listener = self.request, self._transport, self._listener
        if request is None or transport is None:
            return  # the client left while its write became durable
        if type(answer) is not Receipt:
            self.respond_error(answer)  # type: ignore[arg-type]
            return
        is_plain = answer.outcome is APPENDED and not answer.closed and answer.producer_epoch is None
        if not is_plain or self.cors or self._closing or not request.keep_alive:
            self.respond(
                write_status(answer), write_lines(answer, format_stream_id(listener.incarnation, answer.number))
            )
            return
        listener.answered[_PLAIN_APPEND] += 1
        number, tail = answer.number, answer.tail
        transport.write(listener.appended_format % (tail, number, tail, number))
        self.finish()

    def _answer_again(self, target: bytes) -> bool:
        listener, transport = self._listener, self._transport
        if listener.kept_reads is None or transport is None:
            return False
        whole = listener.kept_reads.whole(target, listener.ok_lines)
        if whole is None:
            return False
        listener.answered[_PLAIN_READ] += 1
        self.deadline = listener.idle_until
        transport.write(whole)
        return True

    def respond_plain(self, rest: bytes) -> bool:
        """`respond` with 200 and what is made already, all but the first lines; False where those are special."""
        request = self.request
        assert request is not None
        if self._transport is None or self.cors or self._closing or not request.keep_alive:
            return False
        listener = self._listener
        listener.answered[request.method, 200] += 1
        self._transport.write(listener.ok_lines + rest)
        self.finish()
        return True

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

    def respond_not_allowed(self, methods: bytes) -> None:
        """405, with the methods that the resource takes; to OPTIONS that is the answer."""
        assert self.request is not None
        if self.request.method == b"OPTIONS":
            self.respond(204, options_lines(methods))
            return
        self.respond_problem(405, "method_not_allowed", f"Use one of {methods.decode()}.", b"Allow: %b\r\n" % methods)

    def begin_stream(self, lines: bytes, size: int | None = None) -> bool:
        """Start a response that is made while it is sent; False when the client is gone."""
        request = self.request
        assert request is not None
        self._listener.answered[request.method, 200] += 1
        if self._transport is None:
            return False
        if size is None and self.is_chunked():
            lines += b"Transfer-Encoding: chunked\r\n"
        elif size is None or not request.keep_alive or self._closing:
            lines += b"Connection: close\r\n"
        self._transport.write(head(200, self._listener.common_lines, self.cors + lines, size))
        return True

    def is_chunked(self) -> bool:
        return self.request is not None and self.request.version == "1.1"

    def send(self, data: bytes | memoryview) -> None:
        """More of a streamed response; already framed if it must be."""
        if self._transport is not None:
            self._transport.write(data)

    def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        if self._transport is not None:
            self._transport.writelines(pieces)

    def end_stream(self, sized: bool = False) -> None:
        self.live = None
        if self._transport is None:
            return
        if sized:
            pass  # its length has said where it ends
        elif self.is_chunked():
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
        if request.sink is not None:
            request.sink.abort()  # nobody wanted it, or it is complete and this does nothing
        size = request.body_size
        if size:
            self._held -= size
            listener.inflight_bytes -= size
        if not request.keep_alive or self._closing:
            self.close()
            return
        self.busy = False
        if self._owes_continue and not self._queue and self._transport is not None:
            self._owes_continue = False
            self._transport.write(CONTINUE)
        if self._queue or self._rejection is not None or self._ended:
            if not self.paused:
                self._idle()
        elif not self.paused:
            self.deadline = listener.idle_until

    def _idle(self) -> None:
        if self._queue:
            self.busy = True
            self._loop.call_soon(self._next)
        elif self._rejection is not None:
            self._reject(*self._rejection)
        elif self._ended:
            self.close()
        else:
            self.deadline = self._listener.idle_until

    def _next(self) -> None:
        if self._transport is None or not self._queue:
            return
        request = self._queue.popleft()
        if len(self._queue) == QUEUE_MAX - 1:
            self._transport.resume_reading()
        self.serve(request)

    # -- ending ----------------------------------------------------------------------------------------

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
        self._listener.answered[b"-", status] += 1
        self._transport.write(head(status, self._listener.common_lines, lines, len(body)) + body)
        self._linger()

    def _linger(self) -> None:
        """Closing at once with bytes unread would reset the connection and could destroy the answer on its way."""
        self._lingering = True
        self._listener.lingering[self] = None
        if not self.paused:
            self._drain.watch_later()
            self.deadline = self._listener.now + _LINGER_S
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def timed_out(self) -> None:
        """The deadline has passed."""
        if self._transport is None:
            return
        if self.paused or self._lingering or self._closing:
            if self._drain.has_moved(self._transport):
                self.deadline = self._listener.now + self._listener.settings.drain_timeout_s
            else:
                log.info("A client that took nothing for drain_timeout_s was dropped in the middle of an answer.")
                self.abort()
        elif self._begun:
            self._reject(408, "request_timeout", "The request did not arrive in time.")
        else:
            self.close()

    def close(self) -> None:
        """Close when everything is sent; a client that does not take it is dropped."""
        self._closing = True
        self._watch_drain()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection, with a reset: an answer without a length must not look as if this were its end."""
        transport = self._transport
        if transport is not None:
            socket = transport.get_extra_info("socket")
            if socket is not None and socket.fileno() >= 0:
                socket.setsockopt(SOL_SOCKET, SO_LINGER, _RESET)
            transport.abort()

    def stop(self) -> None:
        """The server stops: finish what is being served, begin nothing more."""
        self._closing = True
        if self.live is not None:
            self.live.end()
        elif not self.busy:
            self.close()
