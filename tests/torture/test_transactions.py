"""Transactions under kill -9: each is there as a whole or not at all, once, in order, whoever dies when."""

from __future__ import annotations

import json
import os
import random
import secrets
import threading
import time

import httpx
import pytest
from tests.torture.harness import BUSY, Victim, eventually

QUICK_SEED = 20_240_711
QUICK_KILLS = 8
STREAMS = [f"s{index}" for index in range(12)]
APPS = 3
PARTS = 3
Told = tuple[str, int, int]  # application, version, message


class Application(threading.Thread):
    """Stages and commits one version after the other. Whatever fails is done again, as Spark does it."""

    def __init__(self, name: str, victim: Victim, seed: int, pause: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.acknowledged = 0
        self.failure: BaseException | None = None
        self.ends = False
        self._victim = victim
        self._seed = seed
        self._pause = pause
        self._random = random.Random(f"{seed} {name}")

    def messages(self, version: int) -> list[tuple[str, int]]:
        """(stream, message) of a version, in order; some are larger than a slice of the object."""
        rng = random.Random(f"{self._seed} {self.name} {version}")
        return [(rng.choice(STREAMS), number) for number in range(rng.randint(1, 60))]

    def run(self) -> None:
        try:
            with httpx.Client(base_url=self._victim.url, timeout=10) as client:
                while not self.ends:
                    self._transact(client, self.acknowledged + 1)
        except BaseException as failure:
            self.failure = failure

    def _transact(self, client: httpx.Client, version: int) -> None:
        root = f"/ds/shop/streams/transactions/{self.name}/{version}"
        rows = list(enumerate(self.messages(version)))
        attempt = 0
        while not self.ends:
            attempt += 1
            self._random.shuffle(rows)
            parts = [f"{part}-{attempt if self._random.random() < 0.5 else 0}" for part in range(PARTS)]
            try:
                for index, part in enumerate(parts):
                    lines = [
                        json.dumps(
                            {"stream": stream, "json": [self.name, version, n, "x" * (n % 7) * 1000], "order": order}
                        )
                        for order, (stream, n) in rows[index::PARTS]
                    ]
                    body = "\n".join(lines).encode()
                    staged = client.put(
                        f"{root}/{part}", content=body, headers={"Content-Type": "application/x-ndjson"}
                    )
                    assert staged.status_code in (200, 503), staged.text
                done = client.post(root, json={"parts": parts, "create": True, "content_type": "application/json"})
            except httpx.TransportError:
                time.sleep(0.02)
            else:
                if done.status_code == 200:
                    assert done.json()["messages"] == len(rows), done.text
                    self.acknowledged = version
                    return
                assert done.status_code in (409, 503), done.text
                if done.status_code == 409:  # a 503 at staging has left a part out
                    reasons = done.json()["error"]["reasons"]
                    assert {reason["code"] for reason in reasons} == {"part_missing"}, done.text
            while self._pause.is_set():
                time.sleep(0.01)


def check(client: httpx.Client, applications: list[Application]) -> None:
    """What is committed is there, all of it, once; of anything else there is nothing."""
    found: dict[str, list[Told]] = {}
    for stream in STREAMS:
        answer = client.get(f"/ds/shop/{stream}", params={"offset": "-1"})
        messages, offset = [], None
        while answer.status_code == 200:
            messages += [(app, version, n) for app, version, n, _ in answer.json()]
            offset = answer.headers["Stream-Next-Offset"]
            if "Stream-Up-To-Date" in answer.headers:
                break
            answer = client.get(f"/ds/shop/{stream}", params={"offset": offset})
        assert answer.status_code in (200, 404), answer.text
        found[stream] = messages
    for application in applications:
        told = client.get(f"/ds/shop/streams/transactions/{application.name}").json()["version"] or 0
        assert application.acknowledged <= told <= application.acknowledged + 1
        for stream in STREAMS:
            wanted = [
                (application.name, version, n)
                for version in range(1, told + 1)
                for name, n in application.messages(version)
                if name == stream
            ]
            assert [each for each in found[stream] if each[0] == application.name] == wanted, stream


def campaign(victim: Victim, seed: int, kills: int) -> int:
    rng = random.Random(seed)
    pause = threading.Event()
    applications = [Application(f"app{index}", victim, seed, pause) for index in range(APPS)]
    victim.start()
    with httpx.Client(base_url=victim.url, timeout=10) as client:
        assert client.put("/ds/shop").status_code == 201
        for application in applications:
            application.start()
        for life in range(kills):
            if life % 2 == 0:  # a busy machine may need its time until anything is committed
                before = sum(application.acknowledged for application in applications)
                eventually(
                    lambda before=before: (
                        sum(each.acknowledged for each in applications) > before
                        or any(each.failure for each in applications)
                    ),
                    "something is committed",
                    60.0,
                )
            time.sleep(rng.uniform(0.05, 1.2))
            if rng.random() < 0.3:
                victim.kill_helper()  # the one that stages among them
                time.sleep(rng.uniform(0.0, 0.3))
            pause.set()
            victim.kill()
            time.sleep(0.1)  # until everybody has noticed
            victim.start()
            for application in applications:
                if application.failure is not None:
                    raise application.failure
            check(client, applications)
            pause.clear()
        time.sleep(1.0)
        for application in applications:
            application.ends = True
        for application in applications:
            application.join(20)
            if application.failure is not None:
                raise application.failure
        victim.stop()
        victim.start()
        check(client, applications)
    acknowledged = sum(application.acknowledged for application in applications)
    assert acknowledged >= kills // 2 > 0, f"{kills} kills, and {acknowledged} transactions between them"
    return acknowledged


def run(victim: Victim, seed: int, kills: int) -> int:
    victim.settings.update({**BUSY, "checkpoint_records": 50, "staged_ttl_s": 600.0})
    try:
        return campaign(victim, seed, kills)
    except BaseException:
        print(f"seed {seed}")
        print(victim.log()[-4000:])
        raise


def test_a_transaction_is_there_as_a_whole_or_not_at_all(victim: Victim) -> None:
    run(victim, QUICK_SEED, QUICK_KILLS)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_a_transaction_is_there_as_a_whole_or_not_at_all_for_long(
    victim: Victim, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("MILLSTREAM_TORTURE_SEED") or secrets.randbelow(10**9))
    kills = int(os.environ.get("MILLSTREAM_TORTURE_KILLS") or 50)
    with capsys.disabled():
        print(f"\nMILLSTREAM_TORTURE_SEED={seed} MILLSTREAM_TORTURE_KILLS={kills}", flush=True)
        print(f"{run(victim, seed, kills)} transactions were acknowledged")
