"""Figure: listings, snapshots and bootstrap.

A page of a listing in a bucket of a million beside one in a bucket of two thousand; appends while a 100 MB snapshot is
published; a bootstrap of 500 MB beside a plain catch-up read of the same stream, and what it adds to memory.
"""

from __future__ import annotations

import http.client
import random
import statistics
import threading
import time

from loadgen import STREAMS, Load, Usage, create_streams, fill_streams, read_report, run_load, running_load
from servers import MILLSTREAM, Fleet, Server, plain_client, settle
from tables import Bar, Figure, Plan, Samples, Table, number, progress, ratio

FEW, MANY = "bucket of 2,000", "bucket of many"
QUIET, PUBLISHING = "appends alone", "while a snapshot is published"
CATCH_UP, BOOTSTRAP = "catch-up", "bootstrap"
WRITERS = 64
PIECE = 1 << 20
MEGABYTE = 1e6
FLUSH_SOON = {"checkpoint_age_s": 0.5}


def measure(plan: Plan) -> Figure:
    samples = Samples()
    if not plan.peers_only:
        _measure_listings(plan, samples)
        _measure_snapshots(plan, samples)
        _measure_bootstrap(plan, samples)
    tables = [_listing_table(samples), _snapshot_table(samples), _bootstrap_table(samples)]
    return Figure("extensions", tables, _bars(samples), samples)


# --- listings


def _measure_listings(plan: Plan, samples: Samples) -> None:
    many = plan.scaled(1_000_000, 50_000)
    with Fleet() as fleet:
        server = fleet.start(MILLSTREAM)
        progress(f"extensions: creating {many:,} streams")
        create_streams(server, "many/s", many)
        create_streams(server, "few/s", 2_000)
        settle([server], 60.0)
        with plain_client(server) as client:
            for round_ in range(plan.rounds):
                for cell, bucket in ((FEW, "few"), (MANY, "many")):
                    samples.add(round_, MILLSTREAM, cell, {"page_ms": _page_ms(client, bucket)})


def _page_ms(client: http.client.HTTPConnection, bucket: str) -> float:
    """The median of full pages that start in different places."""
    taken = []
    for _ in range(20):
        # Names sort as text, so a thousand follow each of these in either bucket.
        after = f"s-10{random.randrange(10)}"
        began = time.perf_counter()
        client.request("GET", f"/{bucket}/streams?limit=1000&after={after}")
        answer = client.getresponse()
        body = answer.read()
        taken.append((time.perf_counter() - began) * 1000)
        assert answer.status == 200, body
    return statistics.median(taken)


# --- snapshots


def _measure_snapshots(plan: Plan, samples: Samples) -> None:
    size = plan.scaled(100_000_000, 10_000_000)
    blob = random.Random(1).randbytes(size)
    with Fleet() as fleet:
        server = fleet.start(MILLSTREAM)
        create_streams(server, "load/s", WRITERS)
        create_streams(server, "snap/s", 1)
        for round_ in range(plan.rounds):
            progress(f"extensions: snapshots, round {round_ + 1} of {plan.rounds}")
            settle([server])
            samples.add(round_, MILLSTREAM, QUIET, _append(plan, server).values())
            settle([server])
            samples.add(round_, MILLSTREAM, PUBLISHING, _append_while_publishing(plan, server, blob))


def _load(plan: Plan) -> Load:
    return Load("append", "load/s", WRITERS, WRITERS, seconds=plan.seconds, warmup_s=plan.warmup_s)


def _append(plan: Plan, server: Server):
    return run_load(server, _load(plan))


def _append_while_publishing(plan: Plan, server: Server, blob: bytes) -> dict[str, float]:
    """One snapshot after the other for as long as the load runs."""
    ended, taken = threading.Event(), []
    usage = Usage(server)
    with running_load(server, _load(plan)) as process:
        publisher = threading.Thread(target=_publish_until, args=(server, blob, ended, taken))
        publisher.start()
        out, err = process.communicate()
        ended.set()
        publisher.join()
    values = read_report(server, process.returncode, out, err, usage).values()
    return {**values, "snapshots": len(taken), "snapshot_s": statistics.median(taken)}


