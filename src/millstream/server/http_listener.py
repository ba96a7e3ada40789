"""The HTTP listener: accepts connections, checks who asks, routes requests, watches time and limits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable
from email.utils import formatdate

from ..model.commands import Command
from ..model.errors import BadRequest
from ..model.names import key_of_flat_path
from ..node.node import Node
from ..node.vital import vital_task
from ..node.writer import Done
from ..protocol.http import headers as h
from ..protocol.http.requests import FLAT, Request, require_host
from ..protocol.http.responses import OK_LINE, appended_format
from .bucket_routes import BucketRoutes
from .guard import Guard
from .http_connection import HttpConnection
from .http_receiving import BodySink, RequestReceiver
from .known_heads import KnownHeads
from .ops import METRICS_TYPE, Metrics
from .read_cache import ReadCache
from .s3p_listener import S3pListener
from .settings import Settings
from .stream_routes import StreamRoutes

log = logging.getLogger(__name__)

_TICK_S = 0.25
_HOLD_S = 5.0  # how long a request waits for a node that recovers
_RETRY_AFTER = b"Retry-After: 1\r\n"
_OPERATOR = frozenset({b"/healthz", b"/readyz/local", b"/metrics"})

Submit = Callable[[Command, Done], bool]


class HttpListener:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time()  # good to a tick: deadlines need no more
        self.idle_until = self.now + settings.idle_timeout_s  # for whoever has just been heard of
        self.node: Node | None = None  # None until recovery is done
        self.submit: Submit | None = None  # the node's
        self.kept_reads: ReadCache | None = None
        self.incarnation = 0  # of its streams
        self.s3p: S3pListener | None = None  # for the metrics
        self.inflight_bytes = 0
        self.answered: defaultdict[tuple[bytes, int], int] = defaultdict(int)  # by method and status
        self.common_lines = b""  # of every response
        self.ok_lines = b""  # how one with status 200 begins
        self.appended_format = b""  # of the answer to a plain append
        self._guard = Guard(settings)
        self.heads = KnownHeads(settings.head_bytes_max, settings.part_bytes, self._guard)
        self._routes: StreamRoutes | None = None
        self._bucket_routes: BucketRoutes | None = None
        self._connections: set[HttpConnection] = set()
        self.lingering: dict[
            HttpConnection, None
        ] = {}  # of those, who has been sent away: the oldest makes room for others
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._metrics = Metrics(self)
        self._stopping = False
        # Requests that came before the node was ready: most recoveries take less time than a client's next try.
        self._held: list[tuple[HttpConnection, Request, float]] = []
        self._renew_common_lines()

    # -- life --------------------------------------------------------------------------------------------

    async def start(self) -> tuple[str, int]:
        """Listen; where."""
        address = self.settings.address
        self._server = await self.loop.create_server(
            lambda: HttpConnection(self), address.host, address.port, backlog=2048
        )
        self._ticker = vital_task(self._tick(), "http-ticks")
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    def serve_node(self, node: Node) -> None:
        """Recovery is done: open the doors."""
        self.node = node
        self.submit = node.writer.submit
        self.incarnation = node.machine.incarnation & 0xFFFFFFFF
        self.appended_format = appended_format(self.common_lines, self.incarnation)
        self._routes = StreamRoutes(node, self.settings)
        self.kept_reads = self._routes.cache
        self.loop.call_soon(self._serve_held)
        self._bucket_routes = BucketRoutes(node, self._routes)

    async def stop(self) -> None:
        """Answer what is in flight, end live reads, close everything; bounded by `stop_timeout_s`."""
        self._stopping = True
        self._serve_held()
        if self._server is not None:
            self._server.close()
        for conn in list(self._connections):
            conn.stop()
        give_up = self.loop.time() + self.settings.stop_timeout_s
        while self._connections and self.loop.time() < give_up:
            await asyncio.sleep(0.01)
            for conn in list(self._connections):
                if conn.live is not None:
                    conn.live.end()  # it may have begun only now: what it waits for was still being fetched
        for conn in list(self._connections):
            conn.abort()
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker

    def is_ready(self) -> bool:
        return self._why_not_ready() is None

    # -- connections -------------------------------------------------------------------------------------

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def admit(self, conn: HttpConnection) -> int:
        """How many connections are above the limit with this one; it is admitted if none is."""
        self._connections.add(conn)
        if len(self._connections) > self.settings.connections_max and self.lingering:
            oldest = next(iter(self.lingering))
            oldest.abort()
            self.forget(oldest)
        return len(self._connections) - self.settings.connections_max

    def forget(self, conn: HttpConnection) -> None:
        self._connections.discard(conn)
        self.lingering.pop(conn, None)

    def _serve_held(self) -> None:
        """Go on with what came while the node recovered; what waited too long is sent away."""
        held, self._held = self._held, []
        for conn, request, until in held:
            if conn.request is not request:
                continue  # the client has left
            if self._routes is not None and not self._stopping:
                conn.serve(request)
            elif self.now > until or self._stopping:
                conn.respond_problem(503, "starting", "The server recovers its data. Try again.", _RETRY_AFTER)
            else:
                self._held.append((conn, request, until))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.now = now = self.loop.time()
            self.idle_until = now + self.settings.idle_timeout_s
            self._renew_common_lines()
            if self._held:
                self._serve_held()
            for conn in list(self._connections):
                if conn.deadline and now > conn.deadline:
                    conn.timed_out()

    def _renew_common_lines(self) -> None:
        lines = b"Date: %b\r\nX-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: %b\r\n" % (
            formatdate(usegmt=True).encode(),
            self._guard.resource_policy,
        )
        if lines != self.common_lines:  # once a second
            self.common_lines = lines
            self.ok_lines = OK_LINE + lines
            self.appended_format = appended_format(lines, self.incarnation)

    # -- requests ----------------------------------------------------------------------------------------

    def claim_body(self, conn: RequestReceiver, request: Request) -> BodySink | None:
        """Where a large body should go that is about to arrive; None: into memory, as most do. May raise a refusal.

        Whoever is not welcome is told so in `serve`; nothing of theirs goes to the disk before that.
        """
        if self._bucket_routes is None or request.method != b"PUT" or request.path.startswith(FLAT):
            return None
        origin, host = request.headers.get(h.ORIGIN), require_host(request)
        if not self._guard.allows_host(host) or (origin is not None and not self._guard.allows_origin(origin, host)):
            return None
        return self._bucket_routes.claim_body(conn, request)

    def serve(self, conn: HttpConnection, request: Request) -> None:
        if not self._guard.knows(request.headers) and not self._is_welcome(conn, request):
            return
        method, path, routes = request.method, request.path, self._routes
        if routes is not None and method == b"GET" and routes.answer_again(conn, request):
            pass
        elif routes is not None and path.startswith(FLAT):
            routes.serve(conn, request, key_of_flat_path(path[len(FLAT) :]))
        elif path in _OPERATOR:
            self._serve_operator(conn, request)
        elif self._bucket_routes is None:
            self._held.append((conn, request, self.now + _HOLD_S))
        else:
            self._bucket_routes.serve(conn, request)

    def _is_welcome(self, conn: HttpConnection, request: Request) -> bool:
        try:
            host = require_host(request)
        except BadRequest as error:
            conn.respond_error(error)
            return False
        if host and not self._guard.allows_host(host):
            conn.respond_problem(
                421, "unknown_host", "This Host is not served here. Add it to allowed_hosts if it should be."
            )
            return False
        origin = request.headers.get(h.ORIGIN)
        if origin is None:
            return True
        if not self._guard.allows_origin(origin, host):
            if request.method == b"OPTIONS":
                return True  # a preflight changes nothing; without an allowed origin in it the browser stops there
            conn.respond_problem(
                403,
                "origin_refused",
                "Pages of this origin are not allowed. Add it to cors_origins if they should be.",
            )
            return False
        conn.cors = b"Access-Control-Allow-Origin: %b\r\nAccess-Control-Expose-Headers: %b\r\nVary: Origin\r\n" % (
            origin,
            h.EXPOSED_BY_CORS,
        )
        return True

    def _serve_operator(self, conn: HttpConnection, request: Request) -> None:
        text = b"Content-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\n"
        if request.method not in (b"GET", b"HEAD"):
            conn.respond_not_allowed(b"GET, HEAD, OPTIONS")
        elif request.path == b"/healthz":
            conn.respond(200, text, [b"ok\n"])
        elif request.path == b"/metrics":
            conn.respond(200, METRICS_TYPE, [self._metrics.text()])
        elif (why_not := self._why_not_ready()) is None:
            conn.respond(200, text, [b"ready\n", self._damage().encode()])
        else:
            conn.respond(503, text + b"Retry-After: 1\r\n", [why_not.encode() + b"\n"])

    def _why_not_ready(self) -> str | None:
        if self._stopping:
            return "stopping"
        if self.node is None:
            return "recovering"
        return self.node.trouble() or self.node.failed_work()

    def _damage(self) -> str:
        count = self.node.damage.count if self.node is not None else 0
        return f"{count} damaged places are not served. Run 'millstream doctor'.\n" if count else ""
