"""Figure: a catch-up read of 1 GB in one answer: how fast, what it adds to memory, and what it leaves to writers."""

from __future__ import annotations

import http.client
import threading
import time

from extensions import MEGABYTE, WRITERS, MemoryWatch, drained
from loadgen import STREAMS, Load, Usage, create_streams, fill_streams, read_report, run_load, running_load
from servers import MILLSTREAM, Fleet, Server, plain_client, settle
from tables import Bar, Figure, Plan, Samples, Table, number, progress, ratio

TEXT, MESSAGES = "one read, text", "one read, JSON"
QUIET, BESIDE = "appends alone", "beside reads"
SMALL, LARGE = 100, 1000  # bytes of a message
FLUSH_SOON = {"checkpoint_age_s": 0.5}
AFTER_START_S = 10.0  # merges that filling has left to do begin with the start, in the helper, and take memory as well


def measure(plan: Plan) -> Figure:
    samples = Samples()
    if not plan.peers_only:
        with Fleet() as fleet:
            _measure(plan, samples, fleet.start(MILLSTREAM, FLUSH_SOON))
    return Figure("long_reads", [_read_table(samples), _append_table(samples)], _bars(samples), samples)


def _measure(plan: Plan, samples: Samples, server: Server) -> None:
    size = plan.scaled(1_000_000_000, 50_000_000)
    progress(f"long_reads: filling streams of {size // 1_000_000} MB and a tenth of that")
    fill_streams(server, "text/s", 1, size // LARGE, LARGE)
    _fill_json(server, size // 10)
    create_streams(server, "load/s", WRITERS)
    settle([server], 120.0)
    server.stop()
    server.start()  # what filling has left in memory would hide what reading adds
    time.sleep(AFTER_START_S)
    for round_ in range(plan.rounds):
        progress(f"long_reads: round {round_ + 1} of {plan.rounds}")
        for cell, path in ((TEXT, "text/s-0"), (MESSAGES, "json/s-0")):
            settle([server])
            samples.add(round_, MILLSTREAM, cell, _read_once(server, path))
        settle([server])
        samples.add(round_, MILLSTREAM, QUIET, run_load(server, _load(plan)).values())
        settle([server])
        samples.add(round_, MILLSTREAM, BESIDE, _append_beside_reads(plan, server))


def _fill_json(server: Server, size: int) -> None:
    with plain_client(server) as client:
        _ask(client, "PUT", f"{STREAMS}json/s-0", b"")
        message = b'"%b"' % (b"x" * (SMALL - 2))
        body = b"[" + b",".join([message] * 10_000) + b"]"
        for _ in range(size // (10_000 * SMALL)):
            _ask(client, "POST", f"{STREAMS}json/s-0", body)


def _ask(client: http.client.HTTPConnection, method: str, path: str, body: bytes) -> None:
    client.request(method, path, body, {"Content-Type": "application/json"})
    answer = client.getresponse()
    answer.read()
    assert answer.status < 300, answer.status


def _read_once(server: Server, path: str) -> dict[str, float]:
    before, watch = server.rss_bytes(), MemoryWatch(server)
    began = time.perf_counter()
    with plain_client(server) as client:
        size = _read(client, path)
    seconds = time.perf_counter() - began
    return {"megabytes_per_s": size / MEGABYTE / seconds, "grown_mb": (watch.peak() - before) / MEGABYTE}


def _read(client: http.client.HTTPConnection, path: str) -> int:
    client.request("GET", f"{STREAMS}{path}")
    answer = client.getresponse()
    assert answer.headers["Stream-Up-To-Date"] == "true"
    size = drained(answer)
    assert size == int(answer.headers["Content-Length"])
    return size


def _load(plan: Plan) -> Load:
    return Load("append", "load/s", WRITERS, WRITERS, seconds=plan.seconds, warmup_s=plan.warmup_s)


def _append_beside_reads(plan: Plan, server: Server) -> dict[str, float]:
    """One read after the other for as long as the load runs."""
    ended, usage, sizes = threading.Event(), Usage(server), [0]
    with running_load(server, _load(plan)) as process:
        reader = threading.Thread(target=_read_until, args=(server, ended, sizes))
        began = time.perf_counter()
        reader.start()
        out, err = process.communicate()
        seconds = time.perf_counter() - began
        megabytes = sizes[0] / MEGABYTE
        ended.set()
        reader.join()
    values = read_report(server, process.returncode, out, err, usage).values()
    return {**values, "megabytes_per_s": megabytes / seconds}


def _read_until(server: Server, ended: threading.Event, sizes: list[int]) -> None:
    buffer = bytearray(1 << 20)
    while not ended.is_set():
        with plain_client(server) as client:
            client.request("GET", f"{STREAMS}text/s-0")
            answer = client.getresponse()
            while not ended.is_set() and (got := answer.readinto(buffer)):
                sizes[0] += got


# --- tables and bars


def _read_table(samples: Samples) -> Table:
    keys = ("megabytes_per_s", "grown_mb")
    rows = [[cell, *(number(samples.median(MILLSTREAM, cell, key)) for key in keys)] for cell in (TEXT, MESSAGES)]
    title = f"1 GB of text in messages of {LARGE} B, 100 MB of JSON in messages of {SMALL} B, in one answer each"
    return Table(title, ["read", "MB/s", "memory added, MB"], rows)


def _append_table(samples: Samples) -> Table:
    keys = ("rate", "p50_us", "p99_us", "megabytes_per_s")
    rows = [[cell, *(number(samples.median(MILLSTREAM, cell, key)) for key in keys)] for cell in (QUIET, BESIDE)]
    title = "Appends, 64 connections, and reads of 1 GB one after the other"
    return Table(title, ["load", "appends/s", "p50 us", "p99 us", "read MB/s"], rows)


def _bars(samples: Samples) -> list[Bar]:
    def of(cell: str, key: str) -> float | None:
        return samples.median(MILLSTREAM, cell, key)

    return [
        Bar("memory added by a read of 1 GB", samples.worst(MILLSTREAM, TEXT, "grown_mb"), 50.0, False, " MB"),
        Bar("appends beside reads vs alone", ratio(of(BESIDE, "rate"), of(QUIET, "rate")), 0.8, True, "x"),
    ]
