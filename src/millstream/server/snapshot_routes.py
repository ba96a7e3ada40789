"""Under a stream's URL: its snapshots, and the bootstrap that starts with the latest of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from ..model.commands import PublishSnapshot
from ..model.errors import BadRequest, Conflict, NotFound, PreconditionFailed, TooLarge, Unavailable
from ..model.etags import is_among, snapshot_etag
from ..model.media import DEFAULT_CONTENT_TYPE
from ..model.records import Snapshot
from ..model.replies import Outcome, Receipt
from ..node import Stream
from ..node.clearing import clear_away
from ..node.snapshots import message_batches, new_object_name, snapshot_pieces
from ..node.writer import Answer
from ..protocol.http import headers as h
from ..protocol.http.extension.paths import BucketedPath
from ..protocol.http.extension.snapshots import (
    BOOTSTRAP,
    SNAPSHOT,
    bootstrap_lines,
    latest_lines,
    multipart_end,
    new_boundary,
    parse_snapshot_offset,
    parse_trims,
    part_start,
    publish_command,
    refuse_live,
    snapshot_lines,
)
from ..protocol.http.requests import Request, check_write, condition, content_type_of, wanted_stream
from ..protocol.http.responses import NO_STORE
from .body_sinks import ObjectSink, body_digest
from .compression import Piece, compressed, wanted_encoding
from .http_connection import HttpConnection
from .http_receiving import BodySink, RequestReceiver
from .stream_routes import StreamRoutes
from .streamed import Politeness, StreamedAnswer

_REST_S = 0.035  # for each megabyte of a snapshot that comes while others write: it is taken at some 25 MB a second
_BUSY_COMMITS = 3


class SnapshotRoutes:
    def __init__(self, streams: StreamRoutes) -> None:
        self._streams = streams
        self._node = streams.node
        self._settings = streams.settings

    def serve(self, conn: HttpConnection, request: Request, path: BucketedPath) -> None:
        match path.rest:
            case ("bootstrap",):
                self._serve_bootstrap(conn, request, path.key)
            case ("snapshot",):
                self._serve_latest(conn, request, path.key)
            case ("snapshot", offset):
                self._serve_snapshot(conn, request, path.key, _offset(request, offset))
            case _:
                raise NotFound(
                    f"Nothing is here. Under a stream there are /{SNAPSHOT} and /{BOOTSTRAP}.", code="unknown_route"
                )

    def _serve_snapshot(self, conn: HttpConnection, request: Request, key: str, offset: int) -> None:
        if request.method == b"PUT":
            self._streams.in_background(conn, self._publish(conn, request, key, offset))
        elif request.method in (b"GET", b"HEAD"):
            self._streams.in_background(conn, self._read(conn, request, key, offset))
        elif request.method == b"DELETE":
            self._refuse_delete(request, key, offset)
        else:
            conn.respond_not_allowed(b"GET, HEAD, PUT, DELETE, OPTIONS")

    # -- publishing --------------------------------------------------------------------------------------

    def claim_body(self, conn: RequestReceiver, request: Request, path: BucketedPath) -> BodySink | None:
        """A large snapshot goes to the object store while it arrives; what is wrong already is said before."""
        if len(path.rest) != 2 or path.rest[0] != SNAPSHOT:
            return None
        parse_snapshot_offset(path.rest[1])
        parse_trims(request.query)
        check_write(request.headers)
        content_type_of(request.headers)
        stream = self._named(request, path.key)
        trouble = self._node.trouble()
        if trouble is not None:
            raise Unavailable(trouble)
        self._check_size(int(request.headers.get(h.CONTENT_LENGTH, b"0")))
        limit, rest_s = self._settings.snapshot_bytes_max, Politeness(self._node, _REST_S, _BUSY_COMMITS).rest_s
        sink = SnapshotSink(conn, self._node.objects, new_object_name(), limit, self._too_large(), rest_s)
        sink.number = stream.number
        return sink

    def _named(self, request: Request, key: str) -> Stream:
        """The stream that a request is about: the one there is when it comes, if that is the one it asks for."""
        stream = self._node.visible(key)
        wanted = wanted_stream(request.query)
        if wanted is not None:
            self._streams.check_incarnation(wanted, stream)
        return stream

    def _check_size(self, size: int) -> None:
        if size > self._settings.snapshot_bytes_max:
            raise self._too_large()

    def _too_large(self) -> TooLarge:
        limit = self._settings.snapshot_bytes_max
        return TooLarge(f"A snapshot may have {limit} bytes (snapshot_bytes_max).", code="snapshot_too_large")

    async def _publish(self, conn: HttpConnection, request: Request, key: str, offset: int) -> None:
        self._check_size(len(request.body))
        sink: SnapshotSink | None = request.sink
        number = self._named(request, key).number if sink is None else sink.number
        if sink is None:
            body = request.body
            command = publish_command(request, key, offset, body_digest(body), body, len(body), None)
        elif sink.size <= self._settings.part_bytes:
            body = await sink.take()
            command = publish_command(request, key, offset, sink.digest, body, len(body), None)
        else:
            await sink.complete()
            command = publish_command(request, key, offset, sink.digest, b"", sink.size, sink.name)
        answer: Answer | None = None
        try:
            answer = await self._submit(command, number)
        finally:
            if command.object is not None and not _is_published(answer):
                await clear_away(self._node.objects, [command.object])
        receipt = conn.receipt(answer)
        if receipt is not None:
            stream_id = self._node.stream_id(receipt.number).encode()
            lines = b"Stream-Snapshot-Offset: %020d\r\nStream-Next-Offset: %020d\r\nStream-Id: %b\r\n"
            conn.respond(204, lines % (offset, receipt.tail, stream_id) + NO_STORE)

    async def _submit(self, command: PublishSnapshot, number: int) -> Answer:
        stream, is_boundary = self._node.visible(command.key), True
        if stream.number == number and stream.earliest <= command.offset <= stream.tail:
            is_boundary = await self._node.reader.is_boundary(stream, command.offset)
        return await self._streams.submit(command.checked(number, is_boundary))

    # -- reading -----------------------------------------------------------------------------------------

    def _serve_latest(self, conn: HttpConnection, request: Request, key: str) -> None:
        if request.method not in (b"GET", b"HEAD"):
            conn.respond_not_allowed(b"GET, HEAD, OPTIONS")
            return
        stream = self._named(request, key)
        conn.respond(307, latest_lines(request.path, stream, _latest(stream).offset))

    async def _read(self, conn: HttpConnection, request: Request, key: str, offset: int) -> None:
        stream = self._named(request, key)
        snapshot = _latest(stream, offset)
        self._node.renew(stream)
        stream_id = self._node.stream_id(stream.number)
        lines = snapshot_lines(stream, snapshot, stream_id)
        wanted = condition(request.headers, h.IF_NONE_MATCH)
        if wanted is not None and is_among(wanted, snapshot_etag(stream_id, snapshot)):
            conn.respond(304, lines)
            return
        pieces = snapshot_pieces(self._node.reader, self._node.objects, stream, snapshot)
        await StreamedAnswer(conn, lines, pieces, snapshot.size).send()

    def _refuse_delete(self, request: Request, key: str, offset: int) -> None:
        stream = self._named(request, key)
        etag = snapshot_etag(self._node.stream_id(stream.number), _latest(stream, offset))
        wanted = condition(request.headers, h.IF_MATCH)
        if wanted is not None and not is_among(wanted, etag):
            raise PreconditionFailed("The snapshot is another one since that ETag.")
        raise Conflict(
            "The latest snapshot stays: without it the bootstrap would be incomplete. Publish a newer one instead.",
            code="snapshot_is_latest",
        )

    # -- bootstrap ---------------------------------------------------------------------------------------

    def _serve_bootstrap(self, conn: HttpConnection, request: Request, key: str) -> None:
        if request.method not in (b"GET", b"HEAD"):
            conn.respond_not_allowed(b"GET, HEAD, OPTIONS")
            return
        refuse_live(request.query)
        encoding = wanted_encoding(request.headers.get(h.ACCEPT_ENCODING, b""))
        self._streams.in_background(conn, self._bootstrap(conn, self._named(request, key), encoding))

    async def _bootstrap(self, conn: HttpConnection, stream: Stream, encoding: bytes | None) -> None:
        self._node.renew(stream)
        boundary, end = new_boundary(), stream.tail
        lines = bootstrap_lines(stream, self._node.stream_id(stream.number), boundary, end)
        pieces = self._bootstrap_pieces(stream, boundary, end)
        if encoding is not None:
            lines += b"Content-Encoding: %b\r\n" % encoding
            pieces = compressed(pieces, encoding)
        await StreamedAnswer(conn, lines, pieces).send()

    async def _bootstrap_pieces(self, stream: Stream, boundary: bytes, end: int) -> AsyncGenerator[Piece]:
        snapshot = stream.snapshot
        if snapshot is None:
            start = stream.earliest
            yield part_start(boundary, DEFAULT_CONTENT_TYPE).removeprefix(b"\r\n")
        else:
            start = snapshot.offset
            async with aclosing(snapshot_pieces(self._node.reader, self._node.objects, stream, snapshot)) as pieces:
                first = await anext(pieces, b"")  # what cannot be read is refused before the answer begins
                yield part_start(boundary, snapshot.content_type).removeprefix(b"\r\n") + first
                async for piece in pieces:
                    yield piece
        between = part_start(boundary, stream.content_type)
        async with aclosing(message_batches(self._node.reader, stream, start, end)) as batches:
            async for messages in batches:
                yield between + between.join(messages)
        yield multipart_end(boundary)


class SnapshotSink(ObjectSink):
    """Where a large snapshot goes, and of which stream it is: when all of it is there, that name may be another's."""

    number: int


def _offset(request: Request, text: str) -> int:
    """The offset of a snapshot: of one to be published, or of one that may be there."""
    try:
        return parse_snapshot_offset(text)
    except BadRequest:
        if request.method == b"PUT":
            raise
        raise _no_such_snapshot() from None


def _latest(stream: Stream, offset: int | None = None) -> Snapshot:
    snapshot = stream.snapshot
    if snapshot is None or offset not in (None, snapshot.offset):
        raise _no_such_snapshot()
    return snapshot


def _no_such_snapshot() -> NotFound:
    return NotFound("There is no such snapshot. /snapshot leads to the latest.", code="no_such_snapshot")


def _is_published(answer: Answer | None) -> bool:
    """Whether the fact is in the journal, or may be. None: it was not even asked for."""
    if isinstance(answer, Receipt):
        return answer.outcome is Outcome.PUBLISHED
    return answer is not None and answer.code == "outcome_unknown"
