"""Figure: the bucket feed and bulk reads.

Acknowledgements while 500 readers follow the bucket with data; a page of a bucket with ten changes among a million of
others beside the same page alone on its server; a bulk read of 500 MB as Arrow beside a plain catch-up read of the same
stream, and what it adds to the server's memory.
"""

from __future__ import annotations

import http.client
import statistics
import time

from extensions import MEGABYTE, MemoryWatch, drained
from loadgen import STREAMS, FanoutEvents, append_many, create_streams, fill_streams, run_fanout
from servers import MILLSTREAM, Fleet, Server, plain_client, settle
from tables import Bar, Figure, Plan, Samples, Table, number, progress, ratio

READERS = 500
FOLLOWED = f"{READERS} feed readers"
ALONE, AMONG_MANY = "bucket alone", "bucket among many changes"
CATCH_UP, ARROW, NDJSON = "catch-up", "bulk, Arrow", "bulk, NDJSON"
EVENTS = FanoutEvents(quiet=60, paced=30, burst=40)
FLUSH_SOON = {"checkpoint_age_s": 0.5}
ARROW_TYPE = "application/vnd.apache.arrow.stream"


def measure(plan: Plan) -> Figure:
    samples = Samples()
    if not plan.peers_only:
        _measure_readers(plan, samples)
        _measure_pages(plan, samples)
        _measure_bulk(plan, samples)
    tables = [_readers_table(samples), _pages_table(samples), _bulk_table(samples)]
    return Figure("feed", tables, _bars(samples), samples)


# --- readers


def _measure_readers(plan: Plan, samples: Samples) -> None:
    with Fleet() as fleet:
        server = fleet.start(MILLSTREAM)
        with plain_client(server) as client:
            _ask(client, "PUT", "/ds/feed")
        for round_ in range(plan.rounds):
            progress(f"feed: readers, round {round_ + 1} of {plan.rounds}")
            settle([server])
            with plain_client(server) as client:
                _ask(client, "PUT", f"/ds/feed/s-{round_}", {"Content-Type": "application/json"})
            options = ["--subscribe-to", "/ds/feed/streams/feed", "--query", "?after=now&live=sse&data=true"]
            options += ["--content-type", "application/json"]
            report = run_fanout(server, f"/ds/feed/s-{round_}", READERS, EVENTS, options)
            samples.add(round_, MILLSTREAM, FOLLOWED, report.values())


def _ask(client: http.client.HTTPConnection, method: str, path: str, headers: dict[str, str] | None = None) -> bytes:
    client.request(method, path, headers=headers or {})
    answer = client.getresponse()
    body = answer.read()
    assert answer.status < 300, body
    return body


# --- pages


