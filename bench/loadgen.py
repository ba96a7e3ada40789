"""Compiles and calls the load generators (load.c, fanout.c) and reads what they report."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers import BENCH, BUILD, BenchError, Server, machine_cpu_seconds
from tables import OTHERS_SHARE

STREAMS = "/v1/stream/"
CREATE_CONNECTIONS = 64
FILL_CONNECTIONS = 64  # many share a sync: a million appends are then a matter of a minute

# CPU time is counted in ticks of 10 ms: a shorter run says nothing about others.
SHARE_SECONDS_MIN = 0.3


def build(name: str) -> Path:
    """The compiled generator; compiled again only if its source is newer."""
    source, binary = BENCH / f"{name}.c", BUILD / name
    newest = max(source.stat().st_mtime, (BENCH / "http1.h").stat().st_mtime)
    if not binary.exists() or binary.stat().st_mtime < newest:
        BUILD.mkdir(exist_ok=True)
        command = ["cc", "-O2", "-Wall", "-Wextra", "-pthread", "-o", str(binary), str(source)]
        subprocess.run(command, check=True)
    return binary


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of load.c. `kind` names the streams: /v1/stream/KIND-0, KIND-1, ..."""

    mode: str
    kind: str
    connections: int
    streams: int
    first: int = 0
    count: int = 0
    seconds: float = 0.0
    warmup_s: float = 0.0
    body_bytes: int = 256
    expect_bytes: int = -1
    disconnect_is_end: bool = False

    def arguments(self, port: int) -> list[str]:
        values = {
            "port": port,
            "mode": self.mode,
            "prefix": f"{STREAMS}{self.kind}-",
            "connections": self.connections,
            "streams": self.streams,
            "first": self.first,
            "count": self.count,
            "seconds": self.seconds,
            "warmup": self.warmup_s,
            "body-bytes": self.body_bytes,
            "expect-bytes": self.expect_bytes,
        }
        listed = [part for key, value in values.items() for part in (f"--{key}", str(value))]
        return [*listed, "--disconnect-is-end"] if self.disconnect_is_end else listed


class Usage:
    """CPU time since it was made: the server's, and the share of the machine that others had."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._server_before_s = server.cpu_seconds()
        self._machine_before_s = machine_cpu_seconds()
        self._began = time.monotonic()

    def server_cpu_seconds(self) -> float:
        return self._server.cpu_seconds() - self._server_before_s

    def others_share(self, ours_s: float) -> float:
        available_s = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        others_s = machine_cpu_seconds() - self._machine_before_s - ours_s
        return max(0.0, others_s / available_s)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The part of load.c's report that the figures use."""

    rate: float
    megabytes_per_s: float
    seconds: float
    p50_us: float
    p99_us: float
    requests_total: int
    acknowledged: int
    acknowledged_below: int
    client_cpu_us: float
    server_cpu_us: float
    others_share: float

    def values(self) -> dict[str, float]:
        found = {
            "rate": self.rate,
            "megabytes_per_s": self.megabytes_per_s,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "cpu_us": self.server_cpu_us,
            "client_cpu_us": self.client_cpu_us,
        }
        if self.seconds >= SHARE_SECONDS_MIN:
            found[OTHERS_SHARE] = self.others_share
        return found


def run_load(server: Server, load: Load) -> LoadReport:
    """Runs a load to its end; the server's CPU time is spread over all its requests."""
    usage = Usage(server)
    with running_load(server, load) as process:
        out, err = process.communicate()
    return read_report(server, process.returncode, out, err, usage)


