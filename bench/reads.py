"""Figure: catch-up reads of 4 KiB, 64 KiB and 1 MiB, from memory and from segments.

For "segments" the server is told to flush its hot tail after half a second, is given
time to do so and is then started again, so that nothing is left in memory.

The load asks for the same ranges again and again, which the server's read cache knows
after the second time. So each is also measured without it: what a reader gets who is the
first to ask. What comes from segments is judged by that.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from loadgen import Load, fill_streams, run_load
from servers import (
    MILLSTREAM,
    NODE_FILE,
    NODE_MEMORY,
    BenchError,
    Fleet,
    Server,
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

FROM_MEMORY = "millstream memory"
FROM_SEGMENTS = "millstream segments"
MEMORY_UNCACHED = "millstream memory, no cache"
SEGMENTS_UNCACHED = "millstream segments, no cache"
OURS = (FROM_MEMORY, MEMORY_UNCACHED, FROM_SEGMENTS, SEGMENTS_UNCACHED)
CONTENDERS = (*OURS, NODE_MEMORY, NODE_FILE)

# Memory: never flush while we measure. Segments: flush at once.
KEEP_HOT = {"checkpoint_age_s": 3600.0}
FLUSH_SOON = {"checkpoint_age_s": 0.5}
NO_CACHE = {"read_cache_bytes": 0}
FLUSH_WAIT_S = 3.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One read size; the streams of all cells together stay below Node's 100 handles."""

    name: str
    kind: str
    connections: int
    streams: int
    messages: int
    message_bytes: int

    @property
    def read_bytes(self) -> int:
        return self.messages * self.message_bytes


CELLS = (
    Cell("4 KiB, 64 connections", "read4k", 64, 40, 16, 256),
    Cell("64 KiB, 64 connections", "read64k", 64, 20, 256, 256),
    Cell("1 MiB, 8 connections", "read1m", 8, 8, 16, 65536),
)


def measure(plan: Plan) -> Figure:
    samples = Samples()
    with Fleet() as fleet:
        servers = _start_filled(plan, fleet)
        for round_ in range(plan.rounds):
            progress(f"reads: round {round_ + 1} of {plan.rounds}")
            for cell in CELLS:
                for name in in_turn(round_, list(servers)):
                    settle(list(servers.values()))
                    samples.add(round_, name, cell.name, _read(plan, servers[name], cell))
    tables = [_table(plan, samples, cell) for cell in CELLS]
    return Figure("reads", tables, _bars(samples), samples)


def _start_filled(plan: Plan, fleet: Fleet) -> dict[str, Server]:
    servers = {NODE_MEMORY: fleet.start(NODE_MEMORY), NODE_FILE: fleet.start(NODE_FILE)}
    if not plan.peers_only:
        servers[FROM_MEMORY] = fleet.start(MILLSTREAM, KEEP_HOT)
        servers[MEMORY_UNCACHED] = fleet.start(MILLSTREAM, KEEP_HOT | NO_CACHE)
        servers[FROM_SEGMENTS] = fleet.start(MILLSTREAM, FLUSH_SOON)
        servers[SEGMENTS_UNCACHED] = fleet.start(MILLSTREAM, FLUSH_SOON | NO_CACHE)
    for name, server in servers.items():
        progress(f"reads: filling {name}")
        for cell in CELLS:
            fill_streams(server, cell.kind, cell.streams, cell.messages, cell.message_bytes)
    if not plan.peers_only:
        _move_to_segments(servers[FROM_SEGMENTS])
        _move_to_segments(servers[SEGMENTS_UNCACHED])
    return {name: servers[name] for name in CONTENDERS if name in servers}


def _move_to_segments(server: Server) -> None:
    time.sleep(FLUSH_WAIT_S)
    settle([server])
    server.stop()
    assert server.data_dir is not None
    held = _bytes_below(server.data_dir / "data" / "objects" / "segments")
    filled = sum(cell.streams * cell.read_bytes for cell in CELLS)
    # The payload is random text, which a compressor cannot halve.
    if held < filled // 2:
        raise BenchError(f"the segments hold {held} bytes of {filled}: nothing to read from")
    server.start()


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _read(plan: Plan, server: Server, cell: Cell) -> dict[str, float]:
    load = Load(
        "get",
        cell.kind,
        cell.connections,
        cell.streams,
        seconds=plan.seconds,
        warmup_s=plan.warmup_s,
        expect_bytes=cell.read_bytes,
    )
    return run_load(server, load).values()


def _table(plan: Plan, samples: Samples, cell: Cell) -> Table:
    keys = ("rate", "megabytes_per_s", "p50_us", "p99_us", "cpu_us")
    rows = []
    for name in CONTENDERS:
        figures = [number(samples.median(name, cell.name, key)) for key in keys]
        rows.append([name, *figures, times(_vs_node_memory(samples, name, cell.name))])
    columns = ["server", "reads/s", "MB/s", "p50 us", "p99 us", "cpu us", "vs node memory"]
    title = f"Catch-up reads of {cell.name}, median of {plan.rounds}"
    return Table(title, columns, rows)


def _vs_node_memory(samples: Samples, name: str, cell: str) -> float | None:
    return ratio(samples.median(name, cell, "rate"), samples.median(NODE_MEMORY, cell, "rate"))


def _bars(samples: Samples) -> list[Bar]:
    limits = (
        (FROM_MEMORY, CELLS[0].name, 5.0),
        (FROM_MEMORY, CELLS[2].name, 1.5),
        (SEGMENTS_UNCACHED, CELLS[2].name, 1.5),
    )
    return [
        Bar(
            f"GET {cell}, {name} vs node memory",
            _vs_node_memory(samples, name, cell),
            limit,
            True,
            "x",
        )
        for name, cell, limit in limits
    ]
