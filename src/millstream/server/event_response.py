"""What every SSE response has: a head, heartbeats, an age at which it ends, and a client that may be slow or gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..model.errors import MillstreamError
from ..protocol.http.sse import HEARTBEAT
from .http_connection import HttpConnection
from .settings import Settings

log = logging.getLogger(__name__)
_T = TypeVar("_T")


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

    def _go_on_with(self, fetch: Callable[[], Awaitable[_T]], send: Callable[[_T], None]) -> None:
        """Wait for what comes next, send it, and go on from there."""
        self._fetch = asyncio.create_task(self._fetching(fetch, send))

    async def _fetching(self, fetch: Callable[[], Awaitable[_T]], send: Callable[[_T], None]) -> None:
        try:
            try:
                found = await fetch()
            finally:
                self._fetch = None
            if not self._done:
                send(found)
                self.stream_changed()
        except MillstreamError:
            self.end()  # the response has begun: ending it makes the client ask again and see the error
        except Exception:
            log.exception("A live reader failed in a way it must not; it is dropped.")
            self.end()

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
