"""Figure: a fold over 10,000 streams of 100 messages, in a warm Spark session of this machine.

Each round has a bucket of its own. The time is that of the whole command: the listing that finds the streams with news,
the jobs, and every snapshot published and durable. Afterwards a second fold must find nothing to do, and some of the
snapshots are compared with what was written.
"""

from __future__ import annotations

import http.client
import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from servers import MILLSTREAM, BenchError, Fleet, Server, plain_client, settle
from tables import Bar, Figure, Plan, Samples, Table, number, progress

MESSAGES = 100
TYPES = ("model_reply", "tool_call", "tool_result", "user_message")
WRITERS = 8
ROUNDS_MAX = 3
CHECKED_EVERY = 997
CELL = "fold"


def measure(plan: Plan) -> Figure:
    # Imported here: no other figure needs Spark.
    from millstream.spark.pipeline.session import session

    streams = plan.scaled(10_000, 500)
    samples = Samples()
    if not plan.peers_only:
        spark = session()
        with Fleet() as fleet:
            server = fleet.start(MILLSTREAM)
            write_bucket(server, "warm-up", 50)
            fold_bucket(server, "warm-up", 50)
            for round_ in range(min(plan.rounds, ROUNDS_MAX)):
                progress(f"pipeline: round {round_ + 1}, {streams:,} streams of {MESSAGES} messages")
                bucket = f"round-{round_}"
                write_bucket(server, bucket, streams)
                settle([server])
                seconds = fold_bucket(server, bucket, streams)
                samples.add(round_, MILLSTREAM, CELL, {"seconds": seconds, "streams_per_s": streams / seconds})
        spark.stop()
    seconds = samples.median(MILLSTREAM, CELL, "seconds")
    worst = samples.worst(MILLSTREAM, CELL, "seconds")
    row = (
        f"{streams:,} x {MESSAGES}",
        number(seconds),
        number(worst),
        number(samples.median(MILLSTREAM, CELL, "streams_per_s")),
    )
    table = Table("Fold", ("streams x messages", "seconds", "worst", "streams/s"), [row])
    bar = Bar(f"fold over {streams:,} streams of {MESSAGES} messages", seconds, 90, at_least=False, unit=" s")
    return Figure("pipeline", [table], [bar], samples)


def message(stream: int, index: int) -> dict[str, object]:
    return {"type": TYPES[(stream + index * index) % len(TYPES)], "step": index, "text": f"word {index} " * 15}


def write_bucket(server: Server, bucket: str, streams: int) -> None:
    with plain_client(server) as client:
        client.request("PUT", f"/ds/{bucket}")
        expect(client, 201)

    def write(writer: int) -> None:
        with plain_client(server) as client:
            for stream in range(writer, streams, WRITERS):
                body = json.dumps([message(stream, index) for index in range(MESSAGES)])
                client.request("PUT", f"/ds/{bucket}/run-{stream:05d}", body, {"Content-Type": "application/json"})
                expect(client, 201)

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(write, range(WRITERS)))


def fold_bucket(server: Server, bucket: str, streams: int) -> float:
    from millstream.spark.pipeline.folding import fold

    url = f"http://127.0.0.1:{server.port}"
    began = time.monotonic()
    result = fold(url, bucket, "counters")
    seconds = time.monotonic() - began
    if (result.folded, result.messages) != (streams, streams * MESSAGES):
        raise BenchError(f"the fold did something else: {result}")
    if fold(url, bucket, "counters", dry_run=True).with_news:
        raise BenchError("the fold left streams with news")
    with plain_client(server) as client:
        for stream in range(0, streams, CHECKED_EVERY):
            check_snapshot(client, bucket, stream)
    return seconds


def check_snapshot(client: http.client.HTTPConnection, bucket: str, stream: int) -> None:
    client.request("GET", f"/ds/{bucket}/run-{stream:05d}/snapshot")
    place = expect(client, 307).getheader("Location", "")
    client.request("GET", place.partition(f":{client.port}")[2] or place)
    answer = client.getresponse()
    found = json.loads(answer.read())
    if found != Counter(str(message(stream, index)["type"]) for index in range(MESSAGES)):
        raise BenchError(f"the snapshot of stream {stream} is {found}")


def expect(client: http.client.HTTPConnection, status: int) -> http.client.HTTPResponse:
    answer = client.getresponse()
    body = answer.read()
    if answer.status != status:
        raise BenchError(f"the server answered {answer.status} instead of {status}: {body[:200]!r}")
    return answer
