"""A server with small limits, shared by the tests of a file; each test must leave it in good health."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator

import pytest
from tests.conftest import ServerProcess
from tests.hostile.wire import ask, content, post, put, request

SMALL: dict[str, object] = {
    "head_bytes_max": "8KiB",
    "append_bytes_max": "1MiB",
    "inflight_bytes_max": "16MiB",
    "part_bytes": "64KiB",
    "idle_timeout_s": 0.5,
    "drain_timeout_s": 0.5,
    "long_poll_ms": 400,
    "low_space_bytes": 0,
}
_names = itertools.count(1)


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("hostile"), SMALL)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def port(small_server: ServerProcess) -> Iterator[int]:
    """Where to be hostile. Whatever was done to the server, it goes on serving and has nothing to regret."""
    known = len(small_server.log())
    yield small_server.port
    check_health(small_server, known)


@pytest.fixture
def path(port: int) -> str:
    """A fresh text stream."""
    name = f"/v1/stream/hostile/{next(_names)}"
    put(port, name)
    return name


@pytest.fixture
def seed_and_inputs(capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """What a long run starts from and how much it sends. Printed, as the same two bring the run back."""
    seed = int(os.environ.get("MILLSTREAM_TORTURE_SEED") or secrets.randbelow(10**9))
    inputs = int(os.environ.get("MILLSTREAM_TORTURE_INPUTS") or 1_000_000)
    with capsys.disabled():
        print(f"\nMILLSTREAM_TORTURE_SEED={seed} MILLSTREAM_TORTURE_INPUTS={inputs}", flush=True)
    return seed, inputs


def check_health(server: ServerProcess, log_from: int = 0) -> None:
    """It serves, and its log tells of no accident since `log_from`."""
    assert ask(server.port, request("GET", "/readyz/local")).body == b"ready\n"
    name = f"/v1/stream/health/{next(_names)}"
    put(server.port, name)
    post(server.port, name, b"still here")
    assert content(server.port, name) == b"still here"
    log = server.log()[log_from:]
    assert "Traceback" not in log, log[:2000]
