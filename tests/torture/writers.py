"""The clients of a torture run: each kind does one thing over and over, and writes down what it was told.

A writer lives as long as the run. When the server dies it stops in the middle of whatever it did; `run` goes on from
there after the restart, when the verifier has settled what had happened and what had not.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

from .client import Answer, Client, Lost
from .ledger import Account, Attempt, Known, Ledger
from .messages import SIZE_MIN, Label, Mint

NDJSON = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Run:
    """What the authors of a run have in common."""

    seed: int
    port: int
    ledger: Ledger
    mint: Mint


class Author(ABC):
    """What all kinds share: a name, messages with running numbers, and a connection."""

    def __init__(self, run: Run, name: str) -> None:
        self.name = name
        self.random = random.Random(f"{run.seed}/{name}")
        self.ledger = run.ledger
        self.mint = run.mint
        self.client = Client(run.port)
        self.done = 0  # what it was told: appends, transactions, news
        self._number = 0

    async def run(self) -> None:
        """Work until the server is gone."""
        try:
            while True:
                await self.step()
        except Lost:
            self.client.close()

    @abstractmethod
    async def step(self) -> None: ...

    def attempt(self, account: Account, sizes: list[int], closes: bool = False) -> Attempt:
        """A new append with a message of each size."""
        labels = tuple(Label(self.name, self._number + index, size) for index, size in enumerate(sizes))
        self._number += len(sizes)
        attempt = Attempt(labels, closes)
        account.note(attempt)
        return attempt

    def size(self, largest: int = 3000) -> int:
        """Mostly small, now and then large."""
        return SIZE_MIN + int((largest - SIZE_MIN) * self.random.random() ** 4)

    def body(self, account: Account, attempt: Attempt) -> bytes:
        messages = [self.mint.message(label, account.json) for label in attempt.labels]
        return messages[0] if len(messages) == 1 else b"[ " + b" ,\n".join(messages) + b"]"

    async def append(self, account: Account, attempt: Attempt, headers: dict[str, str] | None = None) -> Answer:
        """Send until it is taken or refused for a reason other than pressure."""
        headers = {"Content-Type": account.content_type, **(headers or {})}
        if attempt.closes:
            headers["Stream-Closed"] = "true"
        body = self.body(account, attempt)
        if attempt.happened is Known.NO:
            attempt.happened = Known.MAYBE
        answer = await self.ask("POST", account.path, body, headers)
        if answer.status in (200, 204):
            attempt.acknowledge(attempt.end or answer.next_offset)
            self.done += 1
        elif attempt.happened is Known.MAYBE:
            attempt.happened = Known.NO
        return answer

    async def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        return await self.client.ask_until_taken(method, path, body, headers)

    async def ensure(self, account: Account) -> None:
        """Create the stream if it is not known to be there."""
        if account.exists is Known.YES:
            return
        account.exists = Known.MAYBE
        lifetime = {} if account.ttl_s is None else {"Stream-TTL": str(account.ttl_s)}
        answer = await self.ask("PUT", account.path, headers={"Content-Type": account.content_type, **lifetime})
        assert answer.status in (200, 201), (account.path, answer)
        account.created(answer.stream_id)


class PlainWriter(Author):
    """Appends to a stream that it shares with others."""

    def __init__(self, run: Run, name: str, stream: str) -> None:
        super().__init__(run, name)
        self.account = self.ledger.open(stream)

    async def step(self) -> None:
        await self.ensure(self.account)
        answer = await self.append(self.account, self.attempt(self.account, [self.size()]))
        assert answer.status == 204, answer


class LargeWriter(PlainWriter):
    """Bodies that travel through the journal in parts."""

    async def step(self) -> None:
        await self.ensure(self.account)
        size = 20_000 + int(700_000 * self.random.random() ** 3)
        answer = await self.append(self.account, self.attempt(self.account, [size]))
        assert answer.status == 204, answer
        await asyncio.sleep(self.random.random() / 20)


class Sprinkler(Author):
    """A little to each of many streams, so that most of them are out of memory at any time."""

    def __init__(self, run: Run, name: str, streams: int) -> None:
        super().__init__(run, name)
        self.of_many = [self.ledger.open(f"{name}/{index}", json=index % 3 == 0) for index in range(streams)]

    async def step(self) -> None:
        account = self.random.choice(self.of_many)
        await self.ensure(account)
        answer = await self.append(account, self.attempt(account, [self.size(500)]))
        assert answer.status == 204, answer


class ProducerWriter(Author):
    """An idempotent producer: it sends every batch until it knows, and so each is there exactly once."""

    def __init__(self, run: Run, name: str, stream: str, json: bool) -> None:
        super().__init__(run, name)
        self.account = self.ledger.open(stream, json)
        self.current: Attempt | None = None
        self._start_over()

    def _start_over(self) -> None:
        """On a stream that does not know us."""
        self.known_to = self.account.stream_id
        self.epoch = self.seq = 0
        self.current = None

    async def step(self) -> None:
        await self.ensure(self.account)
        if self.known_to != self.account.stream_id:
            self._start_over()
        if self.current is None:
            sizes = [self.size() for _ in range(self.random.randint(1, 5) if self.account.json else 1)]
            self.current = self.attempt(self.account, sizes)
        await self._deliver(self.current)
        if self.random.random() < 0.1:
            await self._deliver(self.current)  # as if the answer had been lost: it must change nothing
        self.current = None
        self.seq += 1
        if self.random.random() < 0.02:
            self.epoch, self.seq = self.epoch + 1, 0

    async def _deliver(self, attempt: Attempt) -> None:
        """After a check the outcome is known, and then the answer has to say the same."""
        assert attempt.happened is not Known.MAYBE, "send again only what has been checked"
        expected = 204 if attempt.happened is Known.YES else 200
        headers = {
            "Producer-Id": self.name,
            "Producer-Epoch": str(self.epoch),
            "Producer-Seq": str(self.seq),
        }
        answer = await self.append(self.account, attempt, headers)
        assert answer.status == expected, (attempt.labels[0], attempt.happened, answer)
        assert answer.headers["producer-seq"] == str(self.seq), answer


class Closer(Author):
    """Streams with an end: a few appends, then closed, with a last message or without."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run, name)
        self._streams = 0
        self.account: Account | None = None

    async def step(self) -> None:
        account = self.account
        if account is None or account.closed is Known.YES:
            self._streams += 1
            account = self.account = self.ledger.open(f"{self.name}/{self._streams}")
        await self.ensure(account)
        for _ in range(self.random.randint(0, 3)):
            answer = await self.append(account, self.attempt(account, [self.size(800)]))
            assert answer.status == 204, answer
        await self._close(account)
        await self._knock(account)

    async def _close(self, account: Account) -> None:
        account.closed = Known.MAYBE
        if self.random.random() < 0.5:
            answer = await self.append(account, self.attempt(account, [self.size(800)], closes=True))
        else:
            answer = await self.ask("POST", account.path, headers={"Stream-Closed": "true"})
        assert answer.status == 204, answer
        assert answer.is_closed, answer
        account.closed = Known.YES

    async def _knock(self, account: Account) -> None:
        answer = await self.append(account, self.attempt(account, [SIZE_MIN]))
        assert answer.status == 409, answer
        assert answer.is_closed, answer


