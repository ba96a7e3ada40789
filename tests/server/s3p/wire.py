"""A raw S3P connection for tests, and transcripts: lines to send, lines to expect."""

from __future__ import annotations

import http.client
import re
import socket
import struct
from types import TracebackType

from millstream.model.ids import MessageId, parse_id
from millstream.protocol.s3p.encoder import encode_append, encode_command, encode_create, encode_read
from millstream.protocol.s3p.reply_decoder import ErrorReply, Reply, ReplyDecoder

WAIT_S = 10.0

_ID = re.compile(rb"\$\d+\r\n\d{13}-\d+\r\n")


class Wire:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = ReplyDecoder()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def reset(self) -> None:
        """Leave without a word."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._socket.sendall(piece)

    def end_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def reply(self, wait_s: float = WAIT_S) -> Reply:
        """The next reply, which must come in time."""
        self._socket.settimeout(wait_s)
        while (reply := self._decoder.next_reply()) is None:
            data = self._socket.recv(1 << 18)
            assert data, "the connection was closed before it replied"
            self._decoder.feed(data)
        return reply

    def ask(self, *elements: bytes | list[bytes]) -> Reply:
        self.send(encode_command(*elements))
        return self.reply()

    def rest(self, wait_s: float = WAIT_S) -> bytes:
        """Everything up to the end of the connection."""
        self._socket.settimeout(wait_s)
        found = b""
        while data := self._socket.recv(1 << 18):
            found += data
        return found

    # -- shorthand for commands that must succeed

    def create(self, name: bytes, client_ids: bool = False) -> None:
        self.send(encode_create(name, client_ids))
        reply = self.reply()
        assert not isinstance(reply, ErrorReply), reply

    def append(self, name: bytes, *records: bytes, first_id: MessageId | None = None) -> MessageId:
        self.send(encode_append(name, records, first_id))
        reply = self.reply()
        assert isinstance(reply, bytes), reply
        return parse_id(reply)

    def read(
        self, name: bytes, count: int | None = None, block_ms: int = 0, after: MessageId | None = None
    ) -> list[tuple[MessageId, bytes]]:
        self.send(encode_read(name, count, block_ms, after))
        return records_of(self.reply())


def records_of(reply: Reply) -> list[tuple[MessageId, bytes]]:
    assert isinstance(reply, list), reply
    return [(parse_id(reply[at]), reply[at + 1]) for at in range(0, len(reply), 2)]


def exchange(port: int, *pieces: bytes) -> bytes:
    """Send, say no more, and read everything that comes back."""
    with Wire(port) as wire:
        wire.send(*pieces)
        wire.end_sending()
        return wire.rest()


def without_ids(data: bytes) -> bytes:
    """Ids that a server made, as one that stands for all."""
    return _ID.sub(b"$15\r\n1700000001234-0\r\n", data)


def ask_http(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()
