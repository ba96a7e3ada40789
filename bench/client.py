"""Figure: the Python client against Millstream, beside the npm client in the same run.

A producer of small JSON messages beside single awaited appends, 64 at a time, and beside the npm client's producer; a
catch-up iteration over 200,000 messages; and what 10,000 forced reconnects leave in memory.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator

from loadgen import STREAMS
from servers import BENCH, MILLSTREAM, BenchError, Fleet, Server, millstream_python, settle
from tables import Bar, Figure, Plan, Samples, Table, in_turn, number, progress, ratio, times

ASYNCIO, THREADS, NPM, SINGLY = "producer, asyncio", "producer, threads", "npm producer", "single appends, 64 at a time"
READ, RECONNECT = "catch-up iteration", "reconnects"
ACTS = {ASYNCIO: "produce-asyncio", THREADS: "produce-threads", SINGLY: "appends"}
RATE = "messages_per_s"
MEASUREMENT_SECONDS_MAX = 300


def measure(plan: Plan) -> Figure:
    samples = Samples()
    if not plan.peers_only:
        _measure_writing(plan, samples)
        _measure_reconnects(plan, samples)
    return Figure("client", [_table(samples)], _bars(samples), samples)


def _measure_writing(plan: Plan, samples: Samples) -> None:
    messages, singles = plan.scaled(200_000, 50_000), plan.scaled(5_000, 1_000)
    with Fleet() as fleet:
        server = fleet.start(MILLSTREAM)
        for round_ in range(plan.rounds):
            progress(f"client: round {round_ + 1} of {plan.rounds}")
            for cell in in_turn(round_, (ASYNCIO, NPM, THREADS, SINGLY)):
                settle([server])
                url = _stream_url(server, f"{cell}-{round_}")
                count = singles if cell == SINGLY else messages
                samples.add(round_, MILLSTREAM, cell, _run(_command(cell, url, count)))
            settle([server])
            full = _stream_url(server, f"{ASYNCIO}-{round_}")
            samples.add(round_, MILLSTREAM, READ, _run(_ours("read", full, messages)))


def _measure_reconnects(plan: Plan, samples: Samples) -> None:
    progress("client: reconnects")
    with _cutting_server() as port:
        count = plan.scaled(10_000, 2_000)
        samples.add(0, MILLSTREAM, RECONNECT, _run(_ours("reconnect", f"http://127.0.0.1:{port}/stream", count)))


def _stream_url(server: Server, cell: str) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in cell)
    return f"http://127.0.0.1:{server.port}{STREAMS}client/{name}"


def _command(cell: str, url: str, count: int) -> list[str]:
    if cell == NPM:
        return ["node", str(BENCH / "npm_producer.mjs"), url, str(count)]
    return _ours(ACTS[cell], url, count)


def _ours(act: str, url: str, count: int) -> list[str]:
    return [millstream_python(), str(BENCH / "client_load.py"), act, url, str(count)]


def _run(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=MEASUREMENT_SECONDS_MAX, check=False)
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


@contextlib.contextmanager
def _cutting_server() -> Iterator[int]:
    command = [millstream_python(), str(BENCH / "cutting_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def _table(samples: Samples) -> Table:
    singly = samples.median(MILLSTREAM, SINGLY, RATE)
    rows = []
    for cell in (ASYNCIO, THREADS, NPM, SINGLY, READ):
        rate = samples.median(MILLSTREAM, cell, RATE)
        rows.append((cell, number(rate), "" if cell == READ else times(ratio(rate, singly))))
    grown = samples.median(MILLSTREAM, RECONNECT, "grown_mb")
    rows.append((RECONNECT, number(samples.median(MILLSTREAM, RECONNECT, "reconnects_per_s")), ""))
    notes = (f"memory grew by {number(grown)} MB over the last nine tenths of the reconnects",)
    return Table("The Python client (small JSON messages)", ("what", "per second", "vs single"), rows, notes)


def _bars(samples: Samples) -> list[Bar]:
    ours = samples.median(MILLSTREAM, ASYNCIO, RATE)
    return [
        Bar(
            "producer vs single awaited appends, 64 at a time",
            ratio(ours, samples.median(MILLSTREAM, SINGLY, RATE)),
            3.0,
            True,
            "x",
        ),
        Bar("producer vs the npm client's", ratio(ours, samples.median(MILLSTREAM, NPM, RATE)), 1.0, True, "x"),
        Bar("catch-up iteration", samples.median(MILLSTREAM, READ, RATE), 100_000, True, "/s"),
        Bar("memory after forced reconnects", samples.median(MILLSTREAM, RECONNECT, "grown_mb"), 5.0, False, " MB"),
    ]