class Recreator(Author):
    """Deletes and creates the same few names, again and again."""

    def __init__(self, run: Run, name: str, streams: int) -> None:
        super().__init__(run, name)
        self.names = [self.ledger.open(f"{name}/{index}") for index in range(streams)]

    async def step(self) -> None:
        account = self.random.choice(self.names)
        await self.ensure(account)
        if self.random.random() < 0.4:
            await self._delete(account)
        else:
            answer = await self.append(account, self.attempt(account, [self.size(6000)]))
            assert answer.status == 204, answer

    async def _delete(self, account: Account) -> None:
        account.exists = Known.MAYBE
        answer = await self.ask("DELETE", account.path)
        assert answer.status == 204, answer
        account.forget()
        answer = await self.ask("HEAD", account.path)
        assert answer.status == 404, answer


class Lessee(Author):
    """Streams with a sliding TTL: some are used all the time and must stay, some are left alone and must go."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run, name)
        self.leased = [self.ledger.open(f"{name}/{ttl_s}") for ttl_s in (1, 2, 3, 60)]
        for account, ttl_s in zip(self.leased, (1, 2, 3, 60), strict=True):
            account.ttl_s = ttl_s

    async def step(self) -> None:
        account = self.random.choice(self.leased)
        try:
            await self._use(account)
        finally:
            account.used_before_s = time.monotonic()  # also by what was never answered
        await asyncio.sleep(self.random.choice((0.01, 0.05, 0.7)))

    async def _use(self, account: Account) -> None:
        asked_s = time.monotonic()
        if account.exists is not Known.YES:
            await self.ensure(account)
            account.used_after_s, asked_s = asked_s, time.monotonic()
        answer = await self.append(account, self.attempt(account, [self.size(500)]))
        if answer.status == 404:
            account.expire()
        else:
            assert answer.status == 204, answer
            account.used_after_s = asked_s


class Folder(Author):
    """Publishes a snapshot of its stream now and then, small ones and large ones; what it covers is not kept."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run, name)
        self.bucket = f"/ds/folded-{name}"
        self.account = self.ledger.open(f"{self.bucket}/stream")
        self.has_bucket = False
        self.published = 0

    async def step(self) -> None:
        account = self.account
        if not self.has_bucket:
            assert (await self.ask("PUT", self.bucket)).status in (201, 409)
            self.has_bucket = True
        await self.ensure(account)
        end = account.published
        for _ in range(self.random.randint(1, 6)):
            attempt = self.attempt(account, [self.size(2000)])
            answer = await self.append(account, attempt)
            assert answer.status == 204, answer
            end = answer.next_offset
        await self._publish(account, end)

    async def _publish(self, account: Account, offset: int) -> None:
        """The state is told by its offset, so that asking again is asking for the same."""
        chance = random.Random(f"{self.name} {account.stream_id} {offset}")
        state = f"the state of {self.name} at {offset}: ".encode() + chance.randbytes(chance.choice((0, 300, 40_000)))
        account.snapshots[offset] = state
        answer = await self.ask("PUT", f"{account.path}/snapshot/{offset}", state, {"Content-Type": "text/plain"})
        assert answer.status == 204, answer
        account.forget_before(offset)
        self.published += 1


