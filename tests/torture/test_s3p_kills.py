"""A server killed at random moments under S3P clients: what was acknowledged is there, whole, in order, with its id."""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from dataclasses import dataclass
from itertools import pairwise

import pytest
from tests.torture.harness import Victim

from millstream.client.s3p import ConnectionLost, MessageId, Record, RunStopped, S3pClient, S3pError, append

QUICK_SEED = 20_261_115
QUICK_KILLS = 5
PIPELINE = 8
BATCH_MAX = 5


@dataclass
class Sent:
    """One APPEND, and what its client was told."""

    records: list[bytes]
    last_id: MessageId | None = None  # None: no reply came, so either is fine


class Writer:
    """Pipelines appends to one stream until it is told to stop, over every death of the server."""

    def __init__(self, port: int, stream: str, name: str, client_ids: bool, seed: int, stopping: threading.Event):
        self.sent: list[Sent] = []
        self.last = MessageId(0, 0)
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self._port = port
        self._stream = stream
        self._name = name
        self._client_ids = client_ids
        self._random = random.Random(seed)
        self._stopping = stopping

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                with S3pClient("127.0.0.1", self._port, timeout_s=5) as client:
                    self._write(client)
        except BaseException as error:
            self.failure = error

    def _write(self, client: S3pClient) -> None:
        try:
            if self._client_ids:
                self._look_where_we_are(client)
            while not self._stopping.is_set():
                batches = [self._batch() for _ in range(self._random.randrange(1, PIPELINE))]
                self._append(client, batches)
        except ConnectionLost:
            time.sleep(0.05)
        except S3pError as error:
            if error.code != "ERR_UNAVAILABLE":
                raise
            time.sleep(0.05)

    def _look_where_we_are(self, client: S3pClient) -> None:
        """The last append may have happened without a reply: only a stream's own writer knows its ids."""
        while records := client.read(self._stream, after=self.last):
            self.last = records[-1].id

    def _batch(self) -> Sent:
        number = len(self.sent)
        size = self._random.randrange(1, BATCH_MAX)
        filler = b"." * self._random.choice((0, 10, 300))
        sent = Sent([f"{self._name}/{number}/{part}/{size} ".encode() + filler for part in range(size)])
        self.sent.append(sent)
        return sent

    def _append(self, client: S3pClient, batches: list[Sent]) -> None:
        firsts: list[MessageId | None] = [None] * len(batches)
        if self._client_ids:
            firsts = [MessageId(self.last.ms + 1 + at, self._random.randrange(100)) for at in range(len(batches))]
        requests = [append(self._stream, sent.records, first) for sent, first in zip(batches, firsts, strict=True)]
        ids: list[MessageId] = []
        try:
            ids = client.run(requests)
        except RunStopped as stopped:
            ids = stopped.done
            raise
        finally:
            for sent, id_ in zip(batches, ids, strict=False):
                sent.last_id = self.last = id_


def read_all(port: int, stream: str) -> list[Record]:
    found: list[Record] = []
    with S3pClient("127.0.0.1", port) as client:
        while records := client.read(stream, after=found[-1].id if found else None):
            found += records
    return found


def check(victim: Victim, stream: str, writers: list[Writer], before: list[Record]) -> list[Record]:
    found = read_all(victim.s3p_port, stream)
    assert found[: len(before)] == before, "what was read once must never change"
    assert all(one.id < other.id for one, other in pairwise(found)), "ids must grow"
    order = {record.data: place for place, record in enumerate(found)}
    assert len(order) == len(found), "nothing may come twice"
    known = 0
    for writer in writers:
        latest = -1
        for sent in list(writer.sent):
            places = [order.get(record) for record in sent.records]
            if sent.last_id is None and places[0] is None:
                assert places == [None] * len(places), f"half of an append is there: {sent}"
                continue
            assert places == list(range(places[0] or 0, (places[0] or 0) + len(places))), f"lost or torn: {sent}"
            assert places[0] > latest, "a writer's appends must stay in order"
            latest = places[-1]
            known += len(places)
            if sent.last_id is not None:
                assert found[latest].id == sent.last_id, "a record must keep the id its writer was told"
    assert known == len(found), "there is something that nobody wrote"
    return found


def campaign(victim: Victim, seed: int, kills: int) -> int:
    """Kill and check; how many records there were in the end."""
    chance = random.Random(seed)
    victim.start()
    port = victim.s3p_port
    with S3pClient("127.0.0.1", port) as client:
        client.create("shared")
        client.create("own", client_ids=True)
    stopping = threading.Event()
    shared = [Writer(port, "shared", f"w{number}", False, seed + number, stopping) for number in range(3)]
    own = [Writer(port, "own", "own", True, seed + 99, stopping)]
    for writer in (*shared, *own):
        writer.thread.start()
    seen: dict[str, list[Record]] = {"shared": [], "own": []}
    for _ in range(kills):
        time.sleep(chance.uniform(0.1, 0.6))
        victim.kill()
        victim.start()
        for stream in seen:  # while they write on: everything acknowledged until now must be there
            found = read_all(port, stream)
            assert found[: len(seen[stream])] == seen[stream]
            seen[stream] = found
    stopping.set()
    for writer in (*shared, *own):
        writer.thread.join(30)
        assert not writer.thread.is_alive()
        assert writer.failure is None, writer.failure
    for ending in (lambda: None, victim.kill, victim.stop):
        ending()
        if not victim.is_running:
            victim.start()
        seen = {
            "shared": check(victim, "shared", shared, seen["shared"]),
            "own": check(victim, "own", own, seen["own"]),
        }
    acknowledged = sum(sent.last_id is not None for writer in (*shared, *own) for sent in writer.sent)
    assert acknowledged > 20 * kills > 0
    return sum(map(len, seen.values()))


def test_nothing_acknowledged_over_s3p_is_lost(victim: Victim) -> None:
    campaign(victim, QUICK_SEED, QUICK_KILLS)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_nothing_acknowledged_over_s3p_is_lost_for_long(victim: Victim, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("MILLSTREAM_TORTURE_SEED") or secrets.randbelow(10**9))
    kills = int(os.environ.get("MILLSTREAM_TORTURE_KILLS") or 50)
    with capsys.disabled():
        print(f"\nMILLSTREAM_TORTURE_SEED={seed} MILLSTREAM_TORTURE_KILLS={kills}", flush=True)
    records = campaign(victim, seed, kills)
    with capsys.disabled():
        print(f"{records} records over S3P, {kills} kills: nothing acknowledged was lost, nothing came twice")
