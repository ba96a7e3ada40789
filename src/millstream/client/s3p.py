"""A small client of S3P, for threads (`S3pClient`) and for asyncio (`AsyncS3pClient`).

with S3pClient("127.0.0.1", 7500) as client:
    client.create("orders")
    last = client.append("orders", [b"hello", b"world"])
    for record in client.read("orders"):
        print(record.id, record.data)

Everything a client can ask is a `Request`; `run` pipelines several of them, and the methods are `run` with one. The
server closes after an error, and the next call connects again.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar, cast

from ..model.errors import BadRequest, MillstreamError
from ..model.ids import MessageId, parse_id
from ..protocol.s3p.encoder import encode_append, encode_create, encode_delete, encode_read, encode_trim
from ..protocol.s3p.reply_decoder import ErrorReply, Ok, Reply, ReplyDecoder

__all__ = [
    "AsyncS3pClient",
    "ConnectionLost",
    "MessageId",
    "Record",
    "Request",
    "RunStopped",
    "S3pClient",
    "S3pError",
    "append",
    "create",
    "delete",
    "read",
    "trim",
]

DEFAULT_PORT = 7500
_WINDOW_BYTES = 256 << 10  # sent and not answered: a server that waits for us to read must not wait for us to send
_RECEIVE_BYTES = 256 << 10

T = TypeVar("T")
Name = str | bytes
Id = MessageId | str


class Record(NamedTuple):
    id: MessageId
    data: bytes


class RunStopped(MillstreamError):
    """A `run` ended early; `done` has the results of the requests that were answered before."""

    def __init__(self, message: str, *, code: str | None = None, done: list[Any]) -> None:
        super().__init__(message, code=code)
        self.done = done


class S3pError(RunStopped):
    """The server refused a command; `code` is S3P's. Nothing after it was executed."""


class ConnectionLost(RunStopped):
    """No reply came. Whether a write happened is unknown: read before you send it again."""

    code = "connection_lost"


class Request(Generic[T]):
    """One command, and how its reply is to be understood."""

    __slots__ = ("block_ms", "data", "understand")

    def __init__(self, data: bytes, understand: Callable[[Reply], T], block_ms: int = 0) -> None:
        self.data = data
        self.understand = understand
        self.block_ms = block_ms


# --- what can be asked ------------------------------------------------------------------------------------------


def create(name: Name, *, client_ids: bool = False) -> Request[None]:
    """A new stream. With `client_ids`, every append must name its first id."""
    return Request(encode_create(_bytes(name), client_ids), _understand_ok)


def append(name: Name, records: Sequence[bytes], first_id: Id | None = None) -> Request[MessageId]:
    """Append all of the records or none; the id of the last."""
    return Request(encode_append(_bytes(name), records, _id(first_id)), _understand_id)


def read(name: Name, *, after: Id | None = None, count: int | None = None, block_ms: int = 0) -> Request[list[Record]]:
    """The records behind an id, at most `count`; waits up to `block_ms` if there are none."""
    return Request(encode_read(_bytes(name), count, block_ms, _id(after)), _understand_records, block_ms)


def trim(name: Name, until: Id) -> Request[None]:
    """Let the records before an id go."""
    found = _id(until)
    assert found is not None
    return Request(encode_trim(_bytes(name), found), _understand_ok)


def delete(name: Name) -> Request[None]:
    return Request(encode_delete(_bytes(name)), _understand_ok)


def _bytes(name: Name) -> bytes:
    return name.encode() if isinstance(name, str) else name


def _id(given: Id | None) -> MessageId | None:
    return parse_id(given.encode()) if isinstance(given, str) else given


def _understand_ok(reply: Reply) -> None:
    if not isinstance(reply, Ok):
        raise _surprised(reply)


def _understand_id(reply: Reply) -> MessageId:
    if not isinstance(reply, bytes):
        raise _surprised(reply)
    return parse_id(reply)


def _understand_records(reply: Reply) -> list[Record]:
    if not isinstance(reply, list) or len(reply) % 2:
        raise _surprised(reply)
    return [Record(parse_id(reply[at]), reply[at + 1]) for at in range(0, len(reply), 2)]


def _surprised(reply: Reply) -> MillstreamError:
    return BadRequest(f"The server's reply is another than S3P says: {str(reply)[:64]}.", code="not_s3p")


# --- one conversation, without a socket ---------------------------------------------------------------------------


