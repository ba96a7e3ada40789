"""The commands against a real server: called in this process where that is enough, as processes where it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import pytest
from tests.conftest import ServerProcess, StartServer, clean_environment

from millstream.cli.main import run


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    def ok(self) -> Outcome:
        assert self.code == 0, self.err
        return self


Cli = Callable[..., Outcome]


@pytest.fixture(scope="session", autouse=True)
def _certificates_are_loaded_once() -> Iterator[None]:
    """Each command makes a client of its own, and each client would load all certificates anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx, "create_ssl_context", cache(httpx.create_ssl_context))
        yield


@pytest.fixture(scope="module")
def live(module_server: StartServer) -> ServerProcess:
    return module_server({"long_poll_ms": 500})


@pytest.fixture
def cli(live: ServerProcess, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`cli("stream", "head", "a/b")`, with `stdin=b"..."` if the command reads some."""
    monkeypatch.setenv("MILLSTREAM_URL", live.url)

    def call(*arguments: str, stdin: bytes = b"") -> Outcome:
        capfdbinary.readouterr()
        with tempfile.TemporaryFile("w+") as file:
            file.buffer.write(stdin)
            file.buffer.flush()
            file.buffer.seek(0)
            monkeypatch.setattr(sys, "stdin", file)
            code = run(arguments)
        sys.stdout.flush()
        printed = capfdbinary.readouterr()
        return Outcome(code, printed.out, printed.err.decode())

    return call


@pytest.fixture
def started(live: ServerProcess) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start the command as a process: `started("stream", "tail", "a/b")`. Options go to Popen."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(command(*arguments), env=environment(live), **{**pipes, **options})
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait(10)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "millstream", *arguments]


def environment(live: ServerProcess) -> dict[str, str]:
    return {**clean_environment(), "MILLSTREAM_URL": live.url, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
