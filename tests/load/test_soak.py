"""Mixed load for a long time: memory, latency and descriptors stay where they are.

make torture ARGS="-k soak"                                  # 30 minutes
MILLSTREAM_TORTURE_MINUTES=2 make torture ARGS="-k soak"
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.conftest import ServerProcess
from tests.hostile.memory import descriptors, resident_mib
from tests.torture.client import Answer, Client, Lost
from tests.torture.harness import children

SETTINGS: dict[str, object] = {
    # Everything that happens every minute or every gigabyte shall happen many times.
    "checkpoint_age_s": 2.0,
    "checkpoint_bytes": "8MiB",
    "journal_file_bytes": "8MiB",
    "hot_bytes_max": "64MiB",
    "hot_streams_max": 2000,
    "merge_segments_min": 4,
    "low_space_bytes": 0,
    "sse_max_s": 5,
}
SAMPLE_S = 2.0
QUICK_MINUTES = 0.15
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}


@dataclass(slots=True)
class Sample:
    at_s: float
    server_mib: float
    helper_mib: float
    descriptors: int
    latency_ms: float  # median of appends since the last sample


@dataclass
class Soak:
    """Clients that keep a steady pace, and what the server took meanwhile."""

    server: ServerProcess
    seed: int
    minutes: float
    samples: list[Sample] = field(default_factory=list)
    requests: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._latencies_ms: list[float] = []
        self._until_s = 0.0

    async def run(self) -> None:
        self._until_s = time.monotonic() + 60 * self.minutes
        kinds = [self._append, self._append, self._produce, self._batch, self._come_and_go, self._lease, self._read]
        async with asyncio.TaskGroup() as group:
            for index, kind in enumerate(kinds * 4):
                group.create_task(self._repeat(kind, f"{kind.__name__.strip('_')}{index}"))
            for index in range(20):
                group.create_task(self._follow(self._some_stream(index)))
            group.create_task(self._watch())

    def _some_stream(self, number: int) -> str:
        """One of those that are appended to: `_append` is the first two of the seven kinds."""
        return f"append{7 * (number % 4) + number % 2}"

    # -- clients ---------------------------------------------------------------------------------------------

    async def _repeat(self, act: Callable[[Client, str, int], Awaitable[None]], name: str) -> None:
        client = Client(self.server.port)
        number = 0
        try:
            while time.monotonic() < self._until_s:
                await act(client, name, number)
                number += 1
                await asyncio.sleep(0.02 * self.rng.random())
        finally:
            client.close()

    async def _ask(
        self, client: Client, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        answer = await client.ask(method, path, body, headers)
        while answer.status == 503:  # under pressure: it did not happen
            await asyncio.sleep(0.05)
            answer = await client.ask(method, path, body, headers)
        self.requests += 1
        assert answer.status < 500, (method, path, answer)
        return answer

    async def _timed(self, client: Client, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        began = time.monotonic()
        answer = await self._ask(client, "POST", path, body, headers)
        self._latencies_ms.append(1000 * (time.monotonic() - began))
        return answer

    async def _append(self, client: Client, name: str, number: int) -> None:
        """To a stream that is begun anew every two thousand appends: it must not fill the disk in half an hour."""
        path = f"/v1/stream/soak/{name}"
        if number % 2000 == 0:
            await self._ask(client, "DELETE", path)
            await self._ask(client, "PUT", path, headers=TEXT)
        answer = await self._timed(client, path, b"x" * int(1 + 4000 * self.rng.random() ** 3), TEXT)
        assert answer.status == 204, answer

    async def _produce(self, client: Client, name: str, number: int) -> None:
        path = f"/v1/stream/soak/{name}/{number // 3000}"
        if number % 3000 == 0:
            await self._ask(client, "PUT", path, headers=TEXT)
        stamp = {"Producer-Id": name, "Producer-Epoch": "0", "Producer-Seq": str(number % 3000)}
        answer = await self._timed(client, path, b"y" * 100, {**TEXT, **stamp})
        assert answer.status == 200, answer

    async def _batch(self, client: Client, name: str, number: int) -> None:
        path = f"/v1/stream/soak/{name}/{number // 1000}"
        if number % 1000 == 0:
            await self._ask(client, "DELETE", f"/v1/stream/soak/{name}/{number // 1000 - 1}")
            await self._ask(client, "PUT", path, headers=JSON)
        body = b"[" + b",".join(b'{"n":%d}' % index for index in range(20)) + b"]"
        assert (await self._timed(client, path, body, JSON)).status == 204

    async def _come_and_go(self, client: Client, name: str, number: int) -> None:
        path = f"/v1/stream/soak/{name}/{number % 50}"
        await self._ask(client, "PUT", path, b"born", TEXT)
        await self._ask(client, "POST", path, b"and gone", {**TEXT, "Stream-Closed": "true"})
        assert (await self._ask(client, "DELETE", path)).status == 204

    async def _lease(self, client: Client, name: str, number: int) -> None:
        """Streams that nobody deletes: their time is up."""
        await self._ask(client, "PUT", f"/v1/stream/soak/{name}/{number}", b"for a while", {**TEXT, "Stream-TTL": "5"})

    async def _read(self, client: Client, name: str, number: int) -> None:
        path = f"/v1/stream/soak/{self._some_stream(number)}"
        live = f"?offset={self.rng.choice(('-1', 'now', 'now&live=long-poll&timeout_ms=100'))}"
        assert (await self._ask(client, "GET", path + live)).status in (200, 204, 404)

    async def _follow(self, name: str) -> None:
        while time.monotonic() < self._until_s:
            client = Client(self.server.port)
            try:
                async with asyncio.timeout(self._until_s - time.monotonic() + 0.1):
                    async for _ in client.events(f"/v1/stream/soak/{name}?offset=now&live=sse"):
                        pass
            except (Lost, TimeoutError, AssertionError):
                await asyncio.sleep(0.05)  # deleted just now, or not there yet
            finally:
                client.close()

    # -- the watch -------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        began = time.monotonic()
        every_s = max(SAMPLE_S, 60 * self.minutes / 200)
        while time.monotonic() < self._until_s:
            await asyncio.sleep(min(every_s, max(0.1, self._until_s - time.monotonic())))
            latencies, self._latencies_ms = self._latencies_ms, []
            if latencies:
                helper = sum(resident_mib(pid) for pid in children(self.server.pid))
                self.samples.append(
                    Sample(
                        time.monotonic() - began,
                        resident_mib(self.server.pid),
                        helper,
                        descriptors(self.server.pid),
                        statistics.median(latencies),
                    )
                )

    def quarters(self) -> tuple[list[Sample], list[Sample]]:
        """The second and the last: the first is for warming up."""
        count = len(self.samples) // 4
        return self.samples[count : 2 * count], self.samples[-count:]

    def check_flat(self) -> None:
        early, late = self.quarters()
        assert len(early) >= 1, "too short to tell"
        for name, slack, factor in (
            ("server_mib", 16, 1.15),
            ("helper_mib", 16, 1.25),
            ("descriptors", 20, 1.1),
            ("latency_ms", 5, 2.0),
        ):
            before, after = (statistics.median(getattr(one, name) for one in part) for part in (early, late))
            assert after <= factor * before + slack, f"{name} grew from {before:.1f} to {after:.1f}:\n{self.table()}"

    def table(self) -> str:
        step = max(1, len(self.samples) // 12)
        rows = [
            f"{one.at_s:7.0f} s {one.server_mib:7.1f} MiB {one.helper_mib:7.1f} MiB in the helper "
            f"{one.descriptors:5d} descriptors {one.latency_ms:7.2f} ms to an acknowledgement"
            for one in self.samples[::step]
        ]
        return "\n".join((f"seed {self.seed}: {self.requests} requests in {self.minutes} minutes", *rows))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path, SETTINGS)
    process.start()
    yield process
    assert process.stop() == 0, process.log()[-2000:]
    assert "Traceback" not in process.log(), process.log()[-4000:]


def test_a_short_soak_is_taken_calmly(server: ServerProcess) -> None:
    soak = Soak(server, 1, QUICK_MINUTES)
    asyncio.run(soak.run())
    assert soak.requests > 500, soak.table()


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_a_long_soak_changes_nothing(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    minutes = float(os.environ.get("MILLSTREAM_TORTURE_MINUTES") or 30)
    seed = int(os.environ.get("MILLSTREAM_TORTURE_SEED") or secrets.randbelow(10**9))
    with capsys.disabled():
        print(f"\nMILLSTREAM_TORTURE_SEED={seed} MILLSTREAM_TORTURE_MINUTES={minutes:g}", flush=True)
    soak = Soak(server, seed, minutes)
    asyncio.run(soak.run())
    with capsys.disabled():
        print(soak.table())
    soak.check_flat()
