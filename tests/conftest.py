"""Fixtures for every folder of tests: a real server process, and programs needed besides Python."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

# Helpers that assert; here, before any test imports them.
pytest.register_assert_rewrite(*(f"tests.torture.{name}" for name in ("writers", "verifier", "ledger")))

# A shell starts what runs in its background with Ctrl-C ignored, and so would all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

READY_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 15.0


def free_port() -> int:
    """A port that a server can come back to after a restart: below those that the kernel gives to clients."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class ServerProcess:
    """One `millstream serve` on a port of its own. It keeps its port and its data folder over a restart."""

    def __init__(self, folder: Path, settings: Mapping[str, object], port: int | None = None) -> None:
        self.port = port or free_port()
        self.s3p_port = free_port()
        self.data_dir = folder / "data"
        self.log_path = folder / "server.log"
        self.settings = dict(settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._was_killed = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server has not been started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, ready_timeout_s: float = READY_TIMEOUT_S) -> None:
        assert not self.is_running, "the server runs already"
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log, env=clean_environment())
        self._was_killed = False
        try:
            self._wait_until_ready(time.monotonic() + ready_timeout_s)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> int | None:
        """Ask politely. Fails if the server does not end by itself, in time and with 0, or had an accident before.

        Returns the exit code: one that the test has killed is dead already, and only its log is examined.
        """
        if self._process is None:
            return None
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"the server had not stopped after {STOP_TIMEOUT_S} s; its log:\n{self.log()[-4000:]}")
        expected = -signal.SIGKILL if self._was_killed else 0
        assert code == expected, f"the server exited with {code}; its log:\n{self.log()[-4000:]}"
        self.check_log()
        return code

    def kill(self) -> int:
        """SIGKILL: the server gets no chance to save anything."""
        assert self._process is not None, "the server has not been started"
        self._was_killed = self.is_running
        self._process.kill()
        return self._process.wait(STOP_TIMEOUT_S)

    def check_log(self) -> None:
        """No server and no helper had an accident that nobody thought of, not even while it died."""
        before, found, after = self.log().partition("Traceback")
        assert not found, before[-1000:] + found + after[:5000]

    def restart(self, settings: Mapping[str, object] | None = None) -> None:
        """Stop if need be, then start on the same port and data, with changed settings if any are given."""
        self.stop()
        self.settings.update(settings or {})
        self.start()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "millstream", "serve"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--data-dir", str(self.data_dir)]
        if "s3p.listen" not in self.settings:
            command += ["--s3p-listen", f"127.0.0.1:{self.s3p_port}"]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={setting_text(value)}"]
        return command

    def _wait_until_ready(self, deadline: float) -> None:
        assert self._process is not None
        while not self._answers_ready():
            if self._process.poll() is not None:
                pytest.fail(f"the server exited with {self._process.returncode}; its log:\n{self.log()[-4000:]}")
            if time.monotonic() > deadline:
                pytest.fail(f"the server was not ready in time; its log:\n{self.log()[-4000:]}")
            time.sleep(0.02)

    def _answers_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", "/readyz/local")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def setting_text(value: object) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)


def clean_environment() -> dict[str, str]:
    """Ours, without settings that a developer's shell may carry."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")}


StartServer = Callable[..., ServerProcess]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Start servers: `server()`, or `server({"long_poll_ms": 500})`. All are stopped after the test."""
    yield from _starting(tmp_path_factory)


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """The same, for servers that the tests of a module share."""
    yield from _starting(tmp_path_factory)


def _starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    with contextlib.ExitStack() as started:

        def start(settings: Mapping[str, object] | None = None) -> ServerProcess:
            process = ServerProcess(tmp_path_factory.mktemp("server"), settings or {})
            started.callback(process.stop)
            process.start()
            return process

        yield start


def find_program(name: str, wanted: str, home: str | None, version_flag: str, newest_known_bad: int) -> Path:
    """The path of a program that is new enough; otherwise the test fails and says what to install."""
    inside_home = Path(home, "bin", name) if home else None
    found = str(inside_home) if inside_home and inside_home.is_file() else shutil.which(name)
    if found is None:
        pytest.fail(f"This test needs {wanted}, and there is no `{name}` on the PATH. Please install it.")
    done = subprocess.run([found, version_flag], capture_output=True, text=True, timeout=30, check=False)
    matched = re.search(r"(\d+)\.\d+", done.stdout + done.stderr)
    if matched is None or int(matched[1]) <= newest_known_bad:
        pytest.fail(f"This test needs {wanted}, but `{name}` says {done.stdout or done.stderr!r}.")
    return Path(found)


@pytest.fixture(scope="session")
def node() -> Path:
    return find_program("node", "Node.js 20 or newer", None, "--version", newest_known_bad=19)


@pytest.fixture(scope="session")
def java() -> Path:
    home = os.environ.get("JAVA_HOME")
    return find_program("java", "Java 17 or newer", home, "-version", newest_known_bad=16)