def _measure_pages(plan: Plan, samples: Samples) -> None:
    foreign = plan.scaled(1_000_000, 50_000)
    with Fleet() as fleet:
        servers = {ALONE: fleet.start(MILLSTREAM, FLUSH_SOON), AMONG_MANY: fleet.start(MILLSTREAM, FLUSH_SOON)}
        for server in servers.values():
            create_streams(server, "quiet/s", 1)
        create_streams(servers[AMONG_MANY], "noisy/s", 10)
        progress(f"feed: ten changes among {foreign:,} others")
        for _ in range(10):
            append_many(servers[AMONG_MANY], "noisy/s", 10, foreign // 10, 100)
            for server in servers.values():
                append_many(server, "quiet/s", 1, 1, 100)
        settle(list(servers.values()), 60.0)
        for round_ in range(plan.rounds):
            for cell, server in servers.items():
                samples.add(round_, MILLSTREAM, cell, {"page_ms": _page_ms(server)})


def _page_ms(server: Server) -> float:
    taken = []
    with plain_client(server) as client:
        for _ in range(30):
            began = time.perf_counter()
            body = _ask(client, "GET", "/ds/quiet/streams/feed?after=earliest&limit=100")
            taken.append((time.perf_counter() - began) * 1000)
            assert body.count(b'"appended"') == 10, body
    return statistics.median(taken)


# --- bulk


def _measure_bulk(plan: Plan, samples: Samples) -> None:
    messages = plan.scaled(500_000, 20_000)
    with Fleet() as fleet:
        server = fleet.start(MILLSTREAM, FLUSH_SOON)
        progress("feed: filling a stream of 500 MB")
        fill_streams(server, "bulk/s", 1, messages, 1000)
        settle([server], 60.0)
        for round_ in range(min(plan.rounds, 3)):
            progress(f"feed: bulk reads, round {round_ + 1}")
            for cell in (CATCH_UP, ARROW, NDJSON):
                settle([server])
                samples.add(round_, MILLSTREAM, cell, _read_all(server, cell, messages * 1000))


def _read_all(server: Server, cell: str, payload: int) -> dict[str, float]:
    before = server.rss_bytes()
    watch = MemoryWatch(server)
    began = time.perf_counter()
    with plain_client(server) as client:
        if cell == CATCH_UP:
            _catch_up(client)
        else:
            headers = {"Accept": ARROW_TYPE} if cell == ARROW else {}
            client.request("GET", "/ds/bulk/streams/messages", headers=headers)
            assert drained(client.getresponse()) >= payload
    seconds = time.perf_counter() - began
    return {"megabytes_per_s": payload / MEGABYTE / seconds, "grown_mb": (watch.peak() - before) / MEGABYTE}


def _catch_up(client: http.client.HTTPConnection) -> None:
    offset = "-1"
    while True:
        client.request("GET", f"{STREAMS}bulk/s-0?offset={offset}")
        answer = client.getresponse()
        drained(answer)
        offset = answer.headers["Stream-Next-Offset"]
        if answer.headers.get("Stream-Up-To-Date") == "true":
            return


# --- tables and bars


def _readers_table(samples: Samples) -> Table:
    keys = ("quiet_ack_us", "paced_ack_us", "burst_ack_us", "last_ms", "deliveries_per_s", "cpu_us")
    columns = ("", "ack us, nobody", f"ack us, {READERS}", "ack us, burst", "time to last ms", "deliveries/s", "cpu us")
    row = [FOLLOWED, *(number(samples.median(MILLSTREAM, FOLLOWED, key)) for key in keys)]
    return Table(f"Appends while {READERS} readers follow the bucket, with data", columns, [row])


def _pages_table(samples: Samples) -> Table:
    rows = [[cell, number(samples.median(MILLSTREAM, cell, "page_ms"))] for cell in (ALONE, AMONG_MANY)]
    return Table("A page of the feed, ten changes", ("bucket", "page ms"), rows)


def _bulk_table(samples: Samples) -> Table:
    rows = [
        [cell, *(number(samples.median(MILLSTREAM, cell, key)) for key in ("megabytes_per_s", "grown_mb"))]
        for cell in (CATCH_UP, ARROW, NDJSON)
    ]
    return Table("Reading 500 MB of messages of 1000 bytes", ("read", "payload MB/s", "memory added MB"), rows)


def _bars(samples: Samples) -> list[Bar]:
    def of(cell: str, key: str) -> float | None:
        return samples.median(MILLSTREAM, cell, key)

    acks = ratio(of(FOLLOWED, "paced_ack_us"), of(FOLLOWED, "quiet_ack_us"))
    pages = ratio(of(AMONG_MANY, "page_ms"), of(ALONE, "page_ms"))
    bulk = ratio(of(ARROW, "megabytes_per_s"), of(CATCH_UP, "megabytes_per_s"))
    return [
        Bar(f"append ack p50 with {READERS} feed readers vs none", acks, 4.0, False, "x"),
        Bar("feed page among a million foreign changes vs alone", pages, 3.0, False, "x"),
        Bar("bulk read as Arrow vs catch-up, MB/s", bulk, 0.3, True, "x"),
        Bar("memory added by a bulk read", of(ARROW, "grown_mb"), 50.0, False, " MB"),
    ]
