"""Concurrent clients of a real server that dies under them: what they were told could have happened one by one."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.torture.client import Client
from tests.torture.harness import BUSY, Victim

from .checker import Append, History, check
from .recorder import TYPE, Recorder

QUICK_SEED = 5
QUICK_HISTORIES = 8


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    server = Victim(tmp_path, BUSY)
    server.start()
    yield server
    server.stop()


def record_and_check(server: Victim, seed: int) -> History:
    """One history; every other one has a kill in it."""
    recorder = Recorder(server, f"history/{seed}", seed)
    history = asyncio.run(recorder.record(0.8, kills=seed % 2))
    try:
        check(history)
    except AssertionError as error:
        story = "\n".join(f"  {one}"[:300] for one in sorted(history, key=lambda one: one.invoked))
        error.add_note(f"seed {seed}\n{story}")
        raise
    return history


def tally(history: History) -> Counter[str]:
    return Counter(
        f"append {operation.answer.name.lower()}" if isinstance(operation, Append) else "read" for operation in history
    )


def check_worked(seen: Counter[str], histories: int) -> None:
    """Where nobody got anywhere, and no server died amid an append, everything is linearizable."""
    assert histories > 0
    assert min(seen["append ok"], seen["read"]) > 12 * histories, seen
    assert seen["append unknown"] > histories // 8, seen
    assert seen["append refused"] >= histories // 20, seen


def test_histories_are_linearizable(victim: Victim) -> None:
    seen = Counter[str]()
    for seed in range(QUICK_SEED, QUICK_SEED + QUICK_HISTORIES):
        seen += tally(record_and_check(victim, seed))
    check_worked(seen, QUICK_HISTORIES)


async def poll_and_compare(server: Victim, path: str, timeout_ms: int, until_s: float) -> int:
    """Long-polls that end when they may; how often there was news."""
    client, at, news = Client(server.port), 0, 0
    try:
        while time.monotonic() < until_s:
            told = await client.ask("GET", f"{path}?offset={at}&live=long-poll&timeout_ms={timeout_ms}")
            assert told.next_offset == at + len(told.body), f"a long-poll skipped to {told.next_offset}: {told}"
            at, news = told.next_offset, news + bool(told.body)
    finally:
        client.close()
    return news


async def write_until(server: Victim, path: str, until_s: float) -> None:
    client = Client(server.port)
    try:
        while time.monotonic() < until_s:
            assert (await client.ask("POST", path, b"news;", TYPE)).status in (204, 503)
    finally:
        client.close()


def test_a_long_poll_that_ends_as_news_arrive_skips_nothing(victim: Victim) -> None:
    """Found by a history: it was in line to be told, and answered "nothing new" with the new tail."""

    async def crowd() -> list[int]:
        path = "/v1/stream/busy"
        client = Client(victim.port)
        assert (await client.ask("PUT", path, headers=TYPE)).status == 201
        client.close()
        until_s = time.monotonic() + 1.5
        pollers = (poll_and_compare(victim, path, 1 + index % 7, until_s) for index in range(40))
        return (await asyncio.gather(write_until(victim, path, until_s), *pollers))[1:]

    assert sum(asyncio.run(crowd())) > 100


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_histories_are_linearizable_for_long(victim: Victim, capsys: pytest.CaptureFixture[str]) -> None:
    """`MILLSTREAM_TORTURE_HISTORIES=1000 make torture`; `MILLSTREAM_TORTURE_SEED` brings back the same clients."""
    count = int(os.environ.get("MILLSTREAM_TORTURE_HISTORIES") or 200)
    first = int(os.environ.get("MILLSTREAM_TORTURE_SEED") or secrets.randbelow(10**9))
    with capsys.disabled():
        print(f"\nMILLSTREAM_TORTURE_SEED={first} MILLSTREAM_TORTURE_HISTORIES={count}", flush=True)
    seen = Counter[str]()
    for seed in range(first, first + count):
        seen += tally(record_and_check(victim, seed))
    with capsys.disabled():
        print(f"{count} histories are linearizable: {dict(seen)}")
    check_worked(seen, count)
