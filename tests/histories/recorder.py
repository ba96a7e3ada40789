"""Records what concurrent clients of a real server asked and were told, as a history for the checker."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from collections.abc import Awaitable, Callable

from tests.torture.client import Answer as Told
from tests.torture.client import Client, Lost
from tests.torture.harness import Victim

from .checker import Answer, Append, History, Read

TYPE = {"Content-Type": "application/octet-stream"}
_PAUSE_S = 0.01
_PATIENCE_S = 20.0


class Recorder:
    """One stream, its clients, and everything they noted."""

    def __init__(self, server: Victim, name: str, seed: int) -> None:
        self.server = server
        self.path = f"/v1/stream/{name}"
        self.rng = random.Random(seed)
        self.seed = seed
        self.operations: list[Append | Read] = []
        self._until_s = 0.0
        self._numbers = 0
        self._clients: list[Client] = []

    async def record(self, duration_s: float, kills: int) -> History:
        """Let everybody loose for a while, the server dying under them, then read everything once more."""
        try:
            return await self._record(duration_s, kills)
        finally:
            for client in self._clients:
                client.close()

    def _client(self) -> Client:
        self._clients.append(Client(self.server.port))
        return self._clients[-1]

    async def _record(self, duration_s: float, kills: int) -> History:
        client = self._client()
        await self._insist(client, lambda: client.ask("PUT", self.path, headers=TYPE))
        self._until_s = time.monotonic() + duration_s
        async with asyncio.TaskGroup() as group:
            for index in range(3):
                group.create_task(self._write(f"plain{index}"))
            for index in range(2):
                group.create_task(self._produce(f"producer{index}"))
            group.create_task(self._close_some_time())
            for index in range(2):
                group.create_task(self._read(f"reader{index}"))
            group.create_task(self._poll("poller"))
            group.create_task(self._follow("follower"))
            group.create_task(self._kill(kills, duration_s))
        await self._insist(client, lambda: self._read_all("last", client))
        return self.operations

    # -- the server ----------------------------------------------------------------------------------------

    async def _kill(self, kills: int, duration_s: float) -> None:
        for _ in range(kills):
            await asyncio.sleep(self.rng.random() * duration_s / kills)
            self.server.kill()
            await asyncio.to_thread(self.server.start)

    async def _insist(self, client: Client, ask: Callable[[], Awaitable[Told]]) -> Told:
        """Ask until there is an answer that is not about pressure."""
        give_up_s = time.monotonic() + _PATIENCE_S
        while True:
            assert time.monotonic() < give_up_s, f"{self.path}: no answer in {_PATIENCE_S} s"
            try:
                told = await ask()
            except Lost:
                client.close()
            else:
                if told.status != 503:
                    assert told.status < 300, (self.path, told)
                    return told
            await asyncio.sleep(_PAUSE_S)

    def _goes_on(self) -> bool:
        return time.monotonic() < self._until_s

    # -- writers ---------------------------------------------------------------------------------------------

    def _value(self, client: str) -> bytes:
        """Unique, and never the beginning of another."""
        self._numbers += 1
        return f"<{client} {self._numbers} {'x' * self.rng.choice((0, 10, 300, 3000))}>".encode()

    async def _write(self, name: str) -> None:
        client = self._client()
        while self._goes_on():
            closes = self.rng.random() < 0.002
            await self._append(name, client, self._value(name), TYPE, closes)
            await asyncio.sleep(self.rng.choice((0, 0, 0.005)))

    async def _append(self, name: str, client: Client, value: bytes, headers: dict[str, str], closes: bool) -> None:
        more = {"Stream-Closed": "true"} if closes else {}
        invoked = time.monotonic()
        try:
            told = await client.ask("POST", self.path, value, {**headers, **more})
        except Lost:
            self.operations.append(Append(name, value, invoked, answer=Answer.UNKNOWN, closes=closes))
            await asyncio.sleep(_PAUSE_S)
            return
        self._note(name, value, invoked, told, closes)

    def _note(self, name: str, value: bytes, invoked: float, told: Told, closes: bool) -> None:
        answered = time.monotonic()
        if told.status in (200, 204):
            end = told.next_offset if value else None
            self.operations.append(Append(name, value, invoked, answered, Answer.OK, end, closes))
        elif told.status == 409:
            assert told.is_closed, told
            self.operations.append(Append(name, value, invoked, answered, Answer.REFUSED, None, closes))
        else:
            assert told.status == 503, told
            if told.code == "outcome_unknown":
                self.operations.append(Append(name, value, invoked, answer=Answer.UNKNOWN, closes=closes))

    async def _produce(self, name: str) -> None:
        """An idempotent producer: one operation may be asked for many times, and happens once."""
        client = self._client()
        seq = 0
        while self._goes_on():
            value, invoked = self._value(name), time.monotonic()
            headers = {**TYPE, "Producer-Id": name, "Producer-Epoch": "0", "Producer-Seq": str(seq)}
            told = await self._deliver(client, value, headers)
            seq += 1
            if told.status == 204:  # an earlier attempt had got there; the answer tells the tail of now
                self.operations.append(Append(name, value, invoked, time.monotonic()))
            else:
                self._note(name, value, invoked, told, False)
            await asyncio.sleep(self.rng.choice((0, 0.005)))

    async def _deliver(self, client: Client, value: bytes, headers: dict[str, str]) -> Told:
        while True:
            try:
                told = await client.ask("POST", self.path, value, headers)
            except Lost:
                client.close()
            else:
                if told.status != 503:
                    return told
            await asyncio.sleep(_PAUSE_S)

    async def _close_some_time(self) -> None:
        if self.rng.random() < 0.4:
            await asyncio.sleep(self.rng.random() * (self._until_s - time.monotonic()))
            await self._append("closer", self._client(), b"", {}, True)

    # -- readers ---------------------------------------------------------------------------------------------

    async def _read(self, name: str) -> None:
        client = self._client()
        while self._goes_on():
            try:
                if self.rng.random() < 0.3:
                    await self._read_all(name, client)
                else:
                    await self._read_once(name, client, self._some_offset(), "")
            except Lost:
                client.close()
            await asyncio.sleep(self.rng.choice((0, 0.01, 0.03)))

    def _some_offset(self) -> int:
        """Somewhere that is known to be there."""
        known = [one.end for one in self.operations[-20:] if one.end is not None]
        return self.rng.choice([0, *known])

    async def _read_all(self, name: str, client: Client) -> Told:
        """As many pages as it takes: one read, from the first question to the last answer."""
        invoked, value = time.monotonic(), b""
        while True:
            asked = time.monotonic()
            told = await client.ask("GET", f"{self.path}?offset={len(value)}")
            assert told.status == 200, told
            value += told.body
            if "stream-up-to-date" in told.headers:
                break
        # The tail was there when the last page was asked for; what came before it was there even earlier.
        invoked = asked if value else invoked
        self.operations.append(Read(name, 0, value, invoked, time.monotonic(), True, told.is_closed))
        return told

    async def _read_once(self, name: str, client: Client, start: int, more: str) -> int:
        invoked = time.monotonic()
        told = await client.ask("GET", f"{self.path}?offset={start}{more}")
        assert told.status in (200, 204), told
        at_tail = "stream-up-to-date" in told.headers
        self.operations.append(Read(name, start, told.body, invoked, time.monotonic(), at_tail, told.is_closed))
        assert told.next_offset == start + len(told.body), told.headers
        return told.next_offset

    async def _poll(self, name: str) -> None:
        client, at = self._client(), 0
        while self._goes_on():
            try:
                at = await self._read_once(name, client, at, "&live=long-poll&timeout_ms=50")
            except Lost:
                client.close()
                await asyncio.sleep(_PAUSE_S)

    async def _follow(self, name: str) -> None:
        at = 0
        while self._goes_on():
            client = self._client()
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + self._until_s - time.monotonic()):
                    at = await self._take_events(name, client, at)
            except (Lost, TimeoutError):
                await asyncio.sleep(_PAUSE_S)
            finally:
                client.close()

    async def _take_events(self, name: str, client: Client, at: int) -> int:
        """Each event is a read: asked for when the one before it had come, or with the request."""
        invoked = time.monotonic()
        async for kind, text in client.events(f"{self.path}?offset={at}&live=sse"):
            if kind == "data":
                data = base64.b64decode(text, validate=True)
                self.operations.append(Read(name, at, data, invoked, time.monotonic(), at_tail=False))
                at += len(data)
            else:
                assert int(json.loads(text)["streamNextOffset"]) == at, text
        return at
