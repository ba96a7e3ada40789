"""Transactions: stage, commit, ask, drop. Everything that takes its time runs beside the connection."""

from __future__ import annotations

import asyncio

from ..model.errors import TooLarge, TransactionRefused, Unavailable
from ..node.clearing import clear_away
from ..node.node import Node
from ..node.staged_parts import body_name
from ..node.transactions import PartName
from ..protocol.http.extension.transactions import (
    PARTS_SHOWN_MAX,
    TransactionPath,
    application_body,
    committed_body,
    is_arrow,
    parse_commit,
    parse_path,
    part_figures,
    refused_body,
    staged_body,
    version_body,
)
from ..protocol.http.requests import Request, check_write
from ..protocol.http.responses import NO_STORE
from ..storage.transactions import arrow
from .body_sinks import ObjectSink, UnwantedSink, not_stored
from .http_connection import HttpConnection
from .http_receiving import BodySink, RequestReceiver
from .stream_routes import StreamRoutes

_JSON = b"Content-Type: application/json\r\n"
_METHODS = {1: b"GET, HEAD, DELETE, OPTIONS", 2: b"GET, HEAD, POST, DELETE, OPTIONS", 3: b"PUT, OPTIONS"}


class PartSink(ObjectSink):
    """Takes gigabytes as long as the node takes writes at all: the space that is left belongs to the journal."""

    def __init__(self, conn: RequestReceiver, node: Node, name: str, bytes_max: int, too_large: TooLarge) -> None:
        super().__init__(conn, node.objects, name, bytes_max, too_large)
        self._transactions = node.transactions

    def feed(self, data: bytes) -> bool:
        self._transactions.check_room(0)
        return super().feed(data)


class TransactionRoutes:
    def __init__(self, streams: StreamRoutes) -> None:
        self._node = streams.node
        self._transactions = streams.node.transactions
        self._settings = streams.settings
        self._in_background = streams.in_background
        self._arrow_is_available = arrow.is_available()
        self._bodies = 0

    def claim_body(
        self, conn: RequestReceiver, request: Request, bucket: str, rest: tuple[str, ...]
    ) -> BodySink | None:
        """A part goes to the disk while it arrives. What can be refused is refused before."""
        path = parse_path(bucket, rest)
        if path.part is None or path.version is None:
            return None
        is_arrow(request.headers, self._arrow_is_available)
        limit = self._settings.staged_part_bytes_max
        too_large = TooLarge(f"A part may have {limit} bytes (staged_part_bytes_max).", code="body_too_large")
        if not self._transactions.admit(bucket, path.app, path.version, path.part):
            return UnwantedSink(limit, too_large)
        return PartSink(conn, self._node, self._new_body(), limit, too_large)

    def serve(self, conn: HttpConnection, request: Request, bucket: str, rest: tuple[str, ...]) -> None:
        path = parse_path(bucket, rest)
        method = request.method
        if method == b"PUT" and path.part is not None:
            self._in_background(conn, self._stage(conn, request, path))
        elif method == b"POST" and len(rest) == 2:
            check_write(request.headers)
            self._in_background(conn, self._commit_or_say_why(conn, request, path))
        elif method in (b"GET", b"HEAD") and path.part is None:
            self._tell(conn, path)
        elif method == b"DELETE" and path.part is None:
            self._in_background(conn, self._drop(conn, path))
        else:
            conn.respond_not_allowed(_METHODS[len(rest)])

    # -- changing ----------------------------------------------------------------------------------------

    async def _stage(self, conn: HttpConnection, request: Request, path: TransactionPath) -> None:
        assert path.version is not None
        assert path.part is not None
        in_arrow = is_arrow(request.headers, self._arrow_is_available)
        if not self._transactions.admit(path.bucket, path.app, path.version, path.part):
            if request.sink is not None:
                request.sink.abort()
            _answer(conn, staged_body(path, None))
            return
        body = await self._stored_body(request)
        try:
            staged = await self._transactions.stage(path.bucket, path.app, path.version, path.part, body, in_arrow)
        finally:
            await clear_away(self._node.objects, [body])
        figures = None if staged is None else part_figures(staged.head.messages, staged.head.bytes, staged.etag)
        _answer(conn, staged_body(path, figures))

    async def _stored_body(self, request: Request) -> str:
        if isinstance(request.sink, ObjectSink):
            await request.sink.complete()
            return request.sink.name
        if isinstance(request.sink, UnwantedSink):
            raise Unavailable("The application was forgotten while the part came. Stage it again.")
        name = self._new_body()
        try:
            await asyncio.to_thread(self._node.objects.put, name, [request.body])
        except OSError as error:
            raise not_stored(error) from None
        return name

    async def _commit_or_say_why(self, conn: HttpConnection, request: Request, path: TransactionPath) -> None:
        try:
            await self._commit(conn, request, path)
        except TransactionRefused as refusal:  # the one error whose body has more than a code and a message
            if conn.request is not None:
                conn.respond(409, _JSON + NO_STORE, [refused_body(refusal)])

    async def _commit(self, conn: HttpConnection, request: Request, path: TransactionPath) -> None:
        assert path.version is not None
        asked = parse_commit(request.body)
        listed = [PartName(part.part, part.etag) for part in asked.listed()]
        done = await self._transactions.commit(
            path.bucket, path.app, path.version, listed, create=asked.create, content_type=asked.content_type
        )
        _answer(conn, committed_body(path.app, done.application, done.is_duplicate))

    async def _drop(self, conn: HttpConnection, path: TransactionPath) -> None:
        if path.version is None:
            await self._transactions.forget(path.bucket, path.app)
        else:
            await self._transactions.drop(path.bucket, path.app, path.version)
        if conn.request is not None:
            conn.respond(204, NO_STORE)

    # -- asking ------------------------------------------------------------------------------------------

    def _tell(self, conn: HttpConnection, path: TransactionPath) -> None:
        known = self._transactions.application(path.bucket, path.app)
        if path.version is None:
            _answer(conn, application_body(path.app, known))
            return
        parts = self._transactions.staged(path.bucket, path.app, path.version)
        shown = [
            {
                "part": name,
                **part_figures(parts[name].head.messages, parts[name].head.bytes, parts[name].etag),
                "staged_at_ms": parts[name].head.staged_ms,
            }
            for name in sorted(parts)[:PARTS_SHOWN_MAX]
        ]
        _answer(conn, version_body(path, known, shown, len(parts)))

    # -- beside the connection ---------------------------------------------------------------------------

    def _new_body(self) -> str:
        self._bodies += 1
        return body_name(self._bodies)


def _answer(conn: HttpConnection, body: bytes) -> None:
    if conn.request is not None:  # the client may have left meanwhile
        conn.respond(200, _JSON + NO_STORE, [body])