class Committer(Author):
    """Transactions over several streams: staged, then committed until it knows. Each is there once, as a whole."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run, name)
        self.bucket = f"/ds/committed-{name}"
        self.streams = [self.ledger.open(f"{self.bucket}/s{index}") for index in range(4)]
        self.has_bucket = False
        self.version = 0
        self.current: list[tuple[Account, Attempt]] = []

    async def step(self) -> None:
        if not self.has_bucket:
            assert (await self.ask("PUT", self.bucket)).status in (201, 409)
            self.has_bucket = True
        if not self.current:
            self.version += 1
            chosen = self.random.sample(self.streams, self.random.randint(1, 4))
            self.current = [(account, self._some_messages(account)) for account in chosen]
        outcomes = {attempt.happened for _, attempt in self.current}
        assert len(outcomes) == 1, f"{self.name}: half of transaction {self.version} is there: {self.current}"
        await self._commit(is_known=outcomes == {Known.YES})
        if self.random.random() < 0.1:
            await self._commit(is_known=True)  # as if the answer had been lost
        self.current = []
        self.done += 1

    def _some_messages(self, account: Account) -> Attempt:
        return self.attempt(account, [self.size(1500) for _ in range(self.random.randint(1, 3))])

    async def _commit(self, is_known: bool) -> None:
        target = f"{self.bucket}/streams/transactions/{self.name}/{self.version}"
        parts = [self.current[:2], self.current[2:]]
        for number, part in enumerate(parts):
            answer = await self.ask("PUT", f"{target}/{number}", self._rows(part), {"Content-Type": NDJSON})
            assert answer.status == 200, answer
            assert json.loads(answer.body)["duplicate"] is is_known, answer
        for account, attempt in self.current:
            if not is_known:
                account.note(attempt)
                attempt.happened = Known.MAYBE
                account.exists = Known.YES if account.exists is Known.YES else Known.MAYBE
        listed = json.dumps({"parts": [str(number) for number in range(len(parts))], "create": True})
        answer = await self.ask("POST", target, listed.encode(), {"Content-Type": "application/json"})
        assert answer.status == 200, answer
        assert json.loads(answer.body)["duplicate"] is is_known, (self.version, answer)
        for account, attempt in self.current:
            attempt.happened = Known.YES
            account.exists = account.exists if is_known else Known.YES

    def _rows(self, part: list[tuple[Account, Attempt]]) -> bytes:
        rows = [
            {
                "stream": account.path.rpartition("/")[2],
                "value": base64.b64encode(self.mint.message(label, False)).decode(),
            }
            for account, attempt in part
            for label in attempt.labels
        ]
        return "\n".join(map(json.dumps, rows)).encode()


class Watcher(Author):
    """Follows a stream by long-polls. What it has been given must never be taken back."""

    def __init__(self, run: Run, name: str, stream: str, json: bool) -> None:
        super().__init__(run, name)
        self.account = self.ledger.open(stream, json)

    async def step(self) -> None:
        start = len(self.account.seen)
        answer = await self.ask("GET", f"{self.account.path}?offset={start}&live=long-poll&timeout_ms=300")
        if answer.status == 404:
            await asyncio.sleep(0.02)  # its writer has not made it yet
            return
        if answer.status == 204:
            return
        assert answer.status == 200, answer
        data = b"".join(self.mint.split_array(answer.body)) if self.account.json else answer.body
        assert start + len(data) == answer.next_offset, answer.headers
        self.account.saw(start, data)
        self.done += 1


class Follower(Watcher):
    """The same by Server-Sent Events."""

    async def step(self) -> None:
        if self.account.exists is not Known.YES:
            await self.ask("HEAD", self.account.path)  # or it would never learn that the server is gone
            await asyncio.sleep(0.02)
            return
        at = len(self.account.seen)
        async for kind, text in self.client.events(f"{self.account.path}?offset={at}&live=sse"):
            if kind == "data":
                data = self._decoded(text)
                self.account.saw(at, data)
                self.done += 1
                at += len(data)
            else:
                assert int(json.loads(text)["streamNextOffset"]) == at, text

    def _decoded(self, text: str) -> bytes:
        if self.account.json:
            return b"".join(self.mint.split_array(text.encode()))
        return base64.b64decode(text, validate=True)
