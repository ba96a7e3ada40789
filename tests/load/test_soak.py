"""Mixed load of everything there is for a long time: memory, latency and descriptors stay where they are.

make torture ARGS="-k soak"                                  # 30 minutes
MILLSTREAM_TORTURE_MINUTES=2 make torture ARGS="-k soak"
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.conftest import ServerProcess
from tests.hostile.memory import descriptors, resident_mib
from tests.torture.client import Answer, Client, Lost
from tests.torture.harness import children

from millstream.client.s3p import AsyncS3pClient, MessageId

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
    "archive_bytes_max": "16MiB",
    "retention_every_s": 2,
    "read_cache_bytes": "4MiB",
}
SAMPLES = 200
QUICK_MINUTES = 0.4
QUICK_SAMPLES = 40
STREAMS = 8  # that are read and followed
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
NDJSON = {"Content-Type": "application/x-ndjson"}
ARROW = {"Accept": "application/vnd.apache.arrow.stream"}


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
    samples_wanted: int = SAMPLES
    samples: list[Sample] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)  # by kind of client

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.kinds = {
            self._append: STREAMS,
            self._produce: 4,
            self._batch: 4,
            self._come_and_go: 4,
            self._lease: 4,
            self._read: 4,
            self._publish: 2,
            self._transact: 2,
            self._page: 2,
            self._bulk: 2,
            self._records: 2,
        }
        self._latencies_ms: list[float] = []
        self._positions: dict[str, str] = {}
        self._last_ids: dict[str, MessageId | None] = {}
        self._until_s = 0.0

    async def run(self) -> None:
        async with AsyncS3pClient(port=self.server.s3p_port) as self._s3p:
            await self._make_bucket()
            self._until_s = time.monotonic() + 60 * self.minutes
            async with asyncio.TaskGroup() as group:
                for kind, count in self.kinds.items():
                    for index in range(count):
                        group.create_task(self._repeat(kind, f"{kind.__name__.strip('_')}{index}"))
                for index in range(20):
                    group.create_task(self._follow(f"{self._some_stream(index)}?offset=now&live=sse"))
                for _ in range(3):
                    group.create_task(self._follow("/ds/soak/streams/feed?after=now&data=true&live=sse"))
                group.create_task(self._watch())

    async def _make_bucket(self) -> None:
        """With a retention, so that what is not deleted goes all the same."""
        client = Client(self.server.port)
        answer = await self._ask(client, "PUT", "/ds/soak", json.dumps({"retention_bytes": 1 << 20}).encode(), JSON)
        assert answer.status == 201, answer
        client.close()

    def _some_stream(self, number: int) -> str:
        """One of those that are appended to."""
        return f"/v1/stream/soak/append{number % STREAMS}"

    # -- clients ---------------------------------------------------------------------------------------------

    async def _repeat(self, act: Callable[[Client, str, int], Awaitable[None]], name: str) -> None:
        client = Client(self.server.port)
        number = 0
        try:
            while time.monotonic() < self._until_s:
                await act(client, name, number)
                self.done[act.__name__] += 1
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
        path = self._some_stream(number)
        live = f"?offset={self.rng.choice(('-1', 'now', 'now&live=long-poll&timeout_ms=100'))}"
        assert (await self._ask(client, "GET", path + live)).status in (200, 204, 404)

    async def _publish(self, client: Client, name: str, number: int) -> None:
        """A fold of a stream, every fifth append; what it covers goes."""
        path = f"/ds/soak/{name}"
        if number == 0:
            await self._ask(client, "PUT", path, headers=TEXT)
        appended = await self._timed(client, path, b"z" * 500, TEXT)
        assert appended.status == 204, appended
        if number % 5 == 0:
            state = b"state " * self.rng.choice((1, 100, 10_000))
            published = await self._ask(client, "PUT", f"{path}/snapshot/{appended.next_offset}", state, TEXT)
            assert published.status == 204, published
            assert (await self._ask(client, "GET", f"{path}/bootstrap")).status == 200

    async def _transact(self, client: Client, name: str, number: int) -> None:
        base = f"/ds/soak/streams/transactions/{name}/{number}"
        rows = [{"stream": f"{name}-{row % 5}", "json": {"n": row}} for row in range(50)]
        body = "\n".join(map(json.dumps, rows)).encode()
        for part in ("0", "1"):
            assert (await self._ask(client, "PUT", f"{base}/{part}", body, NDJSON)).status == 200
        wish = {"parts": ["0", "1"], "create": True, "content_type": "application/json"}
        committed = await self._ask(client, "POST", base, json.dumps(wish).encode(), JSON)
        assert committed.status == 200, committed
        if number % 50 == 49:
            for index in range(5):
                assert (await self._ask(client, "DELETE", f"/ds/soak/{name}-{index}")).status == 204

    async def _page(self, client: Client, name: str, number: int) -> None:
        """A page of the feed; who is too slow for the archive is told where it begins now."""
        after = self._positions.get(name, "earliest")
        page = await self._ask(
            client, "GET", f"/ds/soak/streams/feed?after={after}&data={str(number % 2 == 0).lower()}"
        )
        assert page.status in (200, 410), page
        moved = "stream-next-position" if page.status == 200 else "stream-earliest-position"
        self._positions[name] = page.headers[moved]

    async def _bulk(self, client: Client, name: str, number: int) -> None:
        """A megabyte of messages as Arrow or as lines; in the end everything was read many times."""
        after = self._positions.get(name, "earliest")
        path = f"/ds/soak/streams/messages?after={after}&max_bytes=1000000"
        rows = await self._ask(client, "GET", path, headers=ARROW if number % 2 == 0 else {})
        assert rows.status == 200, rows
        self._positions[name] = "earliest" if number % 20 == 19 else rows.headers["stream-next-position"]
        await asyncio.sleep(0.05)

    async def _records(self, client: Client, name: str, number: int) -> None:
        """Over S3P: appended, read, and trimmed behind the readers."""
        if number == 0:
            await self._s3p.create(name)
        last = await self._s3p.append(name, [b"record" * self.rng.randint(1, 50)] * self.rng.randint(1, 20))
        found = await self._s3p.read(name, after=self._last_ids.get(name), block_ms=100)
        assert found[-1].id == last, (name, found[-1].id, last)
        self._last_ids[name] = last
        if number % 20 == 19:
            await self._s3p.trim(name, last)

    async def _follow(self, path: str) -> None:
        while time.monotonic() < self._until_s:
            client = Client(self.server.port)
            try:
                async with asyncio.timeout(self._until_s - time.monotonic() + 0.1):
                    async for kind, _ in client.events(path):
                        self.done["feed" if "/feed" in path else "follow"] += kind == "data"
            except (Lost, TimeoutError):
                await asyncio.sleep(0.05)
            except AssertionError as error:
                if "status=404" not in str(error):  # deleted just now, or not there yet
                    raise
                await asyncio.sleep(0.05)
            finally:
                client.close()

    # -- the watch -------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        began = time.monotonic()
        every_s = 60 * self.minutes / self.samples_wanted
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

    def check_worked(self) -> None:
        """A server with nothing to do stays as it is."""
        expected = [*(kind.__name__ for kind in self.kinds), "follow", "feed"]
        idle = {name: self.done[name] for name in expected if self.done[name] < 40 * self.minutes}
        assert not idle, f"these did next to nothing: {idle}\n{self.table()}"

    def check_flat(self) -> None:
        early, late = self.quarters()
        assert len(early) >= 5, "too short to tell"
        for name, slack, factor in (
            ("server_mib", 16, 1.15),
            ("helper_mib", 16, 1.25),
            ("descriptors", 20, 1.1),
            ("latency_ms", 20, 2.0),
        ):
            before, after = (statistics.median(getattr(one, name) for one in part) for part in (early, late))
            assert after <= factor * before + slack, f"{name} grew from {before:.1f} to {after:.1f}:\n{self.table()}"

    def table(self) -> str:
        step = max(1, len(self.samples) // 12)
        rows = [
            f"{one.at_s:7.0f} s {one.server_mib:7.1f} MiB {one.helper_mib:7.1f} MiB in the helpers "
            f"{one.descriptors:5d} descriptors {one.latency_ms:7.2f} ms to an acknowledgement"
            for one in self.samples[::step]
        ]
        return "\n".join((f"seed {self.seed}: {self.minutes} minutes, done: {dict(self.done)}", *rows))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path, SETTINGS)
    process.start()
    yield process
    process.stop()


@pytest.mark.parametrize("grows", ["server_mib", "helper_mib", "descriptors", "latency_ms"])
def test_growth_is_noticed(grows: str, tmp_path: Path) -> None:
    load = Soak(ServerProcess(tmp_path, {}), 1, 1.0)
    for at_s in range(40):
        flat = Sample(at_s, 70.0, 80.0, 100, 10.0)
        setattr(flat, grows, round(getattr(flat, grows) * 1.1**at_s))
        load.samples.append(flat)
    with pytest.raises(AssertionError, match=f"{grows} grew"):
        load.check_flat()


def test_a_short_soak_changes_nothing(server: ServerProcess) -> None:
    print(soak(server, 1, QUICK_MINUTES, QUICK_SAMPLES))


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_a_long_soak_changes_nothing(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    minutes = float(os.environ.get("MILLSTREAM_TORTURE_MINUTES") or 30)
    seed = int(os.environ.get("MILLSTREAM_TORTURE_SEED") or secrets.randbelow(10**9))
    with capsys.disabled():
        print(f"\nMILLSTREAM_TORTURE_SEED={seed} MILLSTREAM_TORTURE_MINUTES={minutes:g}", flush=True)
        print(soak(server, seed, minutes, SAMPLES))


def soak(server: ServerProcess, seed: int, minutes: float, samples: int) -> str:
    """Everything at once, and everything checked; how it went."""
    load = Soak(server, seed, minutes, samples)
    asyncio.run(load.run())
    load.check_worked()
    load.check_flat()
    return load.table()
