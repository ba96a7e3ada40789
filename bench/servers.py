"""The servers under measurement: start them, watch them, always end them.

A server is a process tree. It starts in a session of its own, and everything in
that session counts: CPU time and memory are sums over the tree, and what was
started is ended by process id, never by name.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
BUILD = BENCH / ".build"
DATA = BUILD / "data"
LOGS = BUILD / "logs"

MILLSTREAM = "millstream"
NODE_MEMORY = "node memory"
NODE_FILE = "node file"

# Beyond 100 open streams Node's file store answers false 404s.
NODE_FILE_STREAMS_MAX = 80

READY_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 20.0
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """A measurement that cannot be trusted: a server did not start, a request failed."""


# --- processes ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/PID/stat that matter here."""

    pid: int
    parent: int
    session: int
    cpu_seconds: float


def read_stat(pid: int) -> ProcessStat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] == "Z":
        return None
    # utime, stime, and what reaped children had used: nothing is lost when a child ends.
    ticks = sum(int(fields[index]) for index in (11, 12, 13, 14))
    return ProcessStat(pid, int(fields[1]), int(fields[3]), ticks / CLOCK_TICKS_PER_S)


def all_processes() -> list[ProcessStat]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [stat for stat in map(read_stat, pids) if stat is not None]


def process_tree(root: int) -> list[ProcessStat]:
    """The root's session (a helper whose parent died stays in it) and all descendants."""
    processes = all_processes()
    members = {stat.pid for stat in processes if root in (stat.pid, stat.session)}
    grown = True
    while grown:
        found = {stat.pid for stat in processes if stat.parent in members} - members
        grown = bool(found)
        members |= found
    return [stat for stat in processes if stat.pid in members]


