"""Figure: creating 100,000 streams, and what they cost in memory while idle.

A new server every round. Memory is the resident size summed over the process tree:
when the last stream was made, once the server is quiet, and (Millstream) after it had
the time for a checkpoint at its default age. Pss counts shared pages only once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from loadgen import create_streams
from servers import (
    MILLSTREAM,
    NODE_FILE,
    NODE_FILE_STREAMS_MAX,
    NODE_MEMORY,
    Fleet,
    settle,
)
from tables import (
    Bar,
    Figure,
    Plan,
    Samples,
    Table,
    in_turn,
    number,
    progress,
    ratio,
    times,
)

SETTLE_SECONDS_MAX = 20.0
CHECKPOINT_WAIT_S = 45.0  # the default checkpoint_age_s, and the 10 s between looks for streams that may leave memory
MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Run:
    server: str
    streams: int

    @property
    def cell(self) -> str:
        return f"{self.streams:,} streams"


def runs(plan: Plan) -> list[Run]:
    many = plan.scaled(100_000, 20_000)
    all_runs = [
        Run(MILLSTREAM, many),
        Run(NODE_MEMORY, many),
        Run(MILLSTREAM, NODE_FILE_STREAMS_MAX),
        Run(NODE_FILE, NODE_FILE_STREAMS_MAX),
    ]
    return [run for run in all_runs if not (plan.peers_only and run.server == MILLSTREAM)]


def measure(plan: Plan) -> Figure:
    samples = Samples()
    for round_ in range(plan.rounds):
        progress(f"creation: round {round_ + 1} of {plan.rounds}")
        for run in in_turn(round_, runs(plan)):
            with Fleet() as fleet:
                samples.add(round_, run.server, run.cell, _create(plan, fleet, run))
    tables = [_creation_table(plan, samples), _memory_table(plan, samples)]
    return Figure("creation_and_memory", tables, _bars(plan, samples), samples)


def _create(plan: Plan, fleet: Fleet, run: Run) -> dict[str, float]:
    server = fleet.start(run.server)
    settle([server])
    rss_before = server.rss_bytes()
    values = create_streams(server, "created", run.streams).values()
    values["rss_loaded_mb"] = server.rss_bytes() / MEGABYTE
    settle([server], SETTLE_SECONDS_MAX)
    values["rss_quiet_mb"] = server.rss_bytes() / MEGABYTE
    if run.server == MILLSTREAM and run.streams > NODE_FILE_STREAMS_MAX and not plan.quick:
        time.sleep(CHECKPOINT_WAIT_S)
        settle([server], SETTLE_SECONDS_MAX)
    rss_after = server.rss_bytes()
    values["rss_before_mb"] = rss_before / MEGABYTE
    values["rss_after_mb"] = rss_after / MEGABYTE
    values["pss_after_mb"] = server.pss_bytes() / MEGABYTE
    per_stream = (rss_after - rss_before) / run.streams
    values["rss_per_100k_mb"] = per_stream * 100_000 / MEGABYTE
    return values


def _creation_table(plan: Plan, samples: Samples) -> Table:
    rows = []
    for run in runs(plan):
        keys = ("rate", "p50_us", "p99_us", "cpu_us")
        figures = [number(samples.median(run.server, run.cell, key)) for key in keys]
        peer = NODE_FILE if run.streams == NODE_FILE_STREAMS_MAX else NODE_MEMORY
        against = ratio(samples.median(run.server, run.cell, "rate"), samples.median(peer, run.cell, "rate"))
        rows.append([run.server, run.cell, *figures, times(against)])
    columns = ("server", "created", "streams/s", "p50 us", "p99 us", "cpu us", "vs node")
    return Table(f"Creating streams by PUT, 64 connections, median of {plan.rounds}", columns, rows, text_columns=2)


def _memory_table(plan: Plan, samples: Samples) -> Table:
    keys = (
        "rss_before_mb",
        "rss_loaded_mb",
        "rss_quiet_mb",
        "rss_after_mb",
        "pss_after_mb",
        "rss_per_100k_mb",
    )
    rows = []
    for run in runs(plan):
        figures = [number(samples.median(run.server, run.cell, key)) for key in keys]
        if run.streams == NODE_FILE_STREAMS_MAX:
            figures[-1] = "-"  # eighty streams say nothing about a hundred thousand
        rows.append([run.server, run.cell, *figures])
    columns = ("server", "streams", "empty", "loaded", "quiet", "idle", "idle Pss", "idle, per 100,000")
    return Table(f"Resident memory in MB, process tree, median of {plan.rounds}", columns, rows, text_columns=2)


def _bars(plan: Plan, samples: Samples) -> list[Bar]:
    many = Run(MILLSTREAM, plan.scaled(100_000, 20_000))
    grown = samples.median(many.server, many.cell, "rss_per_100k_mb")
    return [Bar("RSS per 100,000 idle streams", grown, 40.0, False, " MB")]
