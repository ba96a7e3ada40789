"""Large request bodies on their way into the object store: memory holds none of them."""

from __future__ import annotations

import asyncio
import logging
from hashlib import blake2b

from ..model.errors import TooLarge, Unavailable
from ..storage.objects import LocalObjects
from .http_receiving import RequestReceiver

log = logging.getLogger(__name__)

_SYNC_EVERY = 8 << 20  # so that the last sync is short, and the journal's own never waits behind a hundred megabytes
_AHEAD_MAX = 16 << 20  # what may be written and not synced before the client has to wait
DIGEST_BYTES = 16


def body_digest(body: bytes) -> bytes:
    """The digest that an `ObjectSink` makes of a body, of one that is in memory."""
    return blake2b(body, digest_size=DIGEST_BYTES).digest()


class ObjectSink:
    """A `BodySink` that writes an object. Its route calls `complete` once the body is there."""

    def __init__(self, conn: RequestReceiver, objects: LocalObjects, name: str, bytes_max: int, limit: str) -> None:
        self.name = name
        self._conn = conn
        self._bytes_max = bytes_max
        self._limit = limit  # the setting that bounds the body, for the error
        self._digest = blake2b(digest_size=DIGEST_BYTES)
        self._unsynced = 0
        self._syncing: asyncio.Task[None] | None = None
        self._failure: OSError | None = None
        self._is_ours = True  # until `complete` or `abort`
        try:
            self._writer = objects.begin(name)
        except OSError as error:
            raise _refused(error) from None

    @property
    def size(self) -> int:
        return self._writer.size

    @property
    def digest(self) -> bytes:
        return self._digest.digest()

    def feed(self, data: bytes) -> bool:
        if self._writer.size + len(data) > self._bytes_max:
            raise TooLarge(f"The body may have {self._bytes_max} bytes ({self._limit}).", code="body_too_large")
        if self._failure is not None:
            raise _refused(self._failure)
        try:
            self._writer.write(data)
        except OSError as error:
            raise _refused(error) from None
        self._digest.update(data)
        self._unsynced += len(data)
        if self._unsynced >= _SYNC_EVERY and self._syncing is None:
            self._syncing = asyncio.create_task(self._sync())
        return self._unsynced < _AHEAD_MAX

    async def _sync(self) -> None:
        covered = self._unsynced
        try:
            await asyncio.to_thread(self._writer.sync)
        except OSError as error:
            self._failure = error
        was_waiting = self._unsynced >= _AHEAD_MAX
        self._unsynced -= covered
        self._syncing = None
        if was_waiting and self._is_ours:
            self._conn.resume_body()

    async def complete(self) -> None:
        """Make the object durable under its name."""
        self._is_ours = False
        try:
            if self._syncing is not None:
                await self._syncing
            if self._failure is not None:
                raise self._failure
            await asyncio.to_thread(self._writer.finish)
        except OSError as error:
            raise _refused(error) from None
        finally:
            self._writer.abort()

    def abort(self) -> None:
        if not self._is_ours:
            return
        self._is_ours = False
        if self._syncing is None:
            self._writer.abort()
        else:  # its thread still uses the descriptor
            self._syncing.add_done_callback(lambda _: self._writer.abort())


def _refused(error: OSError) -> Unavailable:
    log.error("A request body cannot be stored: %s", error)
    return Unavailable(f"The body cannot be stored ({error.strerror}). Try again.", code="body_not_stored")
