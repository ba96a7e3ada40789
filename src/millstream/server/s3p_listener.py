"""The S3P listener: accepts connections, watches time and limits."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

from ..node.node import Node
from ..node.vital import vital_task
from ..protocol.s3p.commands import Limits, S3pCommand
from .s3p_connection import S3pConnection
from .s3p_handlers import S3pHandlers
from .setting_kinds import Address
from .settings import Settings

_TICK_S = 0.25


class S3pListener:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.limits = Limits(**{name: getattr(settings, f"s3p_{name}") for name in Limits.__struct_fields__})
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time()  # good to a tick: deadlines need no more
        self.handlers: S3pHandlers | None = None  # None until recovery is done
        self.inflight_bytes = 0
        self.commands: Counter[type[S3pCommand]] = Counter()
        self.errors: Counter[str] = Counter()
        self.tasks: set[asyncio.Task[None]] = set()  # the loop alone would forget them
        self._connections: set[S3pConnection] = set()
        self.lingering: dict[
            S3pConnection, None
        ] = {}  # of those, who has been sent away: the oldest makes room for others
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def start(self, address: Address) -> tuple[str, int]:
        """Listen; where."""
        self._server = await self.loop.create_server(
            lambda: S3pConnection(self), address.host, address.port, backlog=2048
        )
        self._ticker = vital_task(self._tick(), "s3p-ticks")
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    def serve_node(self, node: Node) -> None:
        """Recovery is done: open the doors."""
        self.handlers = S3pHandlers(node, self.settings)

    async def stop(self) -> None:
        """Answer what is in flight, end blocked reads, close everything; bounded by `stop_timeout_s`."""
        if self._server is not None:
            self._server.close()
        for conn in list(self._connections):
            conn.stop()
        give_up = self.loop.time() + self.settings.stop_timeout_s
        while self._connections and self.loop.time() < give_up:  # noqa: ASYNC110 - only at shutdown
            await asyncio.sleep(0.01)
        for conn in list(self._connections):
            conn.abort()
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def admit(self, conn: S3pConnection) -> int:
        """How many connections are above the limit with this one; it is admitted if none is."""
        self._connections.add(conn)
        if len(self._connections) > self.settings.s3p_connections_max and self.lingering:
            oldest = next(iter(self.lingering))
            oldest.abort()
            self.forget(oldest)
        return len(self._connections) - self.settings.s3p_connections_max

    def forget(self, conn: S3pConnection) -> None:
        self._connections.discard(conn)
        self.lingering.pop(conn, None)

    def count_error(self, code: str) -> None:
        self.errors[code] += 1

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.now = now = self.loop.time()
            for conn in list(self._connections):
                if conn.deadline and now > conn.deadline:
                    conn.timed_out()
