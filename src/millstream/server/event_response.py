"""What every SSE response has: a head, heartbeats, an age at which it ends, and a client that may be slow or gone."""

from __future__ import annotations

import asyncio

from ..protocol.http.sse import HEARTBEAT
from .http_connection import HttpConnection
from .settings import Settings


class EventResponse:
    """One response that goes on. It follows something, and is told by `stream_changed`."""

    __slots__ = ("_conn", "_done", "_fetch", "_settings", "_timers", "queued")

    def __init__(self, conn: HttpConnection, settings: Settings) -> None:
        self.queued = False  # of `node.followers`
        self._conn = conn
        self._settings = settings
        self._done = False
        self._fetch: asyncio.Task[None] | None = None  # what must be read from disk before we can go on
        self._timers: list[asyncio.TimerHandle] = []

    def stream_changed(self) -> None:
        """Send what is new, as far as the client drains it."""
        raise NotImplementedError

    def _leave_followers(self) -> None:
        raise NotImplementedError

    def _begin(self, lines: bytes) -> bool:
        """Send the head; False when the client is gone."""
        if not self._conn.begin_stream(lines):
            return False
        loop = asyncio.get_running_loop()
        self._timers = [
            loop.call_later(self._settings.sse_heartbeat_s, self._beat),
            loop.call_later(self._settings.sse_max_s, self.end),
        ]
        self._conn.live = self
        return True

    def _send(self, event: bytes) -> None:
        self._conn.send(chunk(event) if self._conn.is_chunked() else event)

    def _beat(self) -> None:
        if not self._done:
            if not self._conn.paused:
                self._send(HEARTBEAT)
            self._timers[0] = asyncio.get_running_loop().call_later(self._settings.sse_heartbeat_s, self._beat)

    def writable(self) -> None:
        self.stream_changed()

    def cancel(self) -> None:
        self._leave()

    def end(self) -> None:
        if not self._done:
            self._leave()
            self._conn.end_stream()

    def _leave(self) -> None:
        self._done = True
        for timer in self._timers:
            timer.cancel()
        if self._fetch is not None and self._fetch is not asyncio.current_task():
            self._fetch.cancel()
        self._leave_followers()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)
