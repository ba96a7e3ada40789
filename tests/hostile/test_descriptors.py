"""A crowd of idle connections takes no descriptor that the files need."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import ServerProcess
from tests.hostile.memory import descriptors
from tests.hostile.wire import Ended, Wire, ask, content, post, put, request

LIMIT = 256
IDLE = 300
PATH = "/v1/stream/busy"


class LimitedServer(ServerProcess):
    """One that may open few files."""

    def _command(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", *super()._command()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    settings = {"journal_file_bytes": "64KiB", "checkpoint_age_s": 0.2, "low_space_bytes": 0, "merge_segments_min": 2}
    server = LimitedServer(tmp_path, settings)
    server.start()
    try:
        yield server
    finally:
        assert server.stop() == 0
        assert "Traceback" not in server.log()


def idle(port: int, count: int) -> list[socket.socket]:
    sockets = []
    for _ in range(count):
        with contextlib.suppress(ConnectionResetError):  # sent away before it was in
            sockets.append(socket.create_connection(("127.0.0.1", port), timeout=5))
    return sockets


def test_a_server_says_what_it_had_to_cut(server: ServerProcess) -> None:
    assert f"may open {LIMIT} files, which leaves room for" in server.log()


@pytest.mark.parametrize("protocol", ["http", "s3p"])
def test_idle_connections_end_neither_writes_nor_reads(server: ServerProcess, protocol: str) -> None:
    put(server.port, PATH)
    expected = b""
    with Wire(server.port) as busy, contextlib.ExitStack() as crowd:
        for number in range(40):  # each append takes most of a journal file
            if number % 10 == 5:
                for sock in idle(server.port if protocol == "http" else server.s3p_port, IDLE):
                    crowd.enter_context(sock)
            body = b"%02d" % number * 20_000
            busy.send(request("POST", PATH, "Content-Type: text/plain", body=body))
            assert busy.answer("POST").status == 204
            expected += body
            assert descriptors(server.pid) < LIMIT - 8
        time.sleep(0.5)  # what was written is in segments by now
        busy.send(request("GET", PATH + "?offset=-1"))
        assert busy.answer().body == expected
        busy.send(request("GET", "/readyz/local"))
        assert busy.answer().status == 200


def test_who_is_one_too_many_is_told_and_gets_in_when_there_is_room(server: ServerProcess) -> None:
    put(server.port, PATH)
    crowd = idle(server.port, IDLE)
    give_up = time.monotonic() + 10
    while True:  # those above the limit who were told leave after a while
        with contextlib.suppress(Ended, ConnectionResetError):
            if ask(server.port, request("GET", PATH)).status == 503:
                break
        assert time.monotonic() < give_up
        time.sleep(0.1)
    for sock in crowd:
        sock.close()
    while True:
        with contextlib.suppress(Ended, ConnectionResetError, AssertionError):
            post(server.port, PATH, b"here again")
            break
        assert time.monotonic() < give_up
        time.sleep(0.1)
    assert content(server.port, PATH) == b"here again"