def _publish_until(server: Server, blob: bytes, ended: threading.Event, taken: list[float]) -> None:
    with plain_client(server) as client:
        while not ended.is_set():
            client.request("POST", f"{STREAMS}snap/s-0", b"x", {"Content-Type": "text/plain"})
            answer = client.getresponse()
            answer.read()
            offset = answer.headers["Stream-Next-Offset"]
            began = time.perf_counter()
            client.request("PUT", f"/ds/snap/s-0/snapshot/{offset}", blob)
            answer = client.getresponse()
            body = answer.read()
            assert answer.status == 204, body
            taken.append(time.perf_counter() - began)


# --- bootstrap


def _measure_bootstrap(plan: Plan, samples: Samples) -> None:
    messages = plan.scaled(500_000, 20_000)
    with Fleet() as fleet:
        server = fleet.start(MILLSTREAM, FLUSH_SOON)
        progress("extensions: filling a stream of 500 MB")
        fill_streams(server, "boot/s", 1, messages, 1000)
        settle([server], 60.0)
        for round_ in range(min(plan.rounds, 3)):
            progress(f"extensions: bootstrap, round {round_ + 1}")
            for cell in (CATCH_UP, BOOTSTRAP):
                settle([server])
                samples.add(round_, MILLSTREAM, cell, _read_all(server, cell))


def _read_all(server: Server, cell: str) -> dict[str, float]:
    before = server.rss_bytes()
    watch = MemoryWatch(server)
    began = time.perf_counter()
    with plain_client(server) as client:
        size = _catch_up(client) if cell == CATCH_UP else _drain(client, "/ds/boot/s-0/bootstrap")
    seconds = time.perf_counter() - began
    return {"megabytes_per_s": size / MEGABYTE / seconds, "grown_mb": (watch.peak() - before) / MEGABYTE}


def _catch_up(client: http.client.HTTPConnection) -> int:
    offset, size = "-1", 0
    while True:
        client.request("GET", f"{STREAMS}boot/s-0?offset={offset}")
        answer = client.getresponse()
        size += drained(answer)
        offset = answer.headers["Stream-Next-Offset"]
        if answer.headers.get("Stream-Up-To-Date") == "true":
            return size


def _drain(client: http.client.HTTPConnection, path: str) -> int:
    client.request("GET", path)
    return drained(client.getresponse())


def drained(answer: http.client.HTTPResponse) -> int:
    assert answer.status == 200, answer.read()
    size, buffer = 0, bytearray(PIECE)
    while got := answer.readinto(buffer):
        size += got
    return size


class MemoryWatch:
    """The most memory a server had since this was made."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def peak(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._peak

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            self._peak = max(self._peak, self._server.rss_bytes())


# --- tables and bars


def _listing_table(samples: Samples) -> Table:
    rows = [[cell, number(samples.median(MILLSTREAM, cell, "page_ms"))] for cell in (FEW, MANY)]
    return Table("A page of 1,000 streams", ["listing", "ms"], rows)


def _snapshot_table(samples: Samples) -> Table:
    keys = ("rate", "p50_us", "p99_us", "snapshot_s")
    rows = [[cell, *(number(samples.median(MILLSTREAM, cell, key)) for key in keys)] for cell in (QUIET, PUBLISHING)]
    title = "Appends, 64 connections, and 100 MB snapshots one after the other"
    return Table(title, ["load", "appends/s", "p50 us", "p99 us", "s per snapshot"], rows)


def _bootstrap_table(samples: Samples) -> Table:
    keys = ("megabytes_per_s", "grown_mb")
    rows = [[cell, *(number(samples.median(MILLSTREAM, cell, key)) for key in keys)] for cell in (CATCH_UP, BOOTSTRAP)]
    return Table("Reading a stream of 500 MB in messages of 1 kB", ["read", "MB/s", "memory added, MB"], rows)


def _bars(samples: Samples) -> list[Bar]:
    def of(cell: str, key: str) -> float | None:
        return samples.median(MILLSTREAM, cell, key)

    return [
        Bar("listing page, many vs few streams", ratio(of(MANY, "page_ms"), of(FEW, "page_ms")), 3.0, False, "x"),
        Bar("appends while publishing vs alone", ratio(of(PUBLISHING, "rate"), of(QUIET, "rate")), 0.8, True, "x"),
        Bar(
            "bootstrap vs catch-up, MB/s",
            ratio(of(BOOTSTRAP, "megabytes_per_s"), of(CATCH_UP, "megabytes_per_s")),
            0.3,
            True,
            "x",
        ),
        Bar("memory added by a bootstrap", of(BOOTSTRAP, "grown_mb"), 50.0, False, " MB"),
    ]