@contextlib.contextmanager
def running_load(server: Server, load: Load) -> Iterator[subprocess.Popen[str]]:
    """A load under way; whatever happens, it does not outlive the block."""
    command = [str(build("load")), *load.arguments(server.port)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def read_report(server: Server, code: int, out: str, err: str, usage: Usage) -> LoadReport:
    server_cpu_s = usage.server_cpu_seconds()
    if code != 0:
        raise BenchError(f"{server.name}: the load failed\n{err.strip()}\n{out.strip()}")
    fields: dict[str, Any] = json.loads(out)
    total = int(fields["requests_total"])
    client_cpu_us = float(fields["client_cpu_us"])
    return LoadReport(
        rate=float(fields["rate"]),
        megabytes_per_s=float(fields["megabytes_per_s"]),
        seconds=float(fields["seconds"]),
        p50_us=float(fields["p50_us"]),
        p99_us=float(fields["p99_us"]),
        requests_total=total,
        acknowledged=sum(int(count) for count in fields["statuses"].values()),
        acknowledged_below=int(fields["acknowledged_below"]),
        client_cpu_us=client_cpu_us,
        server_cpu_us=server_cpu_s * 1e6 / max(1, total),
        others_share=usage.others_share(server_cpu_s + client_cpu_us * total / 1e6),
    )


def create_streams(server: Server, kind: str, streams: int, first: int = 0) -> LoadReport:
    connections = min(CREATE_CONNECTIONS, streams)
    return run_load(server, Load("create", kind, connections, streams, first=first))


def fill_streams(server: Server, kind: str, streams: int, messages: int, body_bytes: int) -> None:
    """Creates streams and gives each exactly this many messages."""
    create_streams(server, kind, streams)
    count = streams * messages
    append_many(server, kind, streams, count, body_bytes)


def append_many(server: Server, kind: str, streams: int, count: int, body_bytes: int) -> None:
    """So many messages in all, to each stream in turn."""
    connections = min(FILL_CONNECTIONS, count)
    run_load(server, Load("append", kind, connections, streams, count=count, body_bytes=body_bytes))


@dataclass(frozen=True, slots=True)
class FanoutReport:
    """What fanout.c reports, with the server's CPU time of the burst."""

    quiet_ack_us: float
    paced_ack_us: float
    burst_ack_us: float
    last_us: float
    deliveries_per_s: float
    cpu_us: float

    def values(self) -> dict[str, float]:
        return {
            "quiet_ack_us": self.quiet_ack_us,
            "paced_ack_us": self.paced_ack_us,
            "burst_ack_us": self.burst_ack_us,
            "last_ms": self.last_us / 1000,
            "deliveries_per_s": self.deliveries_per_s,
            "cpu_us": self.cpu_us,
        }


@dataclass(frozen=True, slots=True)
class FanoutEvents:
    """How many events each phase of fanout.c posts."""

    quiet: int
    paced: int
    burst: int


def run_fanout(
    server: Server, path: str, subscribers: int, events: FanoutEvents, more: Sequence[str] = ()
) -> FanoutReport:
    command = [str(build("fanout")), "--port", str(server.port), "--path", path, *more]
    command += ["--subscribers", str(subscribers), "--ack-events", str(events.quiet)]
    command += ["--latency-events", str(events.paced), "--burst-events", str(events.burst)]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "--wait-for-stdin"], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        cpu_by_phase, complaints = _follow_phases(server, process)
        assert process.stdout is not None
        out = process.stdout.read()
    if process.returncode != 0:
        raise BenchError(f"{server.name}: fan-out failed\n{complaints.strip()}")
    fields: dict[str, Any] = json.loads(out)
    burst_cpu_s = cpu_by_phase["done"] - cpu_by_phase["burst"]
    return FanoutReport(
        quiet_ack_us=float(fields["quiet_ack_p50_us"]),
        paced_ack_us=float(fields["paced_ack_p50_us"]),
        burst_ack_us=float(fields["burst_ack_p50_us"]),
        last_us=float(fields["last_p50_us"]),
        deliveries_per_s=float(fields["deliveries_per_s"]),
        cpu_us=burst_cpu_s * 1e6 / max(1, int(fields["deliveries"])),
    )


def _follow_phases(server: Server, process: subprocess.Popen[str]) -> tuple[dict[str, float], str]:
    """Reads the server's CPU time whenever a phase is announced, then lets it begin."""
    assert process.stderr is not None
    assert process.stdin is not None
    cpu_by_phase: dict[str, float] = {}
    complaints = ""
    for line in process.stderr:
        if not line.startswith("phase "):
            complaints += line
            continue
        cpu_by_phase[line.split()[1]] = server.cpu_seconds()
        process.stdin.write("go\n")
        process.stdin.flush()
    return cpu_by_phase, complaints
