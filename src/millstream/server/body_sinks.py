"""Large request bodies on their way into the object store: memory holds a few slices of them, never the whole.

The loop only collects what arrives; threads write and hash it in slices of a megabyte, calls that release the GIL.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from hashlib import blake2b
from typing import TypeVar

from ..model.errors import TooLarge, Unavailable
from ..storage.objects import LocalObjects
from .http_receiving import RequestReceiver

log = logging.getLogger(__name__)

_SLICE = 1 << 20
_AHEAD_MAX = 2 << 20  # received and not written yet; beyond that the client has to wait
_SYNC_EVERY = 8 << 20  # so that the last sync is short, and the journal's own never waits behind a hundred megabytes
_SINKS_MAX = 64
DIGEST_BYTES = 16
T = TypeVar("T")


def body_digest(body: bytes) -> bytes:
    """The digest that an `ObjectSink` makes of a body, of one that is in memory."""
    return blake2b(body, digest_size=DIGEST_BYTES).digest()


class ObjectSink:
    """A `BodySink` that writes an object. Its route calls `complete` or `take` once the body is there."""

    _open = 0  # how many there are: together they bound what is in memory

    def __init__(
        self,
        conn: RequestReceiver,
        objects: LocalObjects,
        name: str,
        bytes_max: int,
        too_large: TooLarge,
        rest_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.name = name
        self.size = 0
        self._conn = conn
        self._bytes_max = bytes_max
        self._rest_s = rest_s  # how long to leave the machine to others between two slices
        self._too_large = too_large  # what is said to a body beyond that
        self._digest = blake2b(digest_size=DIGEST_BYTES)
        self._received: list[bytes] = []
        self._ahead = 0  # bytes received and not written
        self._is_full = False
        self._unsynced = 0
        self._storing: asyncio.Task[None] | None = None
        self._failure: OSError | None = None
        self._is_ours = True  # until `complete`, `take` or `abort`
        if ObjectSink._open >= _SINKS_MAX:
            raise Unavailable("As many large bodies arrive as the server takes at once. Try again.")
        try:
            self._writer = objects.begin(name)
        except OSError as error:
            raise not_stored(error) from None
        ObjectSink._open += 1

    @property
    def digest(self) -> bytes:
        """Of the whole body, once it is complete or taken."""
        return self._digest.digest()

    # -- receiving -----------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bool:
        self.size += len(data)
        if self.size > self._bytes_max:
            raise self._too_large
        if self._failure is not None:
            raise not_stored(self._failure)
        self._received.append(data)
        self._ahead += len(data)
        if self._ahead >= _SLICE and self._storing is None:
            self._storing = asyncio.create_task(self._store())
        self._is_full = self._ahead >= _AHEAD_MAX
        return not self._is_full

    async def _store(self) -> None:
        while self._ahead >= _SLICE and self._failure is None:
            await self._store_received()
            if (rest_s := self._rest_s()) > 0:
                await asyncio.sleep(rest_s)
            self._resume()  # a failure is told with the next piece
        self._storing = None

    def _resume(self) -> None:
        if self._is_full:
            self._is_full = False
            self._conn.resume_body()

    async def _store_received(self) -> None:
        data = b"".join(self._received)
        self._received.clear()
        try:
            await asyncio.to_thread(self._write, data)
        except OSError as error:
            self._failure = error
        self._ahead -= len(data)

    def _write(self, data: bytes) -> None:
        self._writer.write(data)
        self._digest.update(data)
        self._unsynced += len(data)
        if self._unsynced >= _SYNC_EVERY:
            self._unsynced = 0
            self._writer.sync()

    # -- ending --------------------------------------------------------------------------------------------

    async def complete(self) -> None:
        """Make the object durable under its name."""
        await self._end_with(self._writer.finish)

    async def take(self) -> bytes:
        """The body itself, of one that turned out small; there will be no object."""
        return await self._end_with(self._writer.content)

    async def _end_with(self, last: Callable[[], T]) -> T:
        if not self._is_ours:
            raise Unavailable("The connection was lost before the body was taken.", code="body_not_stored")
        self._is_ours = False
        self._resume()  # what comes now is another request
        try:
            if self._storing is not None:
                await self._storing
            await self._store_received()
            if self._failure is not None:
                raise self._failure
            return await asyncio.to_thread(last)
        except OSError as error:
            raise not_stored(error) from None
        finally:
            self._let_go()

    def abort(self) -> None:
        if not self._is_ours:
            return
        self._is_ours = False
        self._resume()
        if self._storing is None:
            self._let_go()
        else:  # its thread still uses the descriptor
            self._storing.add_done_callback(lambda _: self._let_go())

    def _let_go(self) -> None:
        ObjectSink._open -= 1
        self._writer.abort()


class UnwantedSink:
    """A `BodySink` for a body whose answer is known before it comes: it is read over, up to a limit."""

    def __init__(self, bytes_max: int, too_large: TooLarge) -> None:
        self._left = bytes_max
        self._too_large = too_large

    def feed(self, data: bytes) -> bool:
        self._left -= len(data)
        if self._left < 0:
            raise self._too_large
        return True

    def abort(self) -> None:
        """Nothing was taken."""


def not_stored(error: OSError) -> Unavailable:
    """The refusal of a body that the disk does not take."""
    log.error("A request body cannot be stored: %s", error)
    return Unavailable(f"The body cannot be stored ({error.strerror}). Try again.", code="body_not_stored")
