"""A node on a test bench: everything a server does to it, in one process and when the test says so.

async with Rig(folder) as rig:
    await rig.create("box/a")
    await rig.append("box/a", b"hello")
    rig.checkpoint()                 # what the helper process does, inline
    await rig.crash()                # no closing, no draining; what was answered is all that counts
    assert await rig.content("box/a") == b"hello"
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.storage.faulty_files import QuickFiles

from millstream.engine.reading import Cut
from millstream.engine.state import Stream
from millstream.model.commands import Append, Body, Command, Create, Delete, Expire
from millstream.model.errors import MillstreamError
from millstream.model.facts import Producer
from millstream.model.replies import Outcome, Receipt
from millstream.node.checkpoint import Checkpointer
from millstream.node.merging import Merger
from millstream.node.node import Node, NodeLimits, open_node
from millstream.storage.data_dir import DataDir
from millstream.storage.files import Files
from millstream.storage.segments.segment import segment_name

BYTES = "application/octet-stream"
JSON = "application/json"
PLENTY = 1 << 30

# Small enough that a few appends roll files, fill blocks and make merges worthwhile.
TINY = NodeLimits(
    journal_file_bytes=4096,
    batch_bytes_max=2048,
    part_bytes=64,
    checkpoint_records=10,
    block_bytes=256,
    merge_segments_min=2,
    low_space_bytes=0,
)


class Rig:
    def __init__(self, root: Path, limits: NodeLimits = TINY, files: Files | None = None) -> None:
        self.root = root
        self.limits = limits
        self.files = files or QuickFiles()
        self.node: Node
        self._killed: list[Node] = []

    async def __aenter__(self) -> Rig:
        self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.reap()
        await self.node.close()

    # -- its life ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open, and drop what was left of uploads, as `Node.start` does; upkeep is ours."""
        self.node = open_node(self.root, self.limits, self.files)
        for upload in list(self.node.machine.uploads):
            self.node.writer.drop_upload(upload)

    async def restart(self) -> None:
        await self.node.close()
        self.open()

    async def crash(self) -> None:
        """Let go of everything as a killed process does: nothing is finished, nobody is answered."""
        self.die()
        await self.reap()
        self.open()

    def die(self) -> None:
        node = self.__dict__.pop("node", None)
        if node is not None:
            abandon(node)
            self._killed.append(node)

    async def reap(self) -> None:
        """Wait for the helpers of nodes that have died."""
        while self._killed:
            await self._killed.pop().transactions.close()

    # -- writing -----------------------------------------------------------------------------------------

    def submit(self, command: Command) -> asyncio.Future[Receipt]:
        answered: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

        def done(answer: Receipt | MillstreamError) -> None:
            if answered.cancelled():
                return
            if isinstance(answer, MillstreamError):
                answered.set_exception(answer)
            else:
                answered.set_result(answer)

        self.node.submit(command, done)
        return answered

    async def create(self, key: str, content_type: str = BYTES, payload: object = b"", **more: object) -> Receipt:
        return await self.submit(Create(key, content_type, body=body_of(payload), **more))

    async def append(self, key: str, payload: object, content_type: str | None = None, **more: object) -> Receipt:
        return await self.submit(self.append_command(key, payload, content_type, **more))

    def append_command(self, key: str, payload: object, content_type: str | None = None, **more: object) -> Append:
        kind = content_type or (JSON if isinstance(payload, list) else BYTES)
        return Append(key, kind, payload if isinstance(payload, Body) else body_of(payload), **more)

    async def append_large(self, key: str, payload: object, **more: object) -> Receipt:
        """As the listener does it: parts first, then the append that names them; a refusal drops them."""
        body = body_of(payload)
        upload = await self.node.writer.stage(body.payload)
        staged = Body(b"", body.lengths or [len(body.payload)], None, upload)
        kind = JSON if isinstance(payload, list) else BYTES
        try:
            receipt = await self.append(key, staged, kind, **more)
        except MillstreamError:
            self.node.writer.drop_upload(upload)
            raise
        if receipt.outcome is not Outcome.APPENDED:
            self.node.writer.drop_upload(upload)
        return receipt

    async def close_stream(self, key: str, **more: object) -> Receipt:
        return await self.submit(Append(key, None, Body(), True, **more))

    async def delete(self, key: str) -> Receipt:
        return await self.submit(Delete(key))

    async def expire(self, key: str) -> Receipt:
        stream = self.node.machine.find(key)
        assert stream is not None
        return await self.submit(Expire(key, stream.number))

    # -- reading -----------------------------------------------------------------------------------------

    def stream(self, key: str) -> Stream:
        return self.node.visible(key)

    async def read(self, key: str, offset: int = 0, bytes_max: int = PLENTY) -> Cut:
        stream = self.stream(key)
        return await self.node.reader.read(stream, self.node.resolve(stream, offset), bytes_max)

    async def messages(self, key: str, offset: int = 0, bytes_max: int = PLENTY) -> list[bytes]:
        """The pieces of all reads it takes from here to the tail; messages, if the stream is JSON."""
        pieces: list[bytes] = []
        tail = self.stream(key).tail
        while offset < tail:
            cut = await self.read(key, offset, bytes_max)
            found = [bytes(piece) for piece in cut.pieces]
            assert cut.start == offset
            assert cut.end == offset + sum(map(len, found)) > offset, "a read must get on"
            assert cut.end - offset <= bytes_max or len(found) == 1, "more than was asked for"
            pieces += found
            offset = cut.end
        return pieces

    async def content(self, key: str, offset: int = 0, bytes_max: int = PLENTY) -> bytes:
        return b"".join(await self.messages(key, offset, bytes_max))

    # -- upkeep ------------------------------------------------------------------------------------------

    def checkpointer(self) -> Checkpointer:
        return Checkpointer(DataDir(self.root), self.files, block_bytes=self.limits.block_bytes)

    def checkpoint(self) -> int:
        """What the helper process does, and what the server does when it reports; where the catalog stands then."""
        through = self.node.writer.committed_sequence
        streams, buckets = self.node.machine.cut(through)
        with contextlib.closing(self.checkpointer()) as checkpointer:
            applied = checkpointer.advance(through)
        self.node.upkeep.applied = applied
        self.node.machine.cut_is_saved()
        self.node.recent.forget(through)
        for stream in streams:
            self.node.machine.checkpointed(stream, through)
        for bucket in buckets:
            self.node.machine.bucket_checkpointed(bucket, through)
        return applied

    def merge(self, steps_max: int = 20) -> int:
        """Merge as long as there is something to merge; how often that was."""
        with contextlib.closing(self.checkpointer()) as checkpointer:
            limits = self.limits
            merger = Merger(checkpointer, segments_min=limits.merge_segments_min, block_bytes=limits.block_bytes)
            merges = 0
            while merger.step():
                merges += 1
                assert merges <= steps_max, "merging does not come to an end"
                self._forget(merger.collect())
            self._forget(merger.collect())
            return merges

    def _forget(self, segments: Sequence[int]) -> None:
        for segment in segments:
            self.node.objects.forget(segment_name(segment))

    def evict(self) -> list[str]:
        """Let every stream go that may go; their keys."""
        machine, applied = self.node.machine, self.node.upkeep.applied
        used_before = machine.coarse_s + 1
        return [
            key for key, stream in list(machine.streams.items()) if machine.evict_idle(stream, applied, used_before)
        ]

    def segments(self) -> list[str]:
        return sorted(path.name for path in (self.root / "objects" / "segments").iterdir())

    def journal_files(self) -> list[Path]:
        return sorted((self.root / "journal").glob("*.log"))


class RealRig(Rig):
    """With the files that a server has: synced, and by the kernel's workers where it offers them."""

    def __init__(self, root: Path, limits: NodeLimits = TINY) -> None:
        super().__init__(root, limits, Files())


def abandon(node: Node) -> None:
    """End what a node holds of the process, its lock included, without finishing anything."""
    node.writer._failed = True  # a commit that the loop has scheduled must not run: the process is gone
    node.writer.stop()
    node.transactions.abandon()
    node.journal.close()
    node.catalog.close()
    node.objects.close()
    Files().close(node._lock_fd)


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Let the loop turn until something is so."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up, "it never came about"
        await asyncio.sleep(0)


def body_of(payload: object) -> Body:
    """Bytes are one message; a list is a JSON batch, each element one message."""
    if isinstance(payload, list):
        return Body(b"".join(payload), list(map(len, payload)))
    assert isinstance(payload, bytes)
    return Body(payload)


def producer(name: str, seq: int, epoch: int = 0) -> Producer:
    return Producer(name, epoch, seq)
