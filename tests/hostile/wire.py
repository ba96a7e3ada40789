"""Raw sockets, and a reader of answers that forgives nothing: whatever is sent, what comes back must be HTTP."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

WAIT_S = 5.0  # nothing may take longer, neither an answer nor the end of a connection

_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9]{2}) [ -~]+")
_HEADER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ([\t\x20-\x7e\x80-\xff]*)")


class Ended(AssertionError):
    """The connection ended where an answer could have begun."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The error's code."""
        return str(json.loads(self.body)["error"]["code"])


class Wire:
    """One connection to a server."""

    def __init__(self, port: int, receive_buffer: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(WAIT_S)
        self._socket.connect(("127.0.0.1", port))
        self._read = self._socket.makefile("rb")
        self.is_reset = False  # the server has closed before it had taken everything

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._read.close()
        self._socket.close()

    def send(self, *pieces: bytes) -> None:
        """Each piece in a segment of its own. A server that has heard enough may close: its answer counts."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._noting_a_reset():
            for piece in pieces:
                self._socket.sendall(piece)

    def end_sending(self) -> None:
        with self._noting_a_reset():
            self._socket.shutdown(socket.SHUT_WR)

    @contextlib.contextmanager
    def _noting_a_reset(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
                raise
            self.is_reset = True

    def wait(self, seconds: float) -> None:
        """Until something comes, but not longer."""
        select.select([self._socket], [], [], seconds)

    def answer(self, method: str = "GET") -> Answer:
        """The next answer, which must be there in time and well-formed; interim ones are passed over."""
        answer = self.any_answer(method)
        while answer.status < 200:
            answer = self.any_answer(method)
        return answer

    def any_answer(self, method: str = "GET") -> Answer:
        if self.is_ended():
            raise Ended
        status_line = self._line()
        matched = _STATUS_LINE.fullmatch(status_line)
        assert matched, f"not a status line: {status_line!r}"
        status = int(matched[1])
        headers = self._headers()
        answer = Answer(status, headers, self._body(method, status, headers))
        if status >= 200:
            check_manners(answer, method)
        return answer

    def is_ended(self) -> bool:
        """Whether the server closes the connection now, having said nothing more."""
        with self._noting_a_reset():
            return self._read.peek(1) == b""
        return True

    def events(self) -> str:
        """One more chunk of an SSE response."""
        return self._chunk().decode()

    def head(self) -> Answer:
        """The head of a response without an end yet."""
        status_line = self._line()
        assert status_line == b"HTTP/1.1 200 OK", status_line
        return Answer(200, self._headers(), b"")

    def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        return self._read.read()

    def _line(self) -> bytes:
        line = self._read.readline(65536)
        assert line.endswith(b"\r\n"), f"a line that does not end: {line!r}"
        return line[:-2]

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        while line := self._line():
            matched = _HEADER_LINE.fullmatch(line)
            assert matched, f"not a header: {line!r}"
            name = matched[1].decode().lower()
            assert name not in headers or name == "vary", f"{name} is there twice"
            headers[name] = matched[2].decode("latin-1")
        return headers

    def _body(self, method: str, status: int, headers: dict[str, str]) -> bytes:
        if status < 200 or status in (204, 304):
            assert "content-length" not in headers, headers
            return b""
        if "transfer-encoding" in headers:
            assert "content-length" not in headers, headers
            return b"" if method == "HEAD" else b"".join(iter(self._chunk, b""))
        if method == "HEAD":
            return b""
        size = int(headers["content-length"])
        body = self._read.read(size)
        assert len(body) == size, f"{len(body)} of {size} bytes came"
        return body

    def _chunk(self) -> bytes:
        size = int(self._line(), 16)
        data = self._read.read(size)
        assert self._line() == b""
        return data


def check_manners(answer: Answer, method: str) -> None:
    """What every answer has, and what an error says."""
    assert answer.headers["x-content-type-options"] == "nosniff"
    if answer.status < 400:
        return
    assert answer.status < 500 or answer.status in (501, 503), answer  # which are answers and not mistakes
    assert answer.headers["content-type"] == "application/json", answer
    if method == "HEAD":
        return
    error = json.loads(answer.body)["error"]
    assert re.fullmatch(r"[a-z_0-9]+", error["code"]), error
    assert re.fullmatch(r"(?s).{5,}\.", error["message"]), error


def request(method: str, path: str, *lines: str, body: bytes = b"", version: str = "1.1") -> bytes:
    """A well-formed request with these further header lines."""
    length = (f"Content-Length: {len(body)}",) if body or method in ("POST", "PUT") else ()
    head = (f"{method} {path} HTTP/{version}", "Host: 127.0.0.1", *length, *lines)
    return "\r\n".join((*head, "", "")).encode("latin-1") + body


def ask(port: int, data: bytes, method: str = "GET") -> Answer:
    """The answer to bytes on a connection of their own."""
    with Wire(port) as wire:
        wire.send(data)
        return wire.answer(method)


def put(port: int, path: str, content_type: str = "text/plain") -> None:
    answer = ask(port, request("PUT", path, f"Content-Type: {content_type}"), "PUT")
    assert answer.status in (200, 201), answer


def post(
    port: int, path: str, body: bytes, content_type: str = "text/plain", *lines: str, expected: int = 204
) -> Answer:
    answer = ask(port, request("POST", path, f"Content-Type: {content_type}", *lines, body=body), "POST")
    assert answer.status == expected, answer
    return answer


def content(port: int, path: str) -> bytes:
    answer = ask(port, request("GET", path))
    assert answer.status == 200, answer
    return answer.body
