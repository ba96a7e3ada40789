"""One life of a node: the shipped machine, journal, writer and followers, put together as `node.Node` does it.

There is no catalog: a life begins with a replay of the whole journal. What catalog and segments add is told by the
stories of `tests/node/test_power_cuts.py`.
"""

from __future__ import annotations

from pathlib import Path

from millstream.engine.machine import Machine
from millstream.engine.reading import cut_hot
from millstream.engine.state import Stream
from millstream.model.commands import Command
from millstream.model.errors import NotFound
from millstream.model.records import BucketRecord, StreamRecord
from millstream.node.clock import WallClock
from millstream.node.followers import Followers
from millstream.node.recovery import replay
from millstream.node.writer import Batch, Done, Writer, streams_with_followers
from millstream.storage.journal import LocalJournal

from .disk import SimulatedDisk

DIRECTORY = Path("journal")
_PLENTY = 1 << 30


class EmptyCatalog:
    """A catalog before the first checkpoint."""

    def state(self, name: str) -> int | None:
        return None

    def stream(self, key: str) -> StreamRecord | None:
        return None

    def stream_numbered(self, number: int) -> StreamRecord | None:
        return None

    def producer(self, number: int, producer_id: str) -> tuple[int, int] | None:
        return None

    def bucket(self, name: str) -> BucketRecord | None:
        return None


class SimulatedNode:
    """Raises what a start raises."""

    def __init__(self, disk: SimulatedDisk, *, file_bytes: int, batch_bytes_max: int, part_bytes: int) -> None:
        self.clock = WallClock()
        self.journal = LocalJournal(DIRECTORY, disk, file_bytes=file_bytes)
        self.journal.open(self.clock.now_ms())
        catalog = EmptyCatalog()
        self.machine = Machine(catalog, incarnation=self.journal.incarnation)
        replay(self.machine, self.journal, catalog, self.clock)  # type: ignore[arg-type]
        self.followers = Followers()
        self.writer = Writer(
            self.machine,
            self.journal,
            self.clock,
            batch_bytes_max=batch_bytes_max,
            part_bytes=part_bytes,
            on_committed=self._committed,
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
            return self.machine.visible(key, self.clock.now_ms())
        except NotFound:
            return None


def content(stream: Stream, start: int = 0, bytes_max: int = _PLENTY) -> bytes:
    return b"".join(cut_hot(stream, start, bytes_max).pieces)
