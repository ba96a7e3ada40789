"""Figure: S3P beside HTTP on the same server.

Appends of 100 bytes over 64 connections: one HTTP request each, S3P with 16 commands in flight, and S3P in batches of
100 records. READ of 1000 records by their server CPU, from memory and from segments. And what one append costs its
writer when 5,000 readers wait for it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from loadgen import SHARE_SECONDS_MIN, Load, Usage, build, create_streams, run_load
from servers import MILLSTREAM, BenchError, Fleet, Server, settle
from tables import OTHERS_SHARE, Bar, Figure, Plan, Samples, Table, in_turn, number, progress, ratio, times

BODY_BYTES = 100
CONNECTIONS = 64
DEPTH = 16
BATCH = 100
BATCH_DEPTH = 2
READ_RECORDS = 1000
READ_STREAMS = 8  # each connection its own, so that no reply serves for the next
READERS = 5000
WAKE_EVENTS = 20

HTTP = "HTTP, one record a request"
PIPELINED = f"S3P, {DEPTH} commands in flight"
BATCHED = f"S3P, batches of {BATCH}"
HOT, COLD, WAKE = "from memory", "from segments", f"{READERS} blocked readers"
KEEP_HOT = {"checkpoint_age_s": 3600.0}
FLUSH_SOON = {"checkpoint_age_s": 0.5}
FLUSH_WAIT_S = 3.0


def measure(plan: Plan) -> Figure:
    samples = Samples()
    if plan.peers_only:
        return Figure("s3p", [], [], samples)
    with Fleet() as fleet:
        writing = fleet.start(MILLSTREAM)
        reading = {HOT: fleet.start(MILLSTREAM, KEEP_HOT), COLD: fleet.start(MILLSTREAM, FLUSH_SOON)}
        create_streams(writing, "http", CONNECTIONS)
        for name in [*(f"s3p-{number_}" for number_ in range(CONNECTIONS)), "wake-0"]:
            ask(writing, ["CREATE", name, []])
        for server in reading.values():
            fill(server)
        move_to_segments(reading[COLD])
        everyone = [writing, *reading.values()]
        for round_ in range(plan.rounds):
            progress(f"s3p: round {round_ + 1} of {plan.rounds}")
            for cell in in_turn(round_, (HTTP, PIPELINED, BATCHED)):
                settle(everyone)
                samples.add(round_, MILLSTREAM, cell, append(plan, writing, cell))
            for cell, server in reading.items():
                settle(everyone)
                samples.add(round_, MILLSTREAM, cell, read(plan, server))
            settle(everyone)
            samples.add(round_, MILLSTREAM, WAKE, wake(plan, writing))
    return Figure(
        "s3p", [_appends(plan, samples), _reads(plan, samples), _wake(plan, samples)], _bars(samples), samples
    )


# --- loads


def append(plan: Plan, server: Server, cell: str) -> dict[str, float]:
    if cell == HTTP:
        load = Load(
            "append", "http", CONNECTIONS, CONNECTIONS,
            seconds=plan.seconds, warmup_s=plan.warmup_s, body_bytes=BODY_BYTES,
        )  # fmt: skip
        values = run_load(server, load).values()
        return {**values, "records_per_s": values["rate"], "cpu_us_per_record": values["cpu_us"]}
    records, depth = (1, DEPTH) if cell == PIPELINED else (BATCH, BATCH_DEPTH)
    options = {"connections": CONNECTIONS, "streams": CONNECTIONS, "name": "s3p-", "body-bytes": BODY_BYTES}
    return run(plan, server, "append", records, {**options, "records": records, "depth": depth})


def read(plan: Plan, server: Server) -> dict[str, float]:
    options = {"connections": READ_STREAMS, "streams": READ_STREAMS, "name": "read-", "count": READ_RECORDS}
    return run(plan, server, "read", READ_RECORDS, options)


def wake(plan: Plan, server: Server) -> dict[str, float]:
    readers = plan.scaled(READERS, 500)
    options = {"name": "wake-", "readers": readers, "events": plan.scaled(WAKE_EVENTS, 5)}
    return {key: float(value) for key, value in report(server, {"mode": "wake", **options}).items()}


def run(plan: Plan, server: Server, mode: str, records: int, options: Mapping[str, object]) -> dict[str, float]:
    usage = Usage(server)
    fields = report(server, {"mode": mode, "seconds": plan.seconds, "warmup": plan.warmup_s, **options})
    cpu_s = usage.server_cpu_seconds()
    total = max(1, int(fields["replies_total"]))
    client_s = float(fields["client_cpu_us"]) * total / 1e6
    found = {key: float(fields[key]) for key in ("rate", "records_per_s", "p50_us", "p99_us", "client_cpu_us")}
    found["cpu_us"] = cpu_s * 1e6 / total
    found["cpu_us_per_record"] = found["cpu_us"] / records
    if plan.seconds >= SHARE_SECONDS_MIN:
        found[OTHERS_SHARE] = usage.others_share(cpu_s + client_s)
    return found


def report(server: Server, options: Mapping[str, object]) -> dict[str, Any]:
    command = [str(build("s3p_load")), "--port", str(server.s3p_port)]
    command += [part for key, value in options.items() for part in (f"--{key}", str(value))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise BenchError(f"{server.name}: the S3P load failed\n{done.stderr.strip()}")
    fields: dict[str, Any] = json.loads(done.stdout)
    return fields


# --- preparing


def ask(server: Server, *commands: list[str | list[str]]) -> None:
    """Commands that must succeed, each replied to with one line or one bulk string."""
    with socket.create_connection(("127.0.0.1", server.s3p_port), 30) as connection, connection.makefile("rb") as lines:
        for command in commands:
            connection.sendall(encoded(command))
            line = lines.readline()
            if line.startswith(b"$"):
                lines.readline()
            elif not line.startswith(b"+"):
                raise BenchError(f"{server.name}: S3P said {line!r}")


def encoded(element: str | list[str | list[str]] | list[str]) -> bytes:
    if isinstance(element, str):
        return f"${len(element)}\r\n{element}\r\n".encode()
    return b"*%d\r\n" % len(element) + b"".join(map(encoded, element))


def fill(server: Server) -> None:
    """One record per append, as it costs most to read."""
    record = "x" * BODY_BYTES
    for stream in range(READ_STREAMS):
        name = f"read-{stream}"
        ask(server, ["CREATE", name, []], *[["APPEND", name, [], [record] * 10] for _ in range(READ_RECORDS // 10)])


def move_to_segments(server: Server) -> None:
    time.sleep(FLUSH_WAIT_S)
    settle([server])
    server.stop()
    server.start()


# --- what is shown


def _appends(plan: Plan, samples: Samples) -> Table:
    rows = []
    for cell in (HTTP, PIPELINED, BATCHED):
        keys = ("records_per_s", "p50_us", "p99_us", "cpu_us_per_record")
        figures = [number(samples.median(MILLSTREAM, cell, key)) for key in keys]
        rows.append([cell, *figures, times(_vs_http(samples, cell))])
    title = f"Durable appends of {BODY_BYTES} B over {CONNECTIONS} connections, median of {plan.rounds}"
    return Table(title, ["how", "records/s", "p50 us", "p99 us", "cpu us/record", "vs HTTP"], rows)


def _reads(plan: Plan, samples: Samples) -> Table:
    keys = ("records_per_s", "p50_us", "p99_us", "cpu_us_per_record")
    rows = [[cell, *(number(samples.median(MILLSTREAM, cell, key)) for key in keys)] for cell in (HOT, COLD)]
    title = f"READ of {READ_RECORDS} records of {BODY_BYTES} B, {READ_STREAMS} connections, median of {plan.rounds}"
    return Table(title, ["from", "records/s", "p50 us", "p99 us", "cpu us/record"], rows)


def _wake(plan: Plan, samples: Samples) -> Table:
    keys = ("quiet_ack_us", "woken_ack_us", "last_reader_us")
    row = [WAKE, *(number(samples.median(MILLSTREAM, WAKE, key)) for key in keys)]
    title = f"One append to blocked readers, median of {plan.rounds}"
    return Table(title, ["who waits", "ack us, nobody", "ack us, all", "last reader us"], [row])


def _vs_http(samples: Samples, cell: str) -> float | None:
    rates = [samples.median(MILLSTREAM, one, "records_per_s") for one in (cell, HTTP)]
    return ratio(*rates)


def _bars(samples: Samples) -> list[Bar]:
    def median(cell: str, key: str) -> float | None:
        return samples.median(MILLSTREAM, cell, key)

    delay = ratio(median(WAKE, "woken_ack_us"), median(WAKE, "quiet_ack_us"))
    return [
        Bar(
            f"S3P appends, {CONNECTIONS} connections, depth {DEPTH}, vs HTTP",
            _vs_http(samples, PIPELINED),
            1.5,
            True,
            "x",
        ),
        Bar(f"S3P records/s in batches of {BATCH}, vs HTTP", _vs_http(samples, BATCHED), 5.0, True, "x"),
        Bar(f"CPU per record, READ of {READ_RECORDS}, memory", median(HOT, "cpu_us_per_record"), 2.0, False, " us"),
        Bar(f"CPU per record, READ of {READ_RECORDS}, segments", median(COLD, "cpu_us_per_record"), 2.0, False, " us"),
        Bar(f"append ack p50 with {READERS} blocked readers vs none", delay, 4.0, False, "x"),
    ]
