"""Bulk reads, read plans and their leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Protocol
from urllib.parse import quote

from ..node.bulk import Bounds, HotRange, Plan, SegmentRange
from ..node.leases import Lease
from ..protocol.http import headers as h
from ..protocol.http.extension.bulk import (
    ARROW,
    NDJSON,
    BulkQuery,
    LeaseBody,
    PlanBody,
    json_body,
    lease_url,
    ndjson,
    parse_bulk,
    row_body,
    wanted_format,
)
from ..protocol.http.extension.positions import Place
from ..protocol.http.requests import Request
from ..protocol.http.responses import NO_STORE, SANDBOX
from ..storage.archive.arrow_stream import END, Piece, batch_pieces, single_pieces, stream_start
from ..storage.archive.rows import Row, Rows, Selection, selected
from ..storage.buffers import BufferPool
from .compression import compressed, wanted_encoding
from .http_connection import HttpConnection
from .stream_routes import StreamRoutes
from .streamed import StreamedAnswer

_PORTION_BYTES = 2 << 20
_BUFFERS_BYTES_MAX = 4 * _PORTION_BYTES  # what is sent, what waits for it, and what is made meanwhile
_JOIN_MAX = 128 << 10  # up to here a copy is cheaper than a chunk of its own
_JSON = b"Content-Type: application/json\r\n"


class RowWriter(Protocol):
    """Rows as the bytes of one format, in pieces that are sent as they are."""

    content_type: str
    start: bytes
    end: bytes

    def batch(self, rows: Rows, selection: Selection) -> list[Piece]: ...
    def single(self, rows: list[Row]) -> list[Piece]: ...


class BulkRoutes:
    def __init__(self, streams: StreamRoutes) -> None:
        self._node = streams.node
        self._bulk = streams.node.bulk
        self._in_background = streams.in_background

    # -- messages ----------------------------------------------------------------------------------------

    def serve_messages(self, conn: HttpConnection, request: Request, bucket: str) -> None:
        query = parse_bulk(request.query)
        writer = self._writer(wanted_format(request.headers.get(h.ACCEPT)), bucket)
        self._node.bucket(bucket)
        encoding = wanted_encoding(request.headers.get(h.ACCEPT_ENCODING, b""))
        self._in_background(conn, self._messages(conn, bucket, query, writer, encoding))

    def _writer(self, kind: str, bucket: str) -> RowWriter:
        return (_NdjsonRows if kind == NDJSON else _ArrowRows)(bucket, self._node.machine.incarnation)

    async def _messages(
        self, conn: HttpConnection, bucket: str, query: BulkQuery, writer: RowWriter, encoding: bytes | None
    ) -> None:
        after, until = await self._range(bucket, query)
        plan = await self._bulk.plan(bucket, query.prefix, after, until, _bounds(query))
        lines = b"Content-Type: %b\r\n" % writer.content_type.encode()
        lines += b"Stream-Next-Position: %b\r\n" % self._node.feed.token(plan.until).encode()
        if plan.up_to_date:
            lines += b"Stream-Up-To-Date: true\r\n"
        pieces = self._pieces(plan, writer)
        if encoding is not None:
            lines += b"Content-Encoding: %b\r\n" % encoding
            pieces = compressed(pieces, encoding)
        async with self._bulk.leases.keeping(plan.lease):
            await StreamedAnswer(conn, lines + NO_STORE + SANDBOX, pieces).send()

    async def _pieces(self, plan: Plan, writer: RowWriter) -> AsyncGenerator[Piece]:
        """The rows of a plan, a portion at a time; the next one is made, in a thread, while this one is sent."""
        portions = self._portions(plan, writer)
        loop = asyncio.get_running_loop()
        making = _made_ahead(loop, portions)
        while (pieces := await making) is not None:
            making = _made_ahead(loop, portions)
            for piece in pieces:
                yield piece

    def _portions(self, plan: Plan, writer: RowWriter) -> Iterator[list[Piece]]:
        """About two megabytes at a time: going to a thread and back costs the more the busier the machine is."""
        portion: list[Piece] = []
        size = 0
        for piece in self._everything(plan, writer):
            size += len(piece)
            if portion and len(piece) + len(portion[-1]) <= _JOIN_MAX:
                portion[-1] = b"".join((portion[-1], piece))
            else:
                portion.append(piece)
            if size >= _PORTION_BYTES:
                yield portion
                portion, size = [], 0
        yield portion

    def _everything(self, plan: Plan, writer: RowWriter) -> Iterator[Piece]:
        yield writer.start
        if plan.rows:
            yield from writer.single(plan.rows)
        buffers = BufferPool(_BUFFERS_BYTES_MAX)
        for range_ in plan.ranges:
            for rows, selection in self._bulk.rows(plan, range_, buffers):
                yield from writer.batch(rows, selection)
        yield writer.end

    async def _range(self, bucket: str, query: BulkQuery) -> tuple[int, int]:
        now = self._node.feed.now  # first of all: what is committed while we look is not part of it
        after = await self._sequence(bucket, query.after, now)
        until = await self._sequence(bucket, query.until, now)
        return after, until

    async def _sequence(self, bucket: str, place: Place, now: int) -> int:
        feed = self._node.feed
        if place.is_now:
            return now
        if place.since_ms is not None:
            return min(await feed.sequence_before(bucket, place.since_ms), now)
        return 0 if place.position is None else feed.sequence_of(place.position)

    # -- plans -------------------------------------------------------------------------------------------

    def serve_plan(self, conn: HttpConnection, request: Request, bucket: str) -> None:
        query = parse_bulk(request.query)
        self._node.bucket(bucket)
        self._in_background(conn, self._plan(conn, bucket, query))

    async def _plan(self, conn: HttpConnection, bucket: str, query: BulkQuery) -> None:
        after, until = await self._range(bucket, query)
        plan = await self._bulk.plan(bucket, query.prefix, after, until, _bounds(query))
        if conn.request is None:
            self._bulk.leases.drop(plan.lease)
            return
        token = self._node.feed.token
        lines = b"Stream-Next-Position: %b\r\n" % token(plan.until).encode()
        if plan.up_to_date:
            lines += b"Stream-Up-To-Date: true\r\n"
        conn.respond(200, lines + _JSON + NO_STORE, [json_body(self._plan_body(plan))])

    def _plan_body(self, plan: Plan) -> PlanBody:
        token, incarnation = self._node.feed.token, self._node.machine.incarnation
        ranges: list[dict[str, object]] = []
        for range_ in plan.ranges:
            if isinstance(range_, HotRange):
                ranges.append({"kind": "hot", "after": token(range_.after), "until": token(range_.until)})
            else:
                kind = "segment" if isinstance(range_, SegmentRange) else "archive"
                ranges.append({"kind": kind, **range_._asdict()})
        return PlanBody(
            plan.bucket,
            plan.prefix,
            token(plan.after),
            token(plan.until),
            plan.up_to_date,
            f"{incarnation:016x}",
            sum(range_.messages for range_ in plan.ranges),
            sum(range_.bytes for range_ in plan.ranges),
            self._lease_body(plan.bucket, plan.lease),
            {"kind": "fs", "root": str(self._node.objects_root)},
            [{"number": s.number, "stream": s.name, "content_type": s.content_type} for s in plan.streams.values()],
            [{"number": number, "earliest": earliest} for number, earliest in plan.gone.items()],
            [row_body(plan.bucket, incarnation, row) for row in plan.rows],
            ranges,
        )

    def _lease_body(self, bucket: str, lease: Lease) -> LeaseBody:
        """Clients know the wall clock only."""
        expires_at_ms = self._node.clock.wall_ms() + lease.expires_at_ms - self._node.clock.lease_ms()
        return LeaseBody(lease.id, expires_at_ms, lease_url(quote(bucket, safe=""), lease.id))

    def serve_lease(self, conn: HttpConnection, request: Request, bucket: str, lease_id: str) -> None:
        self._node.bucket(bucket)
        if request.method == b"POST":
            lease = self._bulk.leases.renew(bucket, lease_id)
            conn.respond(200, _JSON + NO_STORE, [json_body(self._lease_body(bucket, lease))])
        else:
            self._bulk.leases.give_back(bucket, lease_id)
            conn.respond(204, NO_STORE)


def _bounds(query: BulkQuery) -> Bounds:
    return Bounds(query.max_bytes, query.max_messages)


class _NdjsonRows:
    content_type = NDJSON
    start = b""
    end = b""

    def __init__(self, bucket: str, incarnation: int) -> None:
        self._bucket = bucket
        self._incarnation = incarnation

    def batch(self, rows: Rows, selection: Selection) -> list[Piece]:
        return self.single(selected(rows, selection))

    def single(self, rows: Iterable[Row]) -> list[Piece]:
        return [ndjson(row_body(self._bucket, self._incarnation, row) for row in rows)]


class _ArrowRows:
    content_type = ARROW
    start = stream_start()
    end = END

    def __init__(self, bucket: str, incarnation: int) -> None:
        self._bucket = bucket
        self._incarnation = incarnation

    def batch(self, rows: Rows, selection: Selection) -> list[Piece]:
        return batch_pieces(rows, selection, self._incarnation)

    def single(self, rows: list[Row]) -> list[Piece]:
        return single_pieces(self._bucket, rows, self._incarnation)


def _made_ahead(loop: asyncio.AbstractEventLoop, portions: Iterator[list[Piece]]) -> asyncio.Future[list[Piece] | None]:
    making = loop.run_in_executor(None, next, portions, None)
    making.add_done_callback(lambda made: made.cancelled() or made.exception())  # the reader may have left meanwhile
    return making
