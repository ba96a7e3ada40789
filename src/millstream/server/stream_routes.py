"""What each HTTP method does to a stream: translate, ask the node, answer."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine

import msgspec

from ..model.commands import Append, Body, Command, Create
from ..model.errors import MillstreamError, stream_recreated
from ..model.etags import is_among, state_etag
from ..model.media import is_json, is_text
from ..model.offsets import NOW, parse_offset
from ..model.replies import Outcome, Receipt
from ..node import Cut, Stream
from ..node.node import Node
from ..node.writer import Answer
from ..protocol.http import headers as h
from ..protocol.http.cursors import next_cursor
from ..protocol.http.json_mode import join_messages
from ..protocol.http.requests import (
    ReadQuery,
    Request,
    append_command,
    create_command,
    delete_command,
    read_query,
)
from ..protocol.http.responses import (
    NO_STORE,
    cache_lines,
    content_lines,
    metadata_lines,
    read_lines,
    write_lines,
    write_status,
)
from ..protocol.http.sse import UNFINISHED_MAX, unfinished_bytes
from .compression import COMPRESS_MIN, compress, wanted_encoding
from .http_connection import HttpConnection
from .live import NO_EVENT, EventFeed, LongPoll, send_nothing_new
from .long_answers import SHORT_BYTES, send_long
from .read_cache import ReadAnswer, ReadCache
from .settings import Settings

log = logging.getLogger(__name__)

METHODS = b"GET, HEAD, PUT, POST, DELETE, OPTIONS"


class StreamRoutes:
    """The handlers of one stream's URL, the same behind every prefix."""

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.settings = settings
        self._part_bytes = settings.part_bytes
        self._read_bytes_max = settings.read_bytes_max or sys.maxsize
        self.last_event = NO_EVENT
        self._tasks: set[asyncio.Task[None]] = set()
        self.cache = ReadCache(node.sightings, settings.read_cache_bytes)

    def serve(self, conn: HttpConnection, request: Request, key: str, needs_bucket: bool = False) -> None:
        """`needs_bucket`: the surface on which a missing bucket is not made on the way."""
        method = request.method
        if method == b"POST":
            self._append(conn, request, key)
        elif method == b"GET":
            self._read(conn, request, key)
        elif method == b"PUT":
            self._create(conn, request, key, needs_bucket)
        elif method == b"HEAD":
            self._head(conn, request, key)
        elif method == b"DELETE":
            self.node.submit(delete_command(request, key), lambda answer: self._deleted(conn, answer))
        else:
            conn.respond_not_allowed(METHODS)

    # -- writing ---------------------------------------------------------------------------------------

    def _append(self, conn: HttpConnection, request: Request, key: str) -> None:
        if len(request.body) > self._part_bytes:
            self.in_background(conn, self._append_large(conn, request, key))
            return
        self.node.submit(append_command(request, key), conn.respond_written)

    def _create(self, conn: HttpConnection, request: Request, key: str, needs_bucket: bool) -> None:
        if len(request.body) > self._part_bytes:
            self.in_background(conn, self._create_large(conn, request, key, needs_bucket))
            return
        self.node.submit(create_command(request, key, needs_bucket), lambda answer: self._created(conn, answer))

    def _created(self, conn: HttpConnection, answer: Answer) -> None:
        request, receipt = conn.request, conn.receipt(answer)
        if request is None or receipt is None:
            return
        lines = write_lines(receipt, self.node.stream_id(receipt.number)) + content_lines(receipt.content_type)
        if receipt.outcome is Outcome.CREATED:
            lines += request.location_line
        conn.respond(write_status(receipt), lines)

    def _deleted(self, conn: HttpConnection, answer: Answer) -> None:
        receipt = conn.receipt(answer)
        if receipt is not None:
            stream_id = self.node.stream_id(receipt.number).encode()
            conn.respond(204, b"Stream-Id: %b\r\n%b" % (stream_id, NO_STORE))

    # -- large bodies ----------------------------------------------------------------------------------

    async def _append_large(self, conn: HttpConnection, request: Request, key: str) -> None:
        command = await asyncio.to_thread(append_command, request, key)
        answer = await self._submit_large(command)
        conn.respond_written(answer)

    async def _create_large(self, conn: HttpConnection, request: Request, key: str, needs_bucket: bool) -> None:
        command = await asyncio.to_thread(create_command, request, key, needs_bucket)
        answer = await self._submit_large(command)
        self._created(conn, answer)

    async def _submit_large(self, command: Append | Create) -> Answer:
        """Journal the body in parts first, then decide; a refusal drops the parts again."""
        body = command.body
        if body.fault is not None or not body.payload:
            return await self.submit(command)
        upload = await self.node.writer.stage(body.payload)
        lengths = [len(body.payload)] if body.lengths is None else body.lengths
        staged = Body(b"", lengths, None, upload)
        answer = await self.submit(msgspec.structs.replace(command, body=staged))
        if not isinstance(answer, Receipt) or answer.outcome not in (Outcome.APPENDED, Outcome.CREATED):
            self.node.writer.drop_upload(upload)
        return answer

    async def submit(self, command: Command) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.node.submit(command, answered.set_result)
        return await answered

    def in_background(self, conn: HttpConnection, work: Coroutine[None, None, None]) -> None:
        """Serve a request that has to wait for threads; errors are answered as everywhere."""
        task = asyncio.create_task(self._answering(conn, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answering(self, conn: HttpConnection, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except MillstreamError as error:
            if conn.request is not None:
                conn.respond_error(error)
        except Exception:
            log.exception("A request failed in a way it must not.")
            if conn.request is not None:
                conn.respond_problem(500, "internal", "The server made a mistake; it is in its log.")

    # -- reading ---------------------------------------------------------------------------------------

    def _head(self, conn: HttpConnection, request: Request, key: str) -> None:
        query = read_query(request)
        stream = self.node.visible(key)
        stream_id = self.node.stream_id(stream.number)
        if query.stream_id is not None:
            self.check_incarnation(query.stream_id, stream)
        lines = metadata_lines(stream, stream_id, self.node.seconds_left(stream))
        wanted = request.headers.get(h.IF_NONE_MATCH)
        if wanted is not None and is_among(wanted.decode("latin-1"), state_etag(stream_id, stream.tail, stream.closed)):
            conn.respond(304, lines)
            return
        conn.respond(200, lines)

    def _read(self, conn: HttpConnection, request: Request, key: str) -> None:
        query = read_query(request)
        stream = self.node.visible(key)
        if query.stream_id is not None:
            self.check_incarnation(query.stream_id, stream)
        offset = query.offset
        if query.live == "sse" and h.LAST_EVENT_ID in request.headers:
            offset = parse_offset(request.headers[h.LAST_EVENT_ID].decode("latin-1"))
        elif query.since_ms is not None:
            self.in_background(conn, self._read_since(conn, stream, query))
            return
        self._read_from(conn, stream, self.node.resolve(stream, offset), query)

    async def _read_since(self, conn: HttpConnection, stream: Stream, query: ReadQuery) -> None:
        assert query.since_ms is not None
        start = await self.node.reader.offset_since(stream, query.since_ms)
        if conn.request is not None:
            self._read_from(conn, self.node.present(stream), start, query)

    def _read_from(self, conn: HttpConnection, stream: Stream, start: int, query: ReadQuery) -> None:
        self.node.renew(stream)
        if query.live == "sse":
            self._start_feed(conn, stream, start, query)
        elif query.live == "long-poll" and start == stream.tail:
            if stream.closed:
                send_nothing_new(self, conn, stream, query)
            else:
                LongPoll(self, conn, stream, start, query)
        else:
            self.send_range(conn, stream, start, query)

    def _start_feed(self, conn: HttpConnection, stream: Stream, start: int, query: ReadQuery) -> None:
        """Start an SSE response. Whether a JSON stream can be read from here must be known before its head is out, and
        whether the tail of a text is inside a character."""
        looked_at = start
        if is_json(stream.content_type):
            is_plain = start in (stream.tail, stream.earliest)
        else:
            is_plain = query.offset != NOW or start != stream.tail or not is_text(stream.content_type)
            looked_at = start if is_plain else max(stream.earliest, start - UNFINISHED_MAX)
        if is_plain or looked_at == stream.tail:
            EventFeed(self, conn, stream, start, query).start()
        elif (cut := self.node.reader.read_now(stream, looked_at, UNFINISHED_MAX)) is not None and cut.end >= start:
            last = b"".join(cut.pieces)
            EventFeed(self, conn, stream, _whole_start(stream, start, last), query).start()
        else:
            self.in_background(conn, self._start_cold(conn, stream, start, looked_at, query))

    async def _start_cold(
        self, conn: HttpConnection, stream: Stream, start: int, looked_at: int, query: ReadQuery
    ) -> None:
        if looked_at == start:  # of a JSON stream: it is refused unless a message begins there
            last = b""
            await self.node.reader.read(stream, start, 1)
        else:
            last = await self.node.reader.bytes_between(stream, looked_at, start)
        EventFeed(self, conn, self.node.present(stream), _whole_start(stream, start, last), query).start()

    def check_incarnation(self, wanted: str, stream: Stream) -> None:
        if wanted != self.node.stream_id(stream.number):
            raise stream_recreated()

    def send_range(self, conn: HttpConnection, stream: Stream, start: int, query: ReadQuery) -> None:
        """Answer with what lies between `start` and the tail, or with as much of it as may be sent at once."""
        limit = self._read_bytes_max if query.max_bytes is None else min(query.max_bytes, self._read_bytes_max)
        if limit > SHORT_BYTES and stream.tail - start > SHORT_BYTES:
            self.in_background(conn, send_long(self, conn, stream, start, limit, query))
            return
        try:
            cut = self.node.reader.read_now(stream, start, min(limit, SHORT_BYTES))
        except MillstreamError as error:
            conn.respond_error(error)
            return
        if cut is not None and (cut.end == stream.tail or limit <= SHORT_BYTES):
            self.send_cut(conn, stream, cut, query)
        else:
            self.in_background(conn, self._send_cold(conn, stream, start, limit, query))

    async def _send_cold(self, conn: HttpConnection, stream: Stream, start: int, limit: int, query: ReadQuery) -> None:
        tail = stream.tail
        cut = await self.node.reader.read(stream, start, min(limit, SHORT_BYTES))
        if conn.request is None:
            return
        if cut.end < tail and limit > SHORT_BYTES:  # it lies in very many blocks
            await send_long(self, conn, stream, start, limit, query)
        else:
            self.send_cut(conn, stream, cut, query)

    def send_cut(self, conn: HttpConnection, stream: Stream, cut: Cut, query: ReadQuery) -> None:
        request = conn.request
        assert request is not None
        lines, etag = self.range_lines(stream, cut.start, cut.end, query)
        content, pieces = content_lines(stream.content_type), self._body(stream, cut)
        if not etag:
            conn.respond(200, lines + content, pieces)
            return
        answer = ReadAnswer(lines, content, etag.encode(), pieces, sum(map(len, pieces)))
        if query.live is None and query.since_ms is None:
            self.cache.put(request.target, stream, answer)
        self._send_answer(conn, request, answer)

    def range_lines(self, stream: Stream, start: int, end: int, query: ReadQuery) -> tuple[bytes, str]:
        """What an answer says about its range, and the range's tag; none for what came after `now`."""
        lines, etag = read_lines(stream, self.node.stream_id(stream.number), start, end)
        if query.live is not None and not (stream.closed and end == stream.tail):
            lines += b"Stream-Cursor: %d\r\n" % next_cursor(self.node.clock.commit_ms(), query.cursor)
        if query.offset == NOW:
            return lines + NO_STORE, ""
        seconds_left = None if stream.lease is None else self.node.seconds_left(stream)
        return lines + cache_lines(seconds_left, self.node.is_private(stream.key)), etag

    def answer_again(self, conn: HttpConnection, request: Request) -> bool:
        """Answer a catch-up read that was answered before, if nothing has changed since."""
        answer = self.cache.get(request.target)
        if answer is None:
            return False
        self._send_answer(conn, request, answer)
        return True

    def _send_answer(self, conn: HttpConnection, request: Request, answer: ReadAnswer) -> None:
        headers = request.headers
        wanted = headers.get(h.IF_NONE_MATCH)
        if wanted is not None and is_among(wanted.decode("latin-1"), answer.etag.decode()):
            conn.respond(304, b"%bETag: %b\r\n" % (answer.lines, answer.etag))
            return
        if h.ACCEPT_ENCODING in headers and answer.size >= COMPRESS_MIN:
            encoding = wanted_encoding(headers[h.ACCEPT_ENCODING])
            if encoding is not None:
                self._send_encoded(conn, request.target, answer, encoding)
                return
        if not (answer.plain and conn.respond_plain(answer.plain)):
            conn.respond(200, answer.plain_lines(), answer.pieces, answer.size)

    def _body(self, stream: Stream, cut: Cut) -> list[bytes]:
        return join_messages(cut.pieces) if is_json(stream.content_type) else cut.pieces

    def _send_encoded(self, conn: HttpConnection, target: bytes, answer: ReadAnswer, encoding: bytes) -> None:
        packed = self.cache.get_variant(target, encoding)
        if packed is None:
            self.in_background(conn, self._send_compressed(conn, target, answer, encoding))
        else:
            conn.respond(200, packed.plain_lines(), packed.pieces, packed.size)

    async def _send_compressed(self, conn: HttpConnection, target: bytes, answer: ReadAnswer, encoding: bytes) -> None:
        """Off the loop. The same range in other bytes is only weakly the same."""
        body = await asyncio.to_thread(compress, answer.pieces, encoding)
        content = b"%bContent-Encoding: %b\r\n" % (answer.content, encoding)
        packed = ReadAnswer(answer.lines, content, b"W/" + answer.etag, [body], len(body))
        self.cache.put_variant(target, encoding, answer, packed)
        if conn.request is not None:
            conn.respond(200, packed.plain_lines(), packed.pieces, packed.size)


def _whole_start(stream: Stream, start: int, last: bytes) -> int:
    """Where events start whose first character may have begun in the last bytes before `start`."""
    if is_json(stream.content_type) or stream.closed:
        return start
    return start - unfinished_bytes(last)
