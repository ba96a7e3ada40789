"""Figure: transactions. Staging and committing 100,000 messages, what a commit costs those who append meanwhile, and
how much memory it takes to stage 2 GB.

The rows come shuffled over four parts with an `order` column, so that every stream has to be merged message by
message: the most work a commit can be.
"""

from __future__ import annotations

import http.client
import io
import json
import random
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from servers import MILLSTREAM, BenchError, Fleet, Server, plain_client, settle
from tables import Bar, Figure, Plan, Samples, Table, number, progress

PARTS = 4
MESSAGE_BYTES = 200
ARROW = "application/vnd.apache.arrow.stream"
ROOT = "/ds/bench/streams/transactions"


@dataclass(frozen=True, slots=True)
class Cell:
    name: str
    messages: int
    streams: int


CELLS = (
    Cell("100,000 messages, 1,000 streams", 100_000, 1_000),
    Cell("100,000 messages, 1 stream", 100_000, 1),
    Cell("100,000 messages, 10,000 streams", 100_000, 10_000),
)
STAGING = "staging"
CHECKPOINT_SOON = {"checkpoint_age_s": 0.2}


def measure(plan: Plan) -> Figure:
    samples = Samples()
    if plan.peers_only:
        return Figure("transactions", [], [], samples)
    with Fleet() as fleet:
        server = fleet.start(MILLSTREAM)
        _ask(server, "PUT", "/ds/bench")
        _ask(server, "PUT", "/ds/bench/beside", b"", "text/plain")
        for round_ in range(plan.rounds + 1):
            progress(f"transactions: round {round_} of {plan.rounds}")
            for cell in CELLS:
                values = _transact(plan, server, cell, round_)
                if round_:  # the first one creates the streams, and starts the helper
                    samples.add(round_, MILLSTREAM, cell.name, values)
    with Fleet() as fleet:
        samples.add(0, MILLSTREAM, STAGING, _stage_much(plan, fleet.start(MILLSTREAM, CHECKPOINT_SOON)))
    return Figure("transactions", [_table(plan, samples), _memory_table(samples)], _bars(samples), samples)


# --- commits ------------------------------------------------------------------------------------------------


