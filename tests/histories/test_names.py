"""Clients of a real server that fold, write and read while others delete the name and take it again.

Every byte says which incarnation it is meant for. Nothing may turn up in another.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.torture.client import Client, Lost
from tests.torture.harness import BUSY, Victim

BUCKET = "/ds/names"
STREAM = f"{BUCKET}/s"
TYPE = {"Content-Type": "text/plain"}
DURATION_S = 4.0


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    server = Victim(tmp_path, BUSY)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Names:
    def __init__(self, server: Victim) -> None:
        self.server = server
        self.rng = random.Random(7)
        self.until_s = time.monotonic() + DURATION_S
        self.seen = Counter[str]()

    async def play(self) -> Counter[str]:
        client = Client(self.server.port)
        assert (await client.ask("PUT", BUCKET)).status == 201
        client.close()
        crowd = [self._make_anew, self._fold, self._fold, self._fold, self._write, self._write, self._look, self._look]
        async with asyncio.TaskGroup() as group:
            for act in crowd:
                group.create_task(self._repeat(act))
        return self.seen

    async def _repeat(self, act) -> None:
        client = Client(self.server.port)
        try:
            while time.monotonic() < self.until_s:
                try:
                    await act(client)
                except Lost:  # a body that is refused before it has come costs the connection
                    client.close()
                await asyncio.sleep(self.rng.choice((0, 0, 0.002)))
        finally:
            client.close()

    async def _make_anew(self, client: Client) -> None:
        await client.ask("DELETE", STREAM)
        told = await client.ask("PUT", STREAM, b"first;", TYPE)
        assert told.status == 201, told
        await asyncio.sleep(self.rng.choice((0, 0.005, 0.05)))

    async def _fold(self, client: Client) -> None:
        """Small folds are checked against the disk, large ones go there while they arrive: both wait."""
        head = await client.ask("HEAD", STREAM)
        if head.status != 200:
            return
        name = head.headers["stream-id"]
        fold = name.encode() + b" " * self.rng.choice((0, 600_000))
        place = f"{STREAM}/snapshot/{head.next_offset}?stream-id={name}"
        told = await client.ask("PUT", place, fold, TYPE)
        assert told.status in (204, 404, 409, 410), told
        self.seen[f"folds {told.status}"] += 1
        if told.status == 204:
            assert told.headers["stream-id"] == name, "the fold of one stream was taken for another"

    async def _write(self, client: Client) -> None:
        """Large bodies are journaled in parts before they are decided about."""
        body = b"x" * self.rng.choice((10, 600_000)) + b";"
        told = await client.ask("POST", STREAM, body, TYPE)
        assert told.status in (204, 404), told

    async def _look(self, client: Client) -> None:
        found = await client.ask("GET", f"{STREAM}/snapshot")
        if found.status != 307:
            return
        told = await client.ask("GET", found.headers["location"])
        if told.status == 200:
            self.seen["looks"] += 1
            assert told.body.strip().decode() == told.headers["stream-id"], "a snapshot is of another stream"


def test_what_was_meant_for_one_stream_is_never_found_in_another(victim: Victim) -> None:
    seen = asyncio.run(Names(victim).play())
    assert seen["folds 204"] > 20, seen
    assert seen["folds 410"] + seen["folds 404"] > 0, seen
    assert seen["looks"] > 20, seen
