"""One life of a node: the shipped machine, journal, writer, followers, object store and transactions, put together as
`node.Node` does it.

There is no catalog: a life begins with a replay of the whole journal. What catalog and segments add is told by the
stories of `tests/node/test_power_cuts.py`.
"""

from __future__ import annotations

import asyncio
from io import BytesIO
from pathlib import Path

from millstream.engine.machine import Machine
from millstream.engine.reading import cut_hot
from millstream.engine.state import Stream
from millstream.model.commands import Command, Expire
from millstream.model.errors import NotFound
from millstream.model.records import BucketRecord, StreamRecord
from millstream.model.timeline import Timeline
from millstream.node.clock import Clock
from millstream.node.followers import Followers
from millstream.node.recovery import replay
from millstream.node.staged_parts import find_leftovers
from millstream.node.staging_process import Job, JobReport, StageJob, Worker
from millstream.node.staging_worker import StagingWorker
from millstream.node.transactions import TransactionLimits, Transactions
from millstream.node.writer import Batch, Done, Writer, streams_with_followers
from millstream.storage.journal import LocalJournal
from millstream.storage.objects import LocalObjects
from millstream.storage.transactions.ndjson import NdjsonRows
from millstream.storage.transactions.objects import StoredPayloads
from millstream.storage.transactions.parts import PartHead, write_part

from .disk import SimulatedDisk

DIRECTORY = Path("journal")
OBJECTS = Path("objects")
_PLENTY = 1 << 30
_LIMITS = TransactionLimits(staged_ttl_s=1e6, staged_bytes_max=_PLENTY, transaction_bytes_max=_PLENTY)


class EmptyCatalog:
    """A catalog before the first checkpoint."""

    def state(self, name: str) -> int | None:
        return None

    def timeline(self) -> Timeline:
        return Timeline()

    def stream(self, key: str) -> StreamRecord | None:
        return None

    def stream_numbered(self, number: int) -> StreamRecord | None:
        return None

    def producer(self, number: int, producer_id: str) -> tuple[int, int] | None:
        return None

    def bucket(self, name: str) -> BucketRecord | None:
        return None


class InlineWorker(StagingWorker):
    """What the staging process does, here and now: so its files are on the simulated disk."""

    def __init__(self, objects: LocalObjects) -> None:
        super().__init__(OBJECTS, -1, _PLENTY)
        self._inline = InlineJobs(objects, OBJECTS, _PLENTY)

    async def _ask(self, job: Job) -> JobReport:
        return await asyncio.to_thread(self._inline.run, job)


class InlineJobs(Worker):
    def _stage(self, job: StageJob) -> PartHead:
        body = self._objects.get_range(job.body, 0, self._objects.size(job.body))
        return write_part(self._objects, job.number, job.head, NdjsonRows(BytesIO(body), _PLENTY))


class SimulatedNode:
    """Raises what a start raises."""

    transactions: Transactions

    def __init__(self, disk: SimulatedDisk, *, file_bytes: int, batch_bytes_max: int, part_bytes: int) -> None:
        self.clock = Clock()
        self.journal = LocalJournal(DIRECTORY, disk, file_bytes=file_bytes)
        self.journal.open(self.clock.wall_ms())
        catalog = EmptyCatalog()
        self.objects = LocalObjects(OBJECTS, disk)
        payloads = StoredPayloads(self.objects)
        self.machine = Machine(catalog, incarnation=self.journal.incarnation, time=self.clock, payloads=payloads)
        replay(self.machine, self.journal, catalog)  # type: ignore[arg-type]
        self.clock.go_on(self.machine.timeline)
        self.followers = Followers()
        self.writer = Writer(
            self.machine,
            self.journal,
            self.clock,
            batch_bytes_max=batch_bytes_max,
            part_bytes=part_bytes,
            on_committed=self._committed,
        )

    def open_transactions(self) -> None:
        """For who wants some: looking for what earlier lives left behind takes its time."""
        leftovers = find_leftovers(self.objects, self.machine)
        worker = InlineWorker(self.objects)
        self.transactions = Transactions(
            self.machine, self.writer, self.objects, self.clock, worker, worker, _LIMITS, leftovers
        )

    def start(self) -> None:
        """As `Node.start` does it: what was left of uploads goes, their clients were never answered."""
        for upload in list(self.machine.uploads):
            self.writer.drop_upload(upload)

    def _committed(self, batch: Batch) -> None:
        if self.followers.count:
            self.followers.wake(streams_with_followers(batch))

    def submit(self, command: Command, done: Done) -> None:
        self.writer.submit(command, done)

    def visible(self, key: str) -> Stream | None:
        try:
            return self.machine.visible(key)
        except NotFound:
            stream = self.machine.streams.get(key)
            if stream is not None and not stream.deleted:  # as `Node.visible` does it: for good
                self.submit(Expire(key, stream.number), lambda _: None)
            return None

    def has_bucket(self, name: str) -> bool:
        try:
            self.machine.visible_bucket(name)
        except NotFound:
            return False
        return True


def content(stream: Stream, start: int = 0, bytes_max: int = _PLENTY) -> bytes:
    return b"".join(cut_hot(stream, start, bytes_max).pieces)
