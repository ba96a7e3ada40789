"""Figure: SSE fan-out of one stream to a thousand subscribers.

"Time to last" is from sending an append until the last subscriber has it.
Node's file store reads its whole log for every delivery and gets fewer events.
"""

from __future__ import annotations

from loadgen import STREAMS, FanoutEvents, run_fanout
from servers import (
    MILLSTREAM,
    NODE_FILE,
    NODE_MEMORY,
    Fleet,
    create_stream,
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
)

CONTENDERS = (MILLSTREAM, NODE_MEMORY, NODE_FILE)
SUBSCRIBERS = 1000
CELL = f"1 -> {SUBSCRIBERS}"
EVENTS = FanoutEvents(quiet=60, paced=20, burst=40)
EVENTS_NODE_FILE = FanoutEvents(quiet=20, paced=4, burst=4)


def measure(plan: Plan) -> Figure:
    samples = Samples()
    with Fleet() as fleet:
        kinds = CONTENDERS[1:] if plan.peers_only else CONTENDERS
        servers = {kind: fleet.start(kind) for kind in kinds}
        for round_ in range(plan.rounds):
            progress(f"fanout: round {round_ + 1} of {plan.rounds}")
            for kind in in_turn(round_, list(servers)):
                settle(list(servers.values()))
                path = f"{STREAMS}fanout-{round_}"
                create_stream(servers[kind], path)
                events = EVENTS_NODE_FILE if kind == NODE_FILE else EVENTS
                report = run_fanout(servers[kind], path, SUBSCRIBERS, events)
                samples.add(round_, kind, CELL, report.values())
    return Figure("fanout", [_table(plan, samples)], _bars(samples), samples)


def _table(plan: Plan, samples: Samples) -> Table:
    columns = (
        "server",
        "time to last ms",
        "deliveries/s",
        "cpu us/delivery",
        "ack us, nobody",
        f"ack us, {SUBSCRIBERS}",
        "ack us, in a burst",
    )
    keys = (
        "last_ms",
        "deliveries_per_s",
        "cpu_us",
        "quiet_ack_us",
        "paced_ack_us",
        "burst_ack_us",
    )
    rows = [[kind, *(number(samples.median(kind, CELL, key)) for key in keys)] for kind in CONTENDERS]
    title = f"SSE fan-out to {SUBSCRIBERS} subscribers, median of {plan.rounds}"
    return Table(title, columns, rows)


def _bars(samples: Samples) -> list[Bar]:
    def vs_node(key: str) -> float | None:
        return ratio(samples.median(MILLSTREAM, CELL, key), samples.median(NODE_MEMORY, CELL, key))

    listened_to = ratio(
        samples.median(MILLSTREAM, CELL, "paced_ack_us"),
        samples.median(MILLSTREAM, CELL, "quiet_ack_us"),
    )
    return [
        Bar("SSE time to last vs node memory", vs_node("last_ms"), 0.5, False, "x"),
        Bar("SSE deliveries/s vs node memory", vs_node("deliveries_per_s"), 5.0, True, "x"),
        Bar("append ack p50 with 1000 listeners vs none", listened_to, 4.0, False, "x"),
    ]
