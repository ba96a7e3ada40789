"""A proxy in front of a real server that breaks things on demand, checks credentials, and counts connections.

One request is one connection: an answer ends with it. So every read through it is a reconnect.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Seen:
    """A request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Fault:
    """What to do to the next `count` requests that `matches` wants.

    `status` answers in the server's place. `lose_answer` lets the server act, then cuts the connection. `cut_after`
    lets so many bytes of the answer through. `refuse` cuts at once. `hold_s` waits first.
    """

    count: int = 1
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    lose_answer: bool = False
    refuse: bool = False
    cut_after: int | None = None
    hold_s: float = 0.0
    matches: Callable[[Seen], bool] = lambda seen: True


class Proxy:
    def __init__(self, upstream_port: int) -> None:
        self._upstream = ("127.0.0.1", upstream_port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._open: set[socket.socket] = set()
        self._closing = False
        self.requests: list[Seen] = []
        self.check: Callable[[Seen], bool] | None = None  # whose False is answered 401
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._open)

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def cut_all(self) -> None:
        """Break every connection there is."""
        with self._lock:
            for connection in self._open:
                _shut(connection)

    def wait_for_connections(self, count: int) -> None:
        give_up = time.monotonic() + 10
        while self.connections != count:
            assert time.monotonic() < give_up, f"{self.connections} connections are open, not {count}"
            time.sleep(0.01)

    def close(self) -> None:
        self._closing = True
        _shut(self._listener)
        self._listener.close()
        self.cut_all()
        self._thread.join(10)

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = _read_request(connection)
            if request is not None:
                self._answer(connection, *request)
        except OSError:
            pass  # one side has gone; that is what this proxy is for
        finally:
            with self._lock:
                self._open.discard(connection)
            _shut(connection)
            connection.close()

    def _answer(self, connection: socket.socket, seen: Seen, raw: bytes) -> None:
        with self._lock:
            self.requests.append(seen)
            fault = next((fault for fault in self._faults if fault.count > 0 and fault.matches(seen)), None)
            if fault is not None:
                fault.count -= 1
        if self.check is not None and not self.check(seen):
            connection.sendall(_response(401, {}, b""))
            return
        fault = fault or Fault()
        time.sleep(fault.hold_s)
        if fault.refuse:
            return
        if fault.status is not None:
            connection.sendall(_response(fault.status, fault.headers, fault.body))
            return
        self._relay(connection, raw, 0 if fault.lose_answer else fault.cut_after)

    def _relay(self, connection: socket.socket, raw: bytes, cut_after: int | None) -> None:
        with socket.create_connection(self._upstream, timeout=30) as upstream:
            watcher = threading.Thread(target=_until_gone, args=(connection, upstream), daemon=True)
            upstream.sendall(raw)
            if cut_after == 0:
                upstream.recv(1)  # the server has acted once it answers
                return
            watcher.start()
            passed = 0
            while data := upstream.recv(65536):
                if cut_after is not None and passed + len(data) >= cut_after:
                    connection.sendall(data[: cut_after - passed])
                    return
                connection.sendall(data)
                passed += len(data)


def _until_gone(connection: socket.socket, upstream: socket.socket) -> None:
    """When the client goes, so does the connection to the server."""
    try:
        while connection.recv(4096):
            pass
    except OSError:
        pass  # gone as well
    _shut(upstream)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be shut already
        connection.shutdown(socket.SHUT_RDWR)


def _read_request(connection: socket.socket) -> tuple[Seen, bytes] | None:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        piece = connection.recv(65536)
        if not piece:
            return None
        body += piece
    kept = [line for line in lines if not line.lower().startswith("connection:")]
    raw = "\r\n".join([first, *kept, "Connection: close"]).encode("latin-1") + b"\r\n\r\n" + body
    return Seen(method, target, headers, body), raw


def _response(status: int, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"HTTP/1.1 {status} Made Up", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