def memory_bytes(pid: int, key: str) -> int:
    """A line of /proc/PID/status, such as VmRSS or VmHWM."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return 0


def proportional_bytes(pid: int) -> int:
    """Pss: pages shared between processes count once in a sum."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def machine_cpu_seconds() -> float:
    """CPU time of everybody on this machine, and what the hypervisor took away."""
    user, nice, system, _idle, _iowait, _irq, _softirq, steal = (
        int(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + steal) / CLOCK_TICKS_PER_S


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- one server -----------------------------------------------------------------


@dataclass(slots=True)
class Server:
    """One server process tree on one port; it may be started again after its end."""

    name: str
    command: list[str]
    port: int
    ready_path: str
    ready_statuses: frozenset[int]
    data_dir: Path | None = None
    s3p_port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self, seconds_max: float = READY_SECONDS_MAX) -> float:
        """Starts and waits until it says it is ready; returns how long that took."""
        with self._log() as log:
            began = time.monotonic()
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while not self._is_ready():
            if self.process.poll() is not None:
                raise BenchError(f"{self.name} ended while starting; see {self._log_path()}")
            if time.monotonic() - began > seconds_max:
                raise BenchError(f"{self.name} was not ready after {seconds_max:.0f} s")
            time.sleep(0.005)
        return time.monotonic() - began

    def stop(self) -> None:
        """Asks it to end; ends what is left of it."""
        if self.process is None:
            return
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS_MAX)
        self.kill()

    def kill(self) -> None:
        """kill -9 for the whole tree."""
        if self.process is None:
            return
        while tree := self.tree():
            for stat in tree:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(stat.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.01)
        self.process.wait()
        self.process = None

    def tree(self) -> list[ProcessStat]:
        return [] if self.process is None else process_tree(self.process.pid)

    def cpu_seconds(self) -> float:
        return sum(stat.cpu_seconds for stat in self.tree())

    def rss_bytes(self) -> int:
        return sum(memory_bytes(stat.pid, "VmRSS") for stat in self.tree())

    def peak_rss_bytes(self) -> int:
        """The sum of each process's own peak."""
        return sum(memory_bytes(stat.pid, "VmHWM") for stat in self.tree())

    def metric(self, name: str) -> float:
        """What Millstream says of itself."""
        with plain_client(self) as client:
            client.request("GET", "/metrics")
            text = client.getresponse().read().decode()
        (value,) = [line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")]
        return float(value)

    def pss_bytes(self) -> int:
        return sum(proportional_bytes(stat.pid) for stat in self.tree())

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", self.ready_path)
            return connection.getresponse().status in self.ready_statuses
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _log_path(self) -> Path:
        return LOGS / f"{self.name.replace(' ', '-')}-{self.port}.log"

    def _log(self) -> IO[bytes]:
        LOGS.mkdir(parents=True, exist_ok=True)
        return self._log_path().open("ab")


def settle(servers: list[Server], seconds_max: float = 5.0) -> None:
    """Waits until none of them works in the background, so that nobody pays for another."""
    window_s, idle_share = 0.2, 0.1
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        before = sum(server.cpu_seconds() for server in servers)
        time.sleep(window_s)
        used = sum(server.cpu_seconds() for server in servers) - before
        if used <= idle_share * window_s:
            return


# --- the kinds of server ----------------------------------------------------------


def millstream_python() -> str:
    own = ROOT / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def install_node_peer() -> None:
    if (BENCH / "node_modules" / "@durable-streams" / "server").exists():
        return
    # Not `npm ci`: it refuses the lock file where a registry lacks optional builds for other systems.
    command = ["npm", "install", "--no-save", "--silent"]
    subprocess.run(command, cwd=BENCH, check=True)


class Fleet:
    """Makes servers with fresh data directories; leaving it ends and removes them all."""

    def __init__(self) -> None:
        self._servers: list[Server] = []
        self._made = 0

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.kill()
            if server.data_dir is not None:
                shutil.rmtree(server.data_dir, ignore_errors=True)
        self._servers.clear()

    def make(self, kind: str, settings: Mapping[str, float] | None = None) -> Server:
        """A server of this kind, not started yet. Settings are for Millstream's TOML file."""
        port = free_port()
        data_dir = None if kind == NODE_MEMORY else self._new_data_dir(kind)
        if kind == MILLSTREAM:
            server = _millstream(port, data_dir, settings or {})
        else:
            server = _node(kind, port, data_dir)
        self._servers.append(server)
        return server

    def start(self, kind: str, settings: Mapping[str, float] | None = None) -> Server:
        server = self.make(kind, settings)
        server.start()
        return server

    def _new_data_dir(self, kind: str) -> Path:
        self._made += 1
        path = DATA / f"{os.getpid()}-{self._made}-{kind.replace(' ', '-')}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path


def _millstream(port: int, data_dir: Path | None, settings: Mapping[str, float]) -> Server:
    assert data_dir is not None
    command = [millstream_python(), "-m", "millstream", "serve"]
    command += ["--listen", f"127.0.0.1:{port}", "--data-dir", str(data_dir / "data")]
    s3p_port = free_port()
    command += ["--s3p-listen", f"127.0.0.1:{s3p_port}"]
    if settings:
        config = data_dir / "bench.toml"
        config.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
        command += ["--config", str(config)]
    return Server(MILLSTREAM, command, port, "/readyz/local", frozenset({200}), data_dir, s3p_port)


def _node(kind: str, port: int, data_dir: Path | None) -> Server:
    install_node_peer()
    command = ["node", str(BENCH / "node_server.mjs"), str(port)]
    if data_dir is not None:
        command.append(str(data_dir))
    # It has no readiness page; any answer will do.
    return Server(kind, command, port, "/v1/stream/none", frozenset({404}), data_dir)


# --- plain requests, for preparing and checking, never for measuring ----------------


@contextlib.contextmanager
def plain_client(server: Server) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        yield connection
    finally:
        connection.close()


def create_stream(server: Server, path: str) -> None:
    with plain_client(server) as client:
        client.request("PUT", path, headers={"Content-Type": "text/plain"})
        response = client.getresponse()
        response.read()
        if response.status != 201:
            raise BenchError(f"{server.name}: PUT {path} gave {response.status}")


def stream_exists(client: http.client.HTTPConnection, path: str) -> bool:
    client.request("HEAD", path)
    response = client.getresponse()
    response.read()
    return response.status == 200


def stream_bytes(client: http.client.HTTPConnection, path: str) -> int | None:
    """How much a stream holds, read page by page to its end; None if it is not there."""
    offset, total = "-1", 0
    while True:
        client.request("GET", f"{path}?offset={offset}")
        response = client.getresponse()
        body = response.read()
        if response.status == 404:
            return None
        if response.status != 200:
            raise BenchError(f"GET {path} gave {response.status}")
        total += len(body)
        following = response.getheader("Stream-Next-Offset", offset)
        if response.getheader("Stream-Up-To-Date") == "true" or following == offset:
            return total
        offset = following
