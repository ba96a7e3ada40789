"""Figure: how soon a server is ready again after kill -9, and with how much memory.

The whole process tree is killed in the middle of the load. After the restart we check
that everything acknowledged is there: a fast recovery that forgets is no recovery.

* creating: a million streams exist and more are being created. The rounds go on with
  the same data, as a server that crashes again and again would.
* appending: Millstream at its default limits, small messages (many records) and large
  ones (many bytes); Node's file store with 80 streams beside it. Node's memory store
  has nothing to recover.
* replaying: how fast the journal alone is read back. No checkpoint is made, so that all
  of what was appended is still in it; the server says how many facts that took how long.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from loadgen import (
    STREAMS,
    Load,
    LoadReport,
    Usage,
    create_streams,
    fill_streams,
    read_report,
    running_load,
)
from servers import (
    MILLSTREAM,
    NODE_FILE,
    NODE_FILE_STREAMS_MAX,
    BenchError,
    Fleet,
    Server,
    plain_client,
    settle,
    stream_bytes,
    stream_exists,
)
from tables import Bar, Figure, Plan, Samples, Table, in_turn, number, progress

MEGABYTE = 1e6
CHECKED_STREAMS = 2000

# Every round kills at another moment between two checkpoints.
KILL_SHIFT_S = 0.7
CREATE_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class Appending:
    """Appends at full speed until the kill."""

    server: str
    streams: int
    connections: int
    body_bytes: int

    @property
    def cell(self) -> str:
        return f"appending {self.body_bytes} B to {self.streams} streams"


@dataclass(frozen=True, slots=True)
class Replaying:
    """Appends that are all in the journal when the server is killed."""

    messages: int
    body_bytes: int

    @property
    def cell(self) -> str:
        return f"replaying {self.body_bytes} B"


REPLAYED_STREAMS = 500
NO_CHECKPOINTS: dict[str, float] = {
    "checkpoint_records": 10**9,
    "checkpoint_bytes": 1 << 40,
    "checkpoint_age_s": 86_400,
    "hot_bytes_max": 1 << 40,
}


def replayings(plan: Plan) -> list[Replaying]:
    return [Replaying(plan.scaled(600_000, 50_000), 256), Replaying(plan.scaled(8_000, 1_000), 64 << 10)]


def appendings(plan: Plan) -> list[Appending]:
    all_of_them = [
        Appending(MILLSTREAM, 500, 256, 16),
        Appending(MILLSTREAM, 500, 64, 4096),
        Appending(MILLSTREAM, NODE_FILE_STREAMS_MAX, 64, 256),
        Appending(NODE_FILE, NODE_FILE_STREAMS_MAX, 64, 256),
    ]
    return [each for each in all_of_them if not (plan.peers_only and each.server == MILLSTREAM)]


def measure(plan: Plan) -> Figure:
    samples = Samples()
    for round_ in range(plan.rounds):
        progress(f"recovery: round {round_ + 1} of {plan.rounds}, appending")
        for case in in_turn(round_, appendings(plan)):
            with Fleet() as fleet:
                samples.add(round_, case.server, case.cell, _crash_appending(plan, round_, fleet, case))
    tables = [_table(plan, samples)]
    if not plan.peers_only:
        for round_ in range(plan.rounds):
            progress(f"recovery: round {round_ + 1} of {plan.rounds}, replaying")
            for replaying in in_turn(round_, replayings(plan)):
                with Fleet() as fleet:
                    samples.add(round_, MILLSTREAM, replaying.cell, _replay(fleet, replaying))
        _crash_creating_in_rounds(plan, samples)
        tables = [_table(plan, samples), _replay_table(plan, samples)]
    return Figure("recovery", tables, _bars(plan, samples), samples)


# --- killed while appending -------------------------------------------------------


def _crash_appending(plan: Plan, round_: int, fleet: Fleet, case: Appending) -> dict[str, float]:
    server = fleet.start(case.server)
    create_streams(server, "crash", case.streams)
    seconds = plan.scaled(12, 2)
    load = Load(
        "append",
        "crash",
        case.connections,
        case.streams,
        seconds=seconds * 10,
        body_bytes=case.body_bytes,
        disconnect_is_end=True,
    )
    report = _kill_during(server, load, after_s=seconds + round_ * KILL_SHIFT_S)
    values = _restart(server)
    acknowledged = report.acknowledged * case.body_bytes
    values["lost"] = max(0, acknowledged - _bytes_held(server, case.streams)) / case.body_bytes
    values["before_the_kill"] = report.acknowledged
    return values


def _bytes_held(server: Server, streams: int) -> int:
    with plain_client(server) as client:
        return sum(stream_bytes(client, f"{STREAMS}crash-{index}") or 0 for index in range(streams))


# --- the journal alone ---------------------------------------------------------------


def _replay(fleet: Fleet, case: Replaying) -> dict[str, float]:
    server = fleet.start(MILLSTREAM, NO_CHECKPOINTS)
    fill_streams(server, "replay", REPLAYED_STREAMS, case.messages // REPLAYED_STREAMS, case.body_bytes)
    server.kill()
    server.start()
    facts, seconds = server.metric("millstream_recovered_facts"), server.metric("millstream_recovery_seconds")
    if facts < case.messages:
        raise BenchError(f"only {facts:,.0f} facts were replayed, of {case.messages:,} appends and more")
    return {
        "facts": facts,
        "seconds": seconds,
        "facts_per_s": facts / seconds,
        "megabytes_per_s": case.messages * case.body_bytes / MEGABYTE / seconds,
    }


def _replay_table(plan: Plan, samples: Samples) -> Table:
    keys = ("facts", "seconds", "facts_per_s", "megabytes_per_s")
    rows = [
        [case.cell, *(number(samples.median(MILLSTREAM, case.cell, key)) for key in keys)] for case in replayings(plan)
    ]
    title = f"The journal alone, read back at start, median of {plan.rounds}"
    return Table(title, ("case", "facts", "s", "facts/s", "MB/s of payload"), rows)


# --- killed while creating ----------------------------------------------------------


def _crash_creating_in_rounds(plan: Plan, samples: Samples) -> None:
    many = _many(plan)
    with Fleet() as fleet:
        server = fleet.start(MILLSTREAM)
        progress(f"recovery: creating {many:,} streams")
        create_streams(server, "crash", many)
        settle([server], seconds_max=30)
        first = many
        for round_ in range(plan.rounds):
            progress(f"recovery: round {round_ + 1} of {plan.rounds}, creating")
            values, first = _crash_creating(plan, server, first)
            samples.add(round_, MILLSTREAM, _creating_cell(plan), values)


def _many(plan: Plan) -> int:
    return plan.scaled(1_000_000, 50_000)


def _creating_cell(plan: Plan) -> str:
    return f"creating, after {_many(plan):,} streams"


def _crash_creating(plan: Plan, server: Server, first: int) -> tuple[dict[str, float], int]:
    load = Load(
        "create",
        "crash",
        CREATE_CONNECTIONS,
        streams=10_000_000,
        first=first,
        disconnect_is_end=True,
    )
    report = _kill_during(server, load, after_s=1.5 if plan.quick else 3.0)
    values = _restart(server)
    values["before_the_kill"] = report.acknowledged_below
    values["lost"] = _missing(plan, server, first, report.acknowledged_below)
    # Some requests in flight may have become streams: go on well beyond them.
    return values, report.acknowledged_below + 10 * CREATE_CONNECTIONS


def _missing(plan: Plan, server: Server, first_new: int, below: int) -> int:
    """How many acknowledged streams are not there: the newest, and a sample of the old."""
    dice = random.Random(below)
    newest = range(max(first_new, below - CHECKED_STREAMS), below)
    indexes = [*newest, *(dice.randrange(_many(plan)) for _ in range(CHECKED_STREAMS))]
    with plain_client(server) as client:
        return sum(not stream_exists(client, f"{STREAMS}crash-{index}") for index in indexes)


# --- both ------------------------------------------------------------------------------


def _kill_during(server: Server, load: Load, after_s: float) -> LoadReport:
    usage = Usage(server)
    with running_load(server, load) as process:
        time.sleep(after_s)
        if process.poll() is not None:
            raise BenchError(f"{server.name}: the load ended before the kill")
        server.kill()
        out, err = process.communicate()
    return read_report(server, process.returncode, out, err, usage)


def _restart(server: Server) -> dict[str, float]:
    ready_s = server.start()
    values = {
        "ready_s": ready_s,
        "cpu_s": server.cpu_seconds(),
        "rss_ready_mb": server.rss_bytes() / MEGABYTE,
    }
    settle([server], seconds_max=10)
    values["rss_quiet_mb"] = server.rss_bytes() / MEGABYTE
    values["rss_peak_mb"] = server.peak_rss_bytes() / MEGABYTE
    return values


def _table(plan: Plan, samples: Samples) -> Table:
    cases = [(case.server, case.cell) for case in appendings(plan)]
    if not plan.peers_only:
        cases.append((MILLSTREAM, _creating_cell(plan)))
    keys = ("before_the_kill", "ready_s", "cpu_s", "rss_ready_mb", "rss_peak_mb")
    rows = []
    for name, cell in cases:
        row = [name, cell, *(number(samples.median(name, cell, key)) for key in keys)]
        row.insert(4, number(samples.worst(name, cell, "ready_s")))
        rows.append([*row, number(samples.worst(name, cell, "lost"))])
    columns = (
        "server",
        "killed while",
        "acked before",
        "ready s",
        "worst s",
        "cpu s",
        "RSS MB",
        "peak MB",
        "lost",
    )
    title = f"Recovery after kill -9, median of {plan.rounds}"
    notes = ("acked before: appends, or streams in all; lost: acknowledged and not there (worst)",)
    return Table(title, columns, rows, notes, text_columns=2)


def _bars(plan: Plan, samples: Samples) -> list[Bar]:
    """The worst round counts here: a limit on recovery is a promise about every crash."""
    creating = _creating_cell(plan)
    bars = [
        Bar("ready, killed while " + creating, _worst(samples, creating, "ready_s"), 10, False, " s"),
        Bar("RSS when ready", _worst(samples, creating, "rss_ready_mb"), 300, False, " MB"),
        Bar("streams lost", _worst(samples, creating, "lost"), 0, False),
    ]
    for case in appendings(plan):
        if case.server == MILLSTREAM:
            worst_s = _worst(samples, case.cell, "ready_s")
            bars.append(Bar(f"ready, killed while {case.cell}", worst_s, 10, False, " s"))
            bars.append(Bar(f"appends lost, {case.cell}", _worst(samples, case.cell, "lost"), 0, False))
    small, large = (case.cell for case in replayings(plan))
    bars.append(Bar("replay, 256 B", samples.median(MILLSTREAM, small, "facts_per_s"), 100_000, True, " facts/s"))
    bars.append(Bar("replay, 64 KiB", samples.median(MILLSTREAM, large, "megabytes_per_s"), 300, True, " MB/s"))
    return bars


def _worst(samples: Samples, cell: str, key: str) -> float | None:
    return samples.worst(MILLSTREAM, cell, key)
