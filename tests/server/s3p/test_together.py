"""S3P and HTTP clients on the same streams at once: one order, ids that only grow, nothing lost or doubled."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from tests.conftest import ServerProcess
from tests.server.s3p.wire import Wire

from millstream.client.s3p import MessageId, Record, S3pClient, append

PATH = "/v1/stream/_s3p/shared"
BUSY = {"checkpoint_age_s": 0.1, "checkpoint_records": 200, "block_bytes": "2KiB", "merge_segments_min": 2}
WRITERS = 4
ROUNDS = 60


def write_over_s3p(port: int, writer: str) -> list[bytes]:
    sent = []
    with S3pClient("127.0.0.1", port) as client:
        for turn in range(ROUNDS):
            batches = [[f"{writer}:{turn}:{batch}:{part};".encode() for part in range(3)] for batch in range(4)]
            ids = client.run([append("shared", batch) for batch in batches])
            assert all(one < other for one, other in pairwise(ids))
            sent += [record for batch in batches for record in batch]
    return sent


def write_over_http(port: int, writer: str) -> list[bytes]:
    sent = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for turn in range(ROUNDS):
        body = f"{writer}:{turn};".encode()
        connection.request("POST", PATH, body, {"Content-Type": "application/octet-stream"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 204
        sent.append(body)
    connection.close()
    return sent


def follow(port: int, done: threading.Event) -> list[Record]:
    """Read to the end, blocking; what comes must come in order."""
    found: list[Record] = []
    with S3pClient("127.0.0.1", port) as client:
        while True:
            ended = done.is_set()
            records = client.read("shared", after=found[-1].id if found else None, count=100, block_ms=200)
            found += records
            if ended and not records:
                return found


def run_writers(running: ServerProcess) -> tuple[list[list[bytes]], list[Record]]:
    done = threading.Event()
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(follow, running.s3p_port, done)
        jobs: list[tuple[Callable[[int, str], list[bytes]], int]] = [
            (write_over_s3p, running.s3p_port),
            (write_over_http, running.port),
        ]
        writers = [pool.submit(job, port, f"{job.__name__}{number}") for job, port in jobs for number in range(WRITERS)]
        sent = [writer.result(60) for writer in writers]
        done.set()
        return sent, reader.result(60)


def test_many_writers_over_both_protocols_and_a_blocked_reader(server):
    running = server(BUSY)
    with Wire(running.s3p_port) as wire:
        wire.create(b"shared")
    sent, seen = run_writers(running)
    check(running, sent, seen)
    running.kill()
    running.start()
    check(running, sent, seen)
    with Wire(running.s3p_port) as wire:
        assert wire.append(b"shared", b"after the restart") > seen[-1].id


def check(running: ServerProcess, sent: list[list[bytes]], seen: list[Record]) -> None:
    assert all(one.id < other.id for one, other in pairwise(seen)), "ids must grow"
    order = {record.data: place for place, record in enumerate(seen)}
    assert len(order) == len(seen) == sum(map(len, sent)), "nothing is lost, nothing comes twice"
    for records in sent:
        places = [order[record] for record in records]
        assert places == sorted(places), "what one writer sent stays in its order"
    for records in sent[:WRITERS]:
        for at in range(0, len(records), 3):
            places = [order[record] for record in records[at : at + 3]]
            assert places == list(range(places[0], places[0] + 3)), "a batch stays together"
            ids = [seen[place].id for place in places]
            assert ids == [MessageId(ids[0].ms, ids[0].seq + part) for part in range(3)]
    assert over_http(running.port) == b"".join(record.data for record in seen)
    with S3pClient("127.0.0.1", running.s3p_port) as client:
        again: list[Record] = []
        while records := client.read("shared", after=again[-1].id if again else None):
            again += records
    assert again == seen


def over_http(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    found = b""
    while True:
        connection.request("GET", f"{PATH}?offset={len(found)}")
        answer = connection.getresponse()
        body = answer.read()
        found += body
        if answer.headers.get("Stream-Up-To-Date"):
            connection.close()
            return found
        assert body


def test_client_ids_are_checked_under_concurrency(server):
    """Two clients with the same ids: for each id one of them wins, and the other is told so."""
    port = server().s3p_port
    with Wire(port) as wire:
        wire.create(b"race", client_ids=True)

    def race(writer: str) -> list[bytes]:
        won = []
        for number in range(1, 60):
            with Wire(port) as wire:
                data = f"{writer}:{number}".encode()
                reply = wire.ask(b"APPEND", b"race", [b"TIMESTAMP", b"%d-0" % number], [data])
                if isinstance(reply, bytes):
                    won.append(data)
        return won

    with ThreadPoolExecutor() as pool:
        won = [winner for winners in pool.map(race, ("a", "b", "c")) for winner in winners]
    with Wire(port) as wire:
        found = wire.read(b"race")
    assert sorted(data for _, data in found) == sorted(won)
    assert all(one[0] < other[0] for one, other in pairwise(found))
