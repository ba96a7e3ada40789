"""Names and buckets that are deleted and made again while everything that waits is under way.

Each message says which stream it was written to, so that whatever is read, published, appended or committed shows
whether it got to the stream that its answer names, or to another one of the same name.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.torture.client import Answer, Client, Lost
from tests.torture.harness import Victim, eventually, metric

JSON = {"Content-Type": "application/json"}
NDJSON = {"Content-Type": "application/x-ndjson"}
NAMES = [f"s{index}" for index in range(6)]
APPS = ("etl", "job")
_MESSAGE = re.compile(rb'"(s\d):(\d+):')  # name and generation
_APPENDED = re.compile(rb'"(append:[^"]*)"')

Operation = Callable[[Client, str], Awaitable[None]]


class Town:
    """A bucket, its streams, and what everybody was told about them."""

    def __init__(self, server: Victim, seed: int) -> None:
        self.server = server
        self.rng = random.Random(seed)
        self.bucket = f"/ds/town-{seed}"
        self.done: Counter[str] = Counter()
        self._generations: dict[str, int] = {}  # by stream-id
        self._current: dict[str, str] = {}  # stream-id by name
        self._appended: dict[str, str] = {}  # what was acknowledged, by message: the stream-id that was told
        self._published: dict[tuple[str, int], bytes] = {}  # by stream-id and offset
        self._answers: list[Answer] = []  # of readers, who may meet a stream before its maker is answered
        self._clients: list[Client] = []
        self._numbers = 0

    async def live_through(self, deletes_bucket: bool) -> None:
        try:
            await self._begin()
            async with asyncio.TaskGroup() as group:
                for name in NAMES:
                    for operation in self._operations():
                        group.create_task(self._some_time(operation, name))
                for app in APPS:
                    group.create_task(self._some_time(self._commit, app))
                group.create_task(self._rebuild() if deletes_bucket else self._replace_all())
            await self._audit(deletes_bucket)
        finally:
            for client in self._clients:
                client.close()

    def _operations(self) -> list[Operation]:
        return [self._read, self._poll, self._follow, self._bootstrap, self._bulk, self._append, *[self._publish] * 3]

    # -- the streams -----------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        client = self._client()
        assert (await client.ask_until_taken("PUT", self.bucket)).status == 201
        for name in NAMES:
            await self._create(client, name, 0)
        for app in APPS:
            rows = "\n".join(json.dumps({"stream": app, "json": f"old:{n}:" + "x" * 900}) for n in range(1000))
            staged = await client.ask_until_taken("PUT", f"{self._version(app)}/0", rows.encode(), NDJSON)
            assert staged.status == 200, staged
        # What lies on the disk is waited for when it is asked for.
        await asyncio.to_thread(eventually, lambda: self._hot_bytes() == 0, "everything is checkpointed")

    def _hot_bytes(self) -> float:
        return metric(self.server.port, "millstream_hot_bytes")

    async def _create(self, client: Client, name: str, generation: int) -> None:
        """At first many small messages, then few large ones: where the former begin, the latter do not."""
        count, size = ((60, 20), (3, 5000))[generation]
        messages = [f"{name}:{generation}:{number}:{'x' * size}" for number in range(count)]
        answer = await client.ask_until_taken("PUT", f"{self.bucket}/{name}", json.dumps(messages).encode(), JSON)
        assert answer.status == 201, answer
        self._generations[answer.stream_id] = generation
        self._current[name] = answer.stream_id

    async def _replace(self, name: str) -> None:
        client = self._client()
        await asyncio.sleep(self._moment())
        assert (await client.ask_until_taken("DELETE", f"{self.bucket}/{name}")).status == 204
        await self._create(client, name, 1)

    async def _replace_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for name in NAMES:
                group.create_task(self._replace(name))

    async def _rebuild(self) -> None:
        """The bucket itself, and only then its streams. A commit may have made one more."""
        client = self._client()
        await asyncio.sleep(self._moment())
        while (await client.ask_until_taken("DELETE", self.bucket)).status != 204:
            for name in (*NAMES, *APPS):
                await client.ask_until_taken("DELETE", f"{self.bucket}/{name}")
        assert (await client.ask_until_taken("PUT", self.bucket)).status == 201
        for name in NAMES:
            await self._create(client, name, 1)

    # -- what is under way -----------------------------------------------------------------------------------

    async def _some_time(self, operation: Operation, name: str) -> None:
        await asyncio.sleep(self._moment())
        try:
            await operation(self._client(), name)
        except Lost:
            self.done["ended"] += 1  # an answer that could not be finished
        self.done[operation.__name__] += 1

    def _check(self, answer: Answer) -> None:
        """What was sent is of the stream that the answer names."""
        if answer.status == 200:
            generations = {int(generation) for _, generation in _MESSAGE.findall(answer.body)}
            assert generations <= {self._generations[answer.stream_id]}, (answer.headers, generations)

    async def _read(self, client: Client, name: str) -> None:
        answer = await client.ask("GET", f"{self.bucket}/{name}?offset=-1")
        assert answer.status in (200, 404), answer
        self._answers.append(answer)

    async def _poll(self, client: Client, name: str) -> None:
        answer = await client.ask("GET", f"{self.bucket}/{name}?offset=now&live=long-poll&timeout_ms=300")
        assert answer.status in (200, 204, 404), answer
        self._answers.append(answer)

    async def _bootstrap(self, client: Client, name: str) -> None:
        answer = await client.ask("GET", f"{self.bucket}/{name}/bootstrap")
        assert answer.status in (200, 404), answer
        self._answers.append(answer)

    async def _follow(self, client: Client, name: str) -> None:
        head = await client.ask("HEAD", f"{self.bucket}/{name}")
        if head.status != 200:
            return
        text = ""
        try:
            async with asyncio.timeout(0.5):
                async for kind, data in client.events(f"{self.bucket}/{name}?offset=0&live=sse"):
                    text += data if kind == "data" else ""
        except TimeoutError:
            client.close()
        except AssertionError as error:
            if "status=404" not in str(error):
                raise
        assert len({generation for _, generation in _MESSAGE.findall(text.encode())}) <= 1, "it followed two streams"

    async def _bulk(self, client: Client, name: str) -> None:
        answer = await client.ask("GET", f"{self.bucket}/streams/messages?prefix={name}")
        assert answer.status in (200, 404), answer
        if answer.status == 200:
            values = [json.loads(line)["value"] or "" for line in answer.body.splitlines()]
            content = b"".join(map(base64.b64decode, values))
            assert len({generation for _, generation in _MESSAGE.findall(content)}) <= 1, "two streams at a time"

    async def _append(self, client: Client, name: str) -> None:
        """Large enough to travel in parts."""
        self._numbers += 1
        message = f"append:{self._numbers}:" + "y" * 60_000
        answer = await client.ask("POST", f"{self.bucket}/{name}", json.dumps([message]).encode(), JSON)
        assert answer.status in (204, 404, 410, 503), answer
        if answer.status == 204:
            self._appended[message] = answer.stream_id

    async def _publish(self, client: Client, name: str) -> None:
        """A fold of the stream as it was at first, at a place where only its messages begin."""
        size = len(json.dumps(f"{name}:0:0:" + "x" * 20))
        offset, state = size * self.rng.randint(1, 9), self.rng.randbytes(self.rng.choice((20, 40_000)))
        path = f"{self.bucket}/{name}/snapshot/{offset}?trim=false"
        answer = await client.ask("PUT", path, state, {"Content-Type": "text/plain"})
        assert answer.status in (204, 400, 404, 409, 410, 503), answer
        if answer.status == 204:
            self._published[(answer.stream_id, offset)] = state
        self.done["published" if answer.status == 204 else "refused"] += 1

    def _version(self, app: str) -> str:
        return f"{self.bucket}/streams/transactions/{app}/1"

    async def _commit(self, client: Client, app: str) -> None:
        wish = json.dumps({"parts": ["0"], "create": True, "content_type": "application/json"}).encode()
        answer = await client.ask("POST", self._version(app), wish, JSON)
        assert answer.status in (200, 404, 409, 410, 503), answer
        self.done["committed"] += answer.status == 200

    # -- what it has come to ---------------------------------------------------------------------------------

    async def _audit(self, is_rebuilt: bool) -> None:
        client = self._client()
        for answer in self._answers:
            self._check(answer)
        for name in NAMES:
            await self._audit_stream(client, name)
        for app in APPS:
            known = await client.ask("GET", f"{self.bucket}/{app}?offset=-1")
            assert not is_rebuilt or known.status == 404, f"{app}: what was staged for one bucket is in another"

    async def _audit_stream(self, client: Client, name: str) -> None:
        path, stream_id = f"{self.bucket}/{name}", self._current[name]
        content = await client.ask("GET", f"{path}?offset=0&max_bytes=10000000")
        assert content.stream_id == stream_id, (name, content.headers)
        self._check(content)
        found = {value.decode() for value in _APPENDED.findall(content.body)}
        told = {message for message, known in self._appended.items() if known == stream_id}
        lost, strange = told - found, found & self._appended.keys() - told
        assert not lost, f"{name}: acknowledged for this stream, and not in it: {[one[:20] for one in lost]}"
        assert not strange, f"{name}: acknowledged for another stream, and in this: {[one[:20] for one in strange]}"
        await self._audit_snapshot(client, path, stream_id, content)

    async def _audit_snapshot(self, client: Client, path: str, stream_id: str, content: Answer) -> None:
        head = await client.ask("HEAD", path)
        if "stream-snapshot-offset" not in head.headers:
            return
        offset, ends = int(head.headers["stream-snapshot-offset"]), [0]
        for message in json.loads(content.body):
            ends.append(ends[-1] + len(json.dumps(message)))
        assert offset in ends, f"{path}: a snapshot at {offset}, where no message of this stream begins"
        state = (await client.ask("GET", f"{path}/snapshot/{offset}")).body
        assert state == self._published.get((stream_id, offset), state), f"{path}: a snapshot of another stream"

    def _moment(self) -> float:
        return self.rng.random() ** 2 * 0.05

    def _client(self) -> Client:
        self._clients.append(Client(self.server.port))
        return self._clients[-1]
