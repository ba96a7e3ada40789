"""Very many SSE connections held by one process, without a task for each: sockets and an epoll."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time

import pytest

_CONNECT_TOGETHER = 100
_RECEIVE_BYTES = 256 << 10


def allow_descriptors(count: int) -> None:
    """Raise our limit, which servers that we start inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.fail(f"This test needs {count} descriptors and may have {hard}: raise the limit (ulimit -Hn).")
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


class Crowd:
    """Live readers of one path. What each has received is counted, not kept."""

    def __init__(self, port: int, target: str) -> None:
        self._port = port
        self._request = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        self._sockets: dict[int, socket.socket] = {}
        self._epoll = select.epoll()
        self.received: dict[int, int] = {}  # bytes, by descriptor
        self.marks: dict[int, int] = {}  # how often the word that `wait_for` looks for has come
        self.ended = 0

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets.values():
            one.close()
        self._epoll.close()

    def __len__(self) -> int:
        return len(self._sockets)

    def join(self, count: int, timeout_s: float) -> None:
        """Open more connections; each is in when the first control event is there."""
        deadline = time.monotonic() + timeout_s
        for first in range(0, count, _CONNECT_TOGETHER):
            for _ in range(min(_CONNECT_TOGETHER, count - first)):
                self._connect()
            self.wait_for(b"upToDate", 1, deadline - time.monotonic())
        self.marks.clear()

    def _connect(self) -> None:
        one = socket.create_connection(("127.0.0.1", self._port), 10)
        one.sendall(self._request)
        one.setblocking(False)
        self._sockets[one.fileno()] = one
        self.received[one.fileno()] = 0
        self._epoll.register(one.fileno(), select.EPOLLIN)

    def wait_for(self, word: bytes, times: int, timeout_s: float) -> float:
        """Until everybody has received a word so often; how long it took. The word must not be cut by the network:
        it is looked for in what comes at a time, and events are sent whole."""
        began = time.monotonic()
        missing = {fd for fd in self._sockets if self.marks.get(fd, 0) < times}
        while missing:
            left_s = timeout_s - (time.monotonic() - began)
            assert left_s > 0, f"{len(missing)} of {len(self)} live readers were not told in {timeout_s:.0f} s"
            for fd, _ in self._epoll.poll(min(left_s, 1.0)):
                data = self._receive(fd)
                self.marks[fd] = self.marks.get(fd, 0) + data.count(word)
                if self.marks[fd] >= times:
                    missing.discard(fd)
        return time.monotonic() - began

    def _receive(self, fd: int) -> bytes:
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = self._sockets[fd].recv(_RECEIVE_BYTES)
            assert data, f"the server ended a live read after {self.received[fd]} bytes"
        self.received[fd] += len(data)
        return data