class _Conversation:
    """Requests on their way out and replies on their way in; the drivers only move bytes."""

    def __init__(self, requests: Sequence[Request[Any]]) -> None:
        self._requests = requests
        self._decoder = ReplyDecoder()
        self._sent = 0
        self._unanswered = 0  # bytes
        self.results: list[Any] = []

    @property
    def is_over(self) -> bool:
        return len(self.results) == len(self._requests)

    @property
    def block_ms(self) -> int:
        """How long the server may let us wait for the next reply on purpose."""
        return sum(request.block_ms for request in self._requests[len(self.results) : self._sent])

    def to_send(self) -> bytes:
        """What may be sent now."""
        pieces: list[bytes] = []
        while self._sent < len(self._requests) and self._unanswered < _WINDOW_BYTES:
            data = self._requests[self._sent].data
            self._unanswered += len(data)
            self._sent += 1
            pieces.append(data)
        return b"".join(pieces)

    def received(self, data: bytes) -> None:
        if not data:
            raise ConnectionLost("The server closed the connection before it replied.", done=self.results)
        self._decoder.feed(data)
        while not self.is_over:
            reply = self._decoder.next_reply()
            if reply is None:
                return
            request = self._requests[len(self.results)]
            self._unanswered -= len(request.data)
            if isinstance(reply, ErrorReply):
                raise S3pError(f"{reply.code} {reply.message}", code=reply.code, done=self.results)
            self.results.append(request.understand(reply))


def _lost(address: tuple[str, int], error: OSError, talk: _Conversation) -> ConnectionLost:
    why = str(error) or "it took too long"
    return ConnectionLost(f"No reply from {address[0]}:{address[1]}: {why}.", done=talk.results)


# --- for threads ---------------------------------------------------------------------------------------------------


class S3pClient:
    """One connection, made when it is first needed. Not for use by several threads at once."""

    def __init__(self, host: str = "127.0.0.1", port: int = DEFAULT_PORT, *, timeout_s: float = 10.0) -> None:
        self._address = (host, port)
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None

    def __enter__(self) -> S3pClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def create(self, name: Name, *, client_ids: bool = False) -> None:
        self.run([create(name, client_ids=client_ids)])

    def append(self, name: Name, records: Sequence[bytes], first_id: Id | None = None) -> MessageId:
        return cast(MessageId, self.run([append(name, records, first_id)])[0])

    def read(self, name: Name, *, after: Id | None = None, count: int | None = None, block_ms: int = 0) -> list[Record]:
        return cast(list[Record], self.run([read(name, after=after, count=count, block_ms=block_ms)])[0])

    def trim(self, name: Name, until: Id) -> None:
        self.run([trim(name, until)])

    def delete(self, name: Name) -> None:
        self.run([delete(name)])

    def run(self, requests: Sequence[Request[Any]]) -> list[Any]:
        """Pipeline the requests; their results in the same order."""
        talk = _Conversation(requests)
        try:
            connection = self._connected()
            while not talk.is_over:
                connection.sendall(talk.to_send())
                connection.settimeout(self._timeout_s + talk.block_ms / 1000)
                talk.received(connection.recv(_RECEIVE_BYTES))
        except OSError as error:
            self.close()
            raise _lost(self._address, error, talk) from error
        except BaseException:
            self.close()
            raise
        return talk.results

    def _connected(self) -> socket.socket:
        if self._socket is not None and select.select([self._socket], [], [], 0)[0]:
            self.close()  # nothing was asked, so all there can be to read is the end
        if self._socket is None:
            self._socket = socket.create_connection(self._address, self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket


# --- for asyncio ---------------------------------------------------------------------------------------------------


class AsyncS3pClient:
    """One connection, made when it is first needed; calls wait for their turn."""

    def __init__(self, host: str = "127.0.0.1", port: int = DEFAULT_PORT, *, timeout_s: float = 10.0) -> None:
        self._address = (host, port)
        self._timeout_s = timeout_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> AsyncS3pClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with contextlib.suppress(OSError):
                await streams[1].wait_closed()

    async def create(self, name: Name, *, client_ids: bool = False) -> None:
        await self.run([create(name, client_ids=client_ids)])

    async def append(self, name: Name, records: Sequence[bytes], first_id: Id | None = None) -> MessageId:
        return cast(MessageId, (await self.run([append(name, records, first_id)]))[0])

    async def read(
        self, name: Name, *, after: Id | None = None, count: int | None = None, block_ms: int = 0
    ) -> list[Record]:
        return cast(list[Record], (await self.run([read(name, after=after, count=count, block_ms=block_ms)]))[0])

    async def trim(self, name: Name, until: Id) -> None:
        await self.run([trim(name, until)])

    async def delete(self, name: Name) -> None:
        await self.run([delete(name)])

    async def run(self, requests: Sequence[Request[Any]]) -> list[Any]:
        """Pipeline the requests; their results in the same order."""
        talk = _Conversation(requests)
        async with self._turn:
            try:
                reader, writer = await self._connected()
                while not talk.is_over:
                    writer.write(talk.to_send())
                    async with asyncio.timeout(self._timeout_s + talk.block_ms / 1000):
                        await writer.drain()
                        talk.received(await reader.read(_RECEIVE_BYTES))
            except OSError as error:  # a TimeoutError is one, too
                await self.close()
                raise _lost(self._address, error, talk) from error
            except BaseException:
                await self.close()
                raise
        return talk.results

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and self._streams[0].at_eof():
            await self.close()
        if self._streams is None:
            async with asyncio.timeout(self._timeout_s):
                self._streams = await asyncio.open_connection(*self._address)
        return self._streams
