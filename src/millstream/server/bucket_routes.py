"""The bucketed surface: buckets and listings; a stream's URL goes on to `stream_routes`."""

from __future__ import annotations

import asyncio

from ..model.commands import ChangeBucket, CreateBucket, DeleteBucket
from ..model.errors import NotFound, PreconditionFailed
from ..model.facts import BucketSettings
from ..node.node import Node
from ..node.writer import Answer
from ..protocol.http import headers as h
from ..protocol.http.extension.buckets import bucket_body, listing_body, parse_listing, parse_settings, refuse_reading
from ..protocol.http.extension.paths import (
    LISTING,
    BucketedPath,
    bad_bucket,
    check_stream,
    is_ordinary,
    parse_bucketed,
)
from ..protocol.http.extension.transactions import TRANSACTIONS
from ..protocol.http.requests import Request, check_write, condition
from ..protocol.http.responses import NO_STORE
from .bulk_routes import BulkRoutes
from .compression import COMPRESS_MIN, compress, wanted_encoding
from .feed_routes import FeedRoutes
from .http_connection import HttpConnection
from .http_receiving import BodySink, RequestReceiver
from .snapshot_routes import SnapshotRoutes
from .stream_routes import StreamRoutes
from .transaction_routes import TransactionRoutes

_JSON = b"Content-Type: application/json\r\n"