def _transact(plan: Plan, server: Server, cell: Cell, version: int) -> dict[str, float]:
    messages = plan.scaled(cell.messages, cell.messages // 10)
    app = f"app{cell.streams}"
    bodies = _parts(messages, cell.streams, version)
    settle([server])
    began = time.perf_counter()
    for index, body in enumerate(bodies):
        _ask(server, "PUT", f"{ROOT}/{app}/{version}/{index}", body, ARROW)
    staged = time.perf_counter() - began
    settle([server])
    commit = {"parts": [str(index) for index in range(PARTS)], "create": True}
    with _Neighbour(server) as neighbour:
        before = neighbour.latencies_ms(0.3)
        cpu_before, began = server.cpu_seconds(), time.perf_counter()
        answer = _ask(server, "POST", f"{ROOT}/{app}/{version}", json.dumps(commit).encode(), "application/json")
        committed, cpu = time.perf_counter() - began, server.cpu_seconds() - cpu_before
        during = neighbour.latencies_ms(0.1)
    told = json.loads(answer)
    if told["messages"] != messages or told["duplicate"]:
        raise BenchError(f"the commit says {answer!r}")
    return {
        "staged_per_s": messages / staged,
        "committed_per_s": messages / committed,
        "commit_ms": committed * 1000,
        "commit_cpu_ms": cpu * 1000,
        "append_ms_before": statistics.median(before),
        "append_ms_during": statistics.median(during),
        "append_ms_worst": max(during),
    }


def _parts(messages: int, streams: int, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    order = list(range(messages))
    rng.shuffle(order)
    filler = rng.randbytes(MESSAGE_BYTES * 2).hex().encode()
    bodies = []
    for part in range(PARTS):
        keys = order[part::PARTS]
        table = pa.table(
            {
                "stream": [f"s{streams}-{rng.randrange(streams)}" for _ in keys],
                "order": pa.array(keys, pa.int64()),
                "value": pa.array([filler[key % MESSAGE_BYTES :][:MESSAGE_BYTES] for key in keys], pa.binary()),
            }
        )
        bodies.append(_ipc(table))
    return bodies


def _ipc(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=10_000)
    return out.getvalue()


class _Neighbour:
    """Somebody who appends to another stream, one append after the other: how long does each take?"""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._taken: list[float] = []
        self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._thread.join()

    def latencies_ms(self, seconds: float) -> list[float]:
        """Of the appends since the last time, and in the seconds from now on."""
        time.sleep(seconds)
        taken, self._taken = self._taken, []
        return taken or [0.0]

    def _run(self) -> None:
        with plain_client(self._server) as client:
            while not self._ends:
                began = time.perf_counter()
                client.request("POST", "/ds/bench/beside", b"x" * 100, {"Content-Type": "text/plain"})
                client.getresponse().read()
                self._taken.append((time.perf_counter() - began) * 1000)


# --- memory -------------------------------------------------------------------------------------------------


def _stage_much(plan: Plan, server: Server) -> dict[str, float]:
    """Stage 2 GB in parts of 256 MB, and watch the memory of all the server's processes."""
    total, part_bytes = plan.scaled(2 << 30, 256 << 20), 256 << 20
    _ask(server, "PUT", "/ds/bench")
    time.sleep(2.0)  # the checkpoint of the new bucket has its own need of memory
    settle([server])
    before = server.pss_bytes()
    watch = _MemoryWatch(server)
    began = time.perf_counter()
    for part in range(total // part_bytes):
        _stage_stream(server, f"{ROOT}/big/1/{part}", part_bytes)
    seconds = time.perf_counter() - began
    peak = watch.end()
    return {"megabytes": total / 1e6, "megabytes_per_s": total / 1e6 / seconds, "added_mb": (peak - before) / 1e6}


def _stage_stream(server: Server, path: str, size: int) -> None:
    rows = 10_000
    table = pa.table(
        {
            "stream": [f"s{row % 1000}" for row in range(rows)],
            "value": pa.array([b"x" * MESSAGE_BYTES] * rows, pa.binary()),
        }
    )
    whole, schema = _ipc(table), _ipc(table.slice(0, 0))[:-8]
    batch = whole[len(schema) : -8]

    def body() -> Iterator[bytes]:
        yield schema
        for _ in range(size // (rows * MESSAGE_BYTES)):
            yield batch
        yield whole[-8:]

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    connection.request("PUT", path, body(), {"Content-Type": ARROW}, encode_chunked=True)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    if response.status != 200:
        raise BenchError(f"staging gave {response.status}: {answer!r}")


class _MemoryWatch:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._peak = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(0.1):
            self._peak = max(self._peak, self._server.pss_bytes())

    def end(self) -> int:
        self._ends.set()
        self._thread.join()
        return self._peak


def _ask(server: Server, method: str, path: str, body: bytes = b"", kind: str = "") -> bytes:
    with plain_client(server) as client:
        client.request(method, path, body, {"Content-Type": kind} if kind else {})
        response = client.getresponse()
        answer = response.read()
        if response.status >= 300:
            raise BenchError(f"{method} {path} gave {response.status}: {answer!r}")
        return answer


# --- what is shown ------------------------------------------------------------------------------------------


def _table(plan: Plan, samples: Samples) -> Table:
    keys = ("staged_per_s", "committed_per_s", "commit_ms", "commit_cpu_ms", "append_ms_before", "append_ms_during")
    rows = []
    for cell in CELLS:
        figures = [number(samples.median(MILLSTREAM, cell.name, key)) for key in keys]
        rows.append([cell.name, *figures, number(samples.worst(MILLSTREAM, cell.name, "append_ms_worst"))])
    columns = ["transaction", "staged/s", "committed/s", "commit ms", "cpu ms", "append ms", "meanwhile", "worst"]
    title = f"Transactions of {MESSAGE_BYTES} byte messages in {PARTS} parts, median of {plan.rounds}"
    return Table(title, columns, rows)


def _memory_table(samples: Samples) -> Table:
    keys = ("megabytes", "megabytes_per_s", "added_mb")
    figures = [number(samples.median(MILLSTREAM, STAGING, key)) for key in keys]
    return Table("Staging in parts of 256 MB", ["what", "MB", "MB/s", "memory added MB"], [["2 GB", *figures]])


def _bars(samples: Samples) -> list[Bar]:
    rate = samples.median(MILLSTREAM, CELLS[0].name, "committed_per_s")
    return [
        Bar("messages committed a second, 100,000 over 1,000 streams", rate, 100_000, True),
        Bar("memory that staging 2 GB adds", samples.median(MILLSTREAM, STAGING, "added_mb"), 100, False, " MB"),
    ]
