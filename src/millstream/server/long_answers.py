"""Catch-up answers that are too long to be made at once: all from an offset to the tail as of the request.

Official clients make one request and take its end for the stream's. So the length is announced, and an answer that
cannot go on (damage, a trim, a delete) is cut before it, for everybody to see.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from ..model.errors import NotFound
from ..model.etags import is_among
from ..model.media import is_json
from ..node import Stream
from ..protocol.http import headers as h
from ..protocol.http.requests import ReadQuery, Request
from ..protocol.http.responses import content_lines
from .compression import Piece, compressed, wanted_encoding
from .http_connection import HttpConnection
from .streamed import Politeness, StreamedAnswer

if TYPE_CHECKING:
    from .stream_routes import StreamRoutes

SHORT_BYTES = 1 << 20  # what is not longer is answered at once, and may be kept for who asks again
_REST_S = 0.01  # after each piece while others write: it goes out at some 70 MB a second, and leaves them the machine
_COPIED_MAX = 32 << 10  # pieces and messages that are smaller on average are put together first
_RENEWED_EACH_S = 0.5


async def send_long(
    routes: StreamRoutes, conn: HttpConnection, stream: Stream, start: int, limit: int, query: ReadQuery
) -> None:
    """Answer with everything from `start` on, up to `limit` bytes of it."""
    reader, end = routes.node.reader, stream.tail
    if start + limit < end:
        end = await reader.boundary(stream, start + limit)
    if end <= start:  # a single message is larger: on a JSON stream it is sent nevertheless
        cut = await reader.read(stream, start, limit)
        if conn.request is not None:
            routes.send_cut(conn, stream, cut, query)
    elif conn.request is not None:
        await _LongAnswer(routes, conn, stream, start, end).send(conn.request, query)


class _LongAnswer:
    def __init__(self, routes: StreamRoutes, conn: HttpConnection, stream: Stream, start: int, end: int) -> None:
        self._routes = routes
        self._conn = conn
        self._stream = stream
        self._start = start
        self._end = end
        self._is_json = is_json(stream.content_type)
        self._read = routes.node.long_read(stream, start, end)

    async def send(self, request: Request, query: ReadQuery) -> None:
        lines, etag = self._routes.range_lines(self._stream, self._start, self._end, query)
        wanted = request.headers.get(h.IF_NONE_MATCH)
        if etag and wanted is not None and is_among(wanted.decode("latin-1"), etag):
            self._conn.respond(304, b"%bETag: %b\r\n" % (lines, etag.encode()))
            return
        lines += content_lines(self._stream.content_type)
        encoding = wanted_encoding(request.headers.get(h.ACCEPT_ENCODING, b""))
        if request.version == "1.0":
            encoding = None  # it knows no chunks: what is cut must be shorter than announced
        pieces, size = self._pieces(), None
        if encoding is None:
            size = await self._size()
        else:
            lines += b"Content-Encoding: %b\r\n" % encoding
            etag = etag and "W/" + etag
            pieces = compressed(pieces, encoding)
        if etag:
            lines += b"ETag: %b\r\n" % etag.encode()
        if self._conn.request is not None:
            async with self._renewals():
                await StreamedAnswer(self._conn, lines, pieces, size).send()

    async def _size(self) -> int:
        size = self._end - self._start
        # Two brackets, and a comma between any two messages.
        return size + await self._read.count() + 1 if self._is_json else size

    async def _pieces(self) -> AsyncGenerator[Piece]:
        politeness, before = Politeness(self._routes.node, _REST_S, busy_commits=1), b"["
        async with aclosing(self._read.cuts()) as cuts:
            async for cut in cuts:
                pieces, between = cut.pieces, b"," if self._is_json else b""
                if cut.end - cut.start < _COPIED_MAX * len(pieces):
                    pieces = [between.join(pieces)]
                for piece in pieces:
                    if self._is_json:
                        yield before
                        before = between
                    yield piece
                if (rest_s := politeness.rest_s()) > 0:
                    await asyncio.sleep(rest_s)
        if self._is_json:
            yield b"]"

    @asynccontextmanager
    async def _renewals(self) -> AsyncIterator[None]:
        """A stream whose TTL is renewed by reads does not end under one that takes longer."""
        lease = self._stream.lease
        if lease is None or not lease.sliding:
            yield
            return
        renewing = asyncio.create_task(self._renew())
        try:
            yield
        finally:
            renewing.cancel()

    async def _renew(self) -> None:
        node = self._routes.node
        with suppress(NotFound):  # the read finds that out, and says so
            while True:
                node.renew(node.present(self._stream))
                await asyncio.sleep(_RENEWED_EACH_S)