class BucketRoutes:
    def __init__(self, node: Node, streams: StreamRoutes) -> None:
        self._node = node
        self._streams = streams
        self._transactions = TransactionRoutes(streams)
        self._snapshots = SnapshotRoutes(streams)
        self._feeds = FeedRoutes(streams)
        self._bulk = BulkRoutes(streams)

    def serve(self, conn: HttpConnection, request: Request) -> None:
        if request.path[:1] != b"/":  # `OPTIONS *`, or what CONNECT asks for
            conn.respond_not_allowed(b"OPTIONS")
            return
        path = self._parse(request)
        if path.stream is None:
            self._serve_bucket(conn, request, path.bucket)
        elif path.stream == LISTING and path.rest[:1] == (TRANSACTIONS,):
            self._transactions.serve(conn, request, path.bucket, path.rest[1:])
        elif path.stream == LISTING and (path.rest or request.method != b"PUT"):
            self._serve_streams(conn, request, path)
        elif path.rest:
            check_stream(path, is_new=False)
            self._snapshots.serve(conn, request, path)
        else:
            check_stream(path, is_new=request.method == b"PUT")
            self._streams.serve(conn, request, path.key, needs_bucket=True)

    def claim_body(self, conn: RequestReceiver, request: Request) -> BodySink | None:
        """Where a large body goes that is about to arrive; None: into memory."""
        path = self._parse(request)
        if path.stream == LISTING and path.rest[:1] == (TRANSACTIONS,):
            return self._transactions.claim_body(conn, request, path.bucket, path.rest[1:])
        if path.stream is None or path.stream == LISTING or not path.rest:
            return None
        return self._snapshots.claim_body(conn, request, path)

    def _parse(self, request: Request) -> BucketedPath:
        path = parse_bucketed(request.path)
        if not is_ordinary(path.bucket) and self._node.machine.find_bucket(path.bucket) is None:
            raise bad_bucket()
        return path

    # -- buckets -----------------------------------------------------------------------------------------

    def _serve_bucket(self, conn: HttpConnection, request: Request, bucket: str) -> None:
        method = request.method
        if method in (b"PATCH", b"DELETE") and condition(request.headers, h.IF_MATCH) not in (None, "*"):
            raise PreconditionFailed("Buckets have no ETags, so that none can match. Ask without If-Match, or with *.")
        if method in (b"PUT", b"PATCH"):
            check_write(request.headers)
        if method == b"PUT":
            if not is_ordinary(bucket):
                raise bad_bucket()
            if h.IF_MATCH in request.headers and self._node.machine.live_bucket(bucket) is None:
                raise PreconditionFailed("There is no such bucket that could match. Create it without If-Match.")
            settings = parse_settings(request.body, BucketSettings())
            self._node.submit(CreateBucket(bucket, settings), lambda answer: self._created(conn, answer))
        elif method in (b"GET", b"HEAD"):
            refuse_reading(request.query)
            self._streams.in_background(conn, self._tell(conn, bucket))
        elif method == b"PATCH":
            # As the decision will see it: the bucket may be another by what is in flight.
            now = self._node.machine.live_bucket(bucket) or self._node.bucket(bucket)
            settings = parse_settings(request.body, now.settings)
            self._node.submit(ChangeBucket(bucket, settings), lambda answer: self._changed(conn, bucket, answer))
        elif method == b"DELETE":
            self._streams.in_background(conn, self._delete(conn, bucket))
        else:
            conn.respond_not_allowed(b"GET, HEAD, PUT, PATCH, DELETE, OPTIONS")

    def _created(self, conn: HttpConnection, answer: Answer) -> None:
        request = conn.request
        if conn.receipt(answer) is not None and request is not None:
            conn.respond(201, request.location_line + NO_STORE)

    def _changed(self, conn: HttpConnection, bucket: str, answer: Answer) -> None:
        if conn.receipt(answer) is None:
            return
        try:
            body = bucket_body(self._node.bucket(bucket))
        except NotFound as error:  # deleted by the very batch that changed it
            conn.respond_error(error)
            return
        conn.respond(200, _JSON + NO_STORE, [body])

    async def _tell(self, conn: HttpConnection, bucket: str) -> None:
        self._node.bucket(bucket)
        await self._node.sweeper.sweep_bucket(bucket)
        if conn.request is not None:
            conn.respond(200, _JSON + NO_STORE, [bucket_body(self._node.bucket(bucket))])

    async def _delete(self, conn: HttpConnection, bucket: str) -> None:
        """What is over in the bucket is ended first: only streams that live stand in the way."""
        live = self._node.machine.live_bucket(bucket)
        await self._node.sweeper.sweep_bucket(bucket)
        answer = await self._streams.submit(DeleteBucket(bucket, None if live is None else live.number))
        if conn.receipt(answer) is not None:
            conn.respond(204, NO_STORE)

    # -- all streams of a bucket -------------------------------------------------------------------------

    def _serve_streams(self, conn: HttpConnection, request: Request, path: BucketedPath) -> None:
        match path.rest:
            case ():
                if _is_one_of(conn, request, b"GET", b"HEAD"):
                    self._list(conn, request, path.bucket)
            case ("feed",):
                if _is_one_of(conn, request, b"GET"):
                    self._feeds.serve(conn, request, path.bucket)
            case ("messages",):
                if _is_one_of(conn, request, b"GET"):
                    self._bulk.serve_messages(conn, request, path.bucket)
            case ("plan",):
                if _is_one_of(conn, request, b"GET"):
                    self._bulk.serve_plan(conn, request, path.bucket)
            case ("leases", lease_id):
                if _is_one_of(conn, request, b"POST", b"DELETE"):
                    self._bulk.serve_lease(conn, request, path.bucket, lease_id)
            case _:
                raise NotFound("Nothing is here. The listing is /{bucket}/streams.", code="unknown_route")

    def _list(self, conn: HttpConnection, request: Request, bucket: str) -> None:
        query = parse_listing(request.query)
        self._node.bucket(bucket)
        streams, has_more = self._node.list_streams(bucket, query.prefix, query.after, query.limit)
        body = listing_body(bucket, query, streams, has_more)
        encoding = wanted_encoding(request.headers.get(h.ACCEPT_ENCODING, b""))
        if encoding is None or len(body) < COMPRESS_MIN:
            conn.respond(200, _JSON + NO_STORE, [body])
        else:
            self._streams.in_background(conn, _send_compressed(conn, body, encoding))


def _is_one_of(conn: HttpConnection, request: Request, *methods: bytes) -> bool:
    """Whether the method is allowed; if not, that is answered."""
    if request.method in methods:
        return True
    conn.respond_not_allowed(b", ".join((*methods, b"OPTIONS")))
    return False


async def _send_compressed(conn: HttpConnection, body: bytes, encoding: bytes) -> None:
    packed = await asyncio.to_thread(compress, [body], encoding)
    if conn.request is not None:
        conn.respond(200, _JSON + NO_STORE + b"Content-Encoding: %b\r\n" % encoding, [packed])
