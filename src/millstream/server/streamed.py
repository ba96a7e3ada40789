"""Responses that are made while they are sent: bounded memory, whatever their size and however slow the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from ..model.errors import CorruptData, MillstreamError, StorageError
from ..node.node import Node
from .http_connection import HttpConnection

log = logging.getLogger(__name__)

_SLICE = 256 << 10  # sent before other connections get their turn


class Politeness:
    """What is long has time: while others write, it rests."""

    def __init__(self, node: Node, rest_s: float, busy_commits: int) -> None:
        """`busy_commits`: so many between two questions mean that others write."""
        self._node = node
        self._rest_s = rest_s
        self._busy_commits = busy_commits
        self._commits = node.writer.commits

    def rest_s(self) -> float:
        commits, self._commits = self._commits, self._node.writer.commits
        return self._rest_s if self._commits - commits >= self._busy_commits else 0.0


class StreamedAnswer:
    """One response out of pieces. Errors before the first piece are answered as everywhere; afterwards the
    connection is cut, so that the client cannot take a part for the whole.

        await StreamedAnswer(conn, lines, pieces).send()
    """

    def __init__(
        self,
        conn: HttpConnection,
        lines: bytes,
        pieces: AsyncIterator[bytes] | AsyncIterator[bytes | memoryview],
        size: int | None = None,
    ) -> None:
        self._conn = conn
        self._lines = lines
        self._pieces = pieces
        self._size = size
        self._sent = 0
        self._unyielded = 0  # bytes since other connections had their turn
        self._drained = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False

    async def send(self) -> None:
        """Send all of it. Refusals that `pieces` raises before its first piece come through."""
        try:
            first = await anext(self._pieces, b"")
            request = self._conn.request
            if request is None or not self._conn.begin_stream(self._lines, self._size):
                return
            if request.method != b"HEAD" and not await self._send_rest(first):
                return
        finally:
            if (close := getattr(self._pieces, "aclose", None)) is not None:
                await close()
        self._conn.end_stream(sized=self._size is not None or request.method == b"HEAD")

    async def _send_rest(self, first: bytes | memoryview) -> bool:
        """Whether everything was sent."""
        self._conn.live = self
        self._task = asyncio.current_task()
        try:
            await self._send_slices(first)
            async for piece in self._pieces:
                await self._send_slices(piece)
            self._check_size(self._sent)
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise
            return False  # the client is gone: nobody is left to be told
        except MillstreamError as error:
            level = logging.ERROR if isinstance(error, StorageError) else logging.WARNING
            path = b"" if self._conn.request is None else self._conn.request.path
            log.log(level, "A long answer to %s was cut off: %s", path.decode("latin-1"), error.message)
            self._conn.abort()
            return False
        except BaseException:
            self._conn.abort()
            raise
        return True

    async def _send_slices(self, piece: bytes | memoryview) -> None:
        """However large a piece is, no more of it is handed over than the client takes, and others have their turns."""
        if len(piece) <= _SLICE:
            await self._send_slice(piece)
            return
        view = memoryview(piece)
        for at in range(0, len(piece), _SLICE):
            await self._send_slice(view[at : at + _SLICE])

    async def _send_slice(self, piece: bytes | memoryview) -> None:
        self._unyielded += self._send_piece(piece)
        if self._conn.paused:
            self._drained.clear()
            await self._drained.wait()
            self._unyielded = 0
        elif self._unyielded >= _SLICE:
            await asyncio.sleep(0)
            self._unyielded = 0

    def _check_size(self, sent: int) -> None:
        if self._size is not None and sent != self._size:
            raise CorruptData(f"{self._size} bytes were announced, and there are {sent}.")

    def _send_piece(self, piece: bytes | memoryview) -> int:
        self._sent += len(piece)
        if self._size is not None and self._sent > self._size:
            self._check_size(self._sent)
        if piece:
            if self._size is None and self._conn.is_chunked():
                self._conn.send_pieces((b"%x\r\n" % len(piece), piece, b"\r\n"))
            else:
                self._conn.send(piece)
        return len(piece)

    # -- the connection calls ------------------------------------------------------------------------------

    def writable(self) -> None:
        self._drained.set()

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def end(self) -> None:
        """The server stops. What has begun may end, as long as the server waits for its connections."""
