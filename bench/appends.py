"""Figure: durable appends of 256 bytes, by connections and streams.

Millstream answers after fdatasync. Node's memory store never syncs; its file store
syncs every append on its own and is asked for 80 streams at most, because beyond 100
it answers false 404s. Streams are written in turn, which suits the file store best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from loadgen import Load, create_streams, run_load
from servers import (
    MILLSTREAM,
    NODE_FILE,
    NODE_FILE_STREAMS_MAX,
    NODE_MEMORY,
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

CONNECTIONS = (1, 8, 64, 256)
BODY_BYTES = 256
WHOLE = 1_200_000  # three checkpoints' worth
# Many connections are measured for longer: a checkpoint falls due every few seconds then, and a short measurement has
# one in it or has not, perhaps for what its neighbours wrote.
MANY, MANY_LAST = 64, 6

# Uncounted, so that the first cells do not meet a cold compiler in Node.
WARM_UP = Load("append", f"append{NODE_FILE_STREAMS_MAX}", 64, NODE_FILE_STREAMS_MAX, seconds=1.0)


@dataclass(frozen=True, slots=True)
class Cell:
    connections: int
    streams: int
    peer: str

    @property
    def name(self) -> str:
        return f"{self.connections} x {self.streams}"

    @property
    def whole_name(self) -> str:
        return f"{self.name}, whole"

    @property
    def kind(self) -> str:
        return f"append{self.streams}"


def stream_counts(plan: Plan) -> tuple[int, ...]:
    return (1, 500, plan.scaled(100_000, 20_000))


def cells(plan: Plan) -> list[Cell]:
    memory = [Cell(c, s, NODE_MEMORY) for s in stream_counts(plan) for c in CONNECTIONS]
    return memory + [Cell(c, NODE_FILE_STREAMS_MAX, NODE_FILE) for c in CONNECTIONS]


def whole_cells(plan: Plan) -> tuple[Cell, Cell]:
    """One stream and many."""
    return Cell(256, 1, NODE_MEMORY), Cell(256, max(stream_counts(plan)), NODE_MEMORY)


def measure(plan: Plan) -> Figure:
    samples = Samples()
    for round_ in range(plan.rounds):
        progress(f"appends: round {round_ + 1} of {plan.rounds}")
        with Fleet() as fleet:
            _one_round(plan, round_, fleet, samples)
    tables = [_table(plan, samples, NODE_MEMORY), _table(plan, samples, NODE_FILE), _whole_table(plan, samples)]
    return Figure("appends", tables, _bars(plan, samples), samples)


def _one_round(plan: Plan, round_: int, fleet: Fleet, samples: Samples) -> None:
    """New servers every round: a heap that grows from round to round would slow the peer."""
    kinds = [NODE_MEMORY, NODE_FILE] if plan.peers_only else [MILLSTREAM, NODE_MEMORY, NODE_FILE]
    servers = {kind: fleet.start(kind) for kind in kinds}
    for cell in {cell.kind: cell for cell in cells(plan)}.values():
        for kind in servers:
            if cell.streams <= NODE_FILE_STREAMS_MAX or kind != NODE_FILE:
                create_streams(servers[kind], cell.kind, cell.streams)
    for server in servers.values():
        run_load(server, WARM_UP)
    for cell in cells(plan):
        for kind in in_turn(round_, (MILLSTREAM, cell.peer)):
            if kind in servers:
                settle(list(servers.values()))
                samples.add(round_, kind, cell.name, _append(plan, servers[kind], cell))
    if MILLSTREAM in servers and round_ % 2 == 0:  # a minute each time
        for cell in in_turn(round_ // 2, whole_cells(plan)):
            samples.add(round_, MILLSTREAM, cell.whole_name, _append_whole(plan, servers[MILLSTREAM], cell))


def _append_whole(plan: Plan, server: Server, cell: Cell) -> dict[str, float]:
    """Appends with the checkpoints they cause: the server's own time for each append, and the helper's for each that it
    checkpointed meanwhile. Half as many come before, uncounted: then what was there until then is checkpointed, and all
    streams are in memory."""
    count = plan.scaled(WHOLE, 50_000)
    run_load(server, Load("append", cell.kind, cell.connections, cell.streams, count=count // 2))
    settle([server], seconds_max=30.0)
    before = _Spent.by(server)
    report = run_load(server, Load("append", cell.kind, cell.connections, cell.streams, count=count))
    settle([server], seconds_max=30.0)
    after = _Spent.by(server)
    own_us = (after.own_s - before.own_s) * 1e6 / report.requests_total
    checkpointed = after.checkpointed - before.checkpointed
    helper_us = (after.helper_s - before.helper_s) * 1e6 / checkpointed if checkpointed else 0.0
    return {**report.values(), "cpu_us": own_us + helper_us, "own_us": own_us, "helper_us": helper_us}


class _Spent(NamedTuple):
    """What a server and its helpers have needed so far, and for how many facts the helpers did."""

    own_s: float
    helper_s: float
    checkpointed: int

    @classmethod
    def by(cls, server: Server) -> _Spent:
        own_s = sum(process.cpu_seconds for process in server.tree() if process.pid == server.process.pid)
        return cls(own_s, server.cpu_seconds() - own_s, int(server.metric("millstream_catalog_sequence")))


def _append(plan: Plan, server: Server, cell: Cell) -> dict[str, float]:
    load = Load(
        "append",
        cell.kind,
        cell.connections,
        cell.streams,
        seconds=plan.seconds * (MANY_LAST if cell.connections >= MANY else 1),
        warmup_s=plan.warmup_s,
        body_bytes=BODY_BYTES,
    )
    return run_load(server, load).values()


def _table(plan: Plan, samples: Samples, peer: str) -> Table:
    columns = ["connections x streams"]
    for kind in (MILLSTREAM, peer):
        columns += [f"{kind} /s", "p50 us", "p99 us", "cpu us"]
    rows = []
    for cell in cells(plan):
        if cell.peer != peer:
            continue
        row = [cell.name]
        for kind in (MILLSTREAM, peer):
            keys = ("rate", "p50_us", "p99_us", "cpu_us")
            row += [number(samples.median(kind, cell.name, key)) for key in keys]
        rows.append([*row, times(_rate_ratio(samples, cell.name, peer))])
    title = f"Durable appends of {BODY_BYTES} B beside {peer}, median of {plan.rounds}"
    return Table(title, [*columns, "ratio"], rows)


def _whole_table(plan: Plan, samples: Samples) -> Table:
    keys = ("rate", "cpu_us", "own_us", "helper_us")
    rows = [
        [cell.name, *(number(samples.median(MILLSTREAM, cell.whole_name, key)) for key in keys)]
        for cell in whole_cells(plan)
    ]
    title = f"{plan.scaled(WHOLE, 50_000):,} appends with their checkpoints, median of {(plan.rounds + 1) // 2}"
    return Table(title, ["connections x streams", f"{MILLSTREAM} /s", "cpu us", "server's", "helper's"], rows)


def _rate_ratio(samples: Samples, cell: str, peer: str) -> float | None:
    return ratio(samples.median(MILLSTREAM, cell, "rate"), samples.median(peer, cell, "rate"))


def _bars(plan: Plan, samples: Samples) -> list[Bar]:
    limits = (
        ("64 x 500", NODE_MEMORY, 2.0),
        ("256 x 500", NODE_MEMORY, 2.5),
        ("64 x 80", NODE_FILE, 15.0),
        ("256 x 80", NODE_FILE, 15.0),
    )
    bars = [
        Bar(f"appends {cell} vs {peer}", _rate_ratio(samples, cell, peer), limit, True, "x")
        for cell, peer, limit in limits
    ]
    cpu_us = samples.median(MILLSTREAM, "256 x 500", "cpu_us")
    bars.append(Bar("CPU per durable append, 256 connections", cpu_us, 40.0, False, " us"))
    return [*bars, _many_streams_bar(plan, samples)]


def _many_streams_bar(plan: Plan, samples: Samples) -> Bar:
    """A short measurement has a checkpoint in it or not, and that of its neighbours: it says little about this."""
    one, many = (samples.median(MILLSTREAM, cell.whole_name, "cpu_us") for cell in whole_cells(plan))
    return Bar(f"CPU per append, {max(stream_counts(plan)):,} streams vs 1", ratio(many, one), 1.15, False, "x")
