"""Folding single streams, where the executors are: last snapshot, then the tail batch by batch, then publish.

No stream is ever held as a whole: a batch, the state and its bytes are all that is in memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Literal, TypeAlias

from ...client import NotFound, Snapshot, Stream, Trimmed
from ...client.errors import ClientError, ConnectionLost, OutcomeUnknown, Unavailable
from ...model.media import is_json
from .folds import Fold, FoldError, Message, State
from .target import Target

BATCH_BYTES = 4 << 20
BATCH_MESSAGES = 10_000
ATTEMPTS_MAX = 5
# Requests that wait for the disk overlap; more than a few threads only wait for the interpreter.
STREAMS_AT_ONCE = 4
FAILURES_KEPT = 100

# Somebody has published a snapshot at this offset or a later one: theirs is as good or better.
_NEWER_EXISTS = frozenset({"snapshot_exists", "snapshot_superseded", "snapshot_too_old"})

Status: TypeAlias = Literal["folded", "current", "superseded", "gone", "failed"]


@dataclass(frozen=True, slots=True)
class StreamWithNews:
    """A stream as the listing has it."""

    name: str
    content_type: str
    tail: int
    snapshot_offset: int | None

    @property
    def news_bytes(self) -> int:
        return self.tail - (self.snapshot_offset or 0)


@dataclass(frozen=True, slots=True)
class FoldOrder:
    """What to do with every stream: all that executors need to know."""

    target: Target
    fold: Fold
    trim: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one stream. `offset` is that of the snapshot that was published."""

    stream: str
    status: Status
    offset: int = 0
    messages: int = 0
    bytes: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """A stream that could not be folded, and why. Its snapshot and its messages are as before."""

    stream: str
    error: str


@dataclass(slots=True)
class Tally:
    """What became of many streams."""

    streams: dict[Status, int] = field(default_factory=dict)
    messages: int = 0
    bytes: int = 0
    failures: list[Failure] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.streams[outcome.status] = self.streams.get(outcome.status, 0) + 1
        self.messages += outcome.messages
        self.bytes += outcome.bytes
        if outcome.status == "failed" and len(self.failures) < FAILURES_KEPT:
            self.failures.append(Failure(outcome.stream, outcome.error))

    def merge(self, other: Tally) -> None:
        for status, count in other.streams.items():
            self.streams[status] = self.streams.get(status, 0) + count
        self.messages += other.messages
        self.bytes += other.bytes
        self.failures += other.failures[: FAILURES_KEPT - len(self.failures)]


def fold_streams(streams: Iterable[StreamWithNews], order: FoldOrder) -> Tally:
    """Fold one task's streams. One that fails is noted and leaves the others alone; a server that cannot be reached
    fails the task, which Spark then tries again."""
    tally = Tally()
    waiting = iter(streams)
    with Folder(order) as folder, ThreadPoolExecutor(STREAMS_AT_ONCE) as threads:
        # In slices, so that a failure of the whole task does not wait for all that is queued behind it.
        while slice_ := list(islice(waiting, 16 * STREAMS_AT_ONCE)):
            for outcome in threads.map(folder.fold, slice_):
                tally.add(outcome)
    return tally


class Folder(AbstractContextManager["Folder"]):
    """Folds streams of one bucket over one client. Safe to share between threads."""

    def __init__(self, order: FoldOrder) -> None:
        self._order = order
        self._client = order.target.client()
        self._bucket = self._client.bucket(order.target.bucket)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def fold(self, listed: StreamWithNews) -> Outcome:
        try:
            return self._fold(listed)
        except NotFound:
            return Outcome(listed.name, "gone")
        except (ConnectionLost, Unavailable, OutcomeUnknown):
            raise
        except (FoldError, ClientError) as error:
            return Outcome(listed.name, "failed", error=str(error))
        except Exception as error:  # whatever a fold of the user's raises is the stream's failure, not the job's
            return Outcome(listed.name, "failed", error=f"the fold raised {type(error).__name__}: {error}")

    def _fold(self, listed: StreamWithNews) -> Outcome:
        stream = self._bucket.stream(listed.name)
        known: StreamWithNews | None = listed
        earliest: str | None = None
        for _ in range(ATTEMPTS_MAX):
            progress = _Progress(self._order.fold)
            try:
                if is_json(listed.content_type):
                    self._read_values(stream, progress, known, listed.tail, earliest)
                else:
                    self._read_parts(stream, progress)
            except Trimmed as trimmed:  # somebody published, or retention went on, while we were reading
                known, earliest = None, trimmed.earliest
                continue
            return self._publish(stream, listed, progress)
        raise FoldError("its history is trimmed faster than it can be read; fold it more often, or keep more of it")

    def _read_values(
        self, stream: Stream, progress: _Progress, known: StreamWithNews | None, tail: int, earliest: str | None
    ) -> None:
        """A JSON stream: its answers are arrays, which the decoder splits faster than anything else could."""
        has_snapshot = known is None or known.snapshot_offset is not None
        snapshot = stream.read_snapshot() if has_snapshot else None
        if snapshot is not None:
            progress.start_from(snapshot)
            start = snapshot.offset
        else:
            start = earliest or "-1"
        if progress.offset >= tail:
            return
        with stream.read(start) as reader:
            for batch in reader.batches():
                progress.take(batch.json(), len(batch.data), int(batch.next_offset))
                if progress.offset >= tail:
                    return  # what has come since the listing is for the next time

    def _read_parts(self, stream: Stream, progress: _Progress) -> None:
        """Any other stream: a bootstrap has one part for each message."""
        messages: list[Message] = []
        size = 0
        with stream.bootstrap() as reader:
            for batch in reader.batches(empty=True):
                if batch.kind == "snapshot":  # always the first; again when the connection broke and all comes anew
                    messages, size = [], 0
                    progress.reset()
                    if batch.data:
                        progress.start_from(Snapshot(batch.data, batch.content_type, "0", "0", False))
                elif batch.kind == "update":
                    messages.append(batch.data)
                    size += len(batch.data)
                    if size >= BATCH_BYTES or len(messages) >= BATCH_MESSAGES:
                        progress.take(messages, size, 0)
                        messages, size = [], 0
                else:
                    progress.take(messages, size, int(batch.next_offset))

    def _publish(self, stream: Stream, listed: StreamWithNews, progress: _Progress) -> Outcome:
        if not progress.messages:
            return Outcome(listed.name, "current", progress.offset)
        done = Outcome(listed.name, "folded", progress.offset, progress.messages, progress.bytes)
        data, content_type = self._order.fold.snapshot_of(progress.state, listed.content_type)
        try:
            stream.publish_snapshot(f"{progress.offset:020d}", data, content_type=content_type, trim=self._order.trim)
        except ClientError as error:
            if error.code not in _NEWER_EXISTS:
                raise
            return Outcome(listed.name, "superseded", progress.offset)
        return done


class _Progress:
    """The state of one stream while it grows."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self.reset()

    def reset(self) -> None:
        self.state: State = None
        self.offset = 0
        self.messages = 0
        self.bytes = 0

    def start_from(self, snapshot: Snapshot) -> None:
        self.state = self._fold.state_of(snapshot.data, snapshot.content_type)
        self.offset = int(snapshot.offset)

    def take(self, messages: Sequence[Message], size: int, next_offset: int) -> None:
        if messages:
            self.state = self._fold.function(self.state, messages)
        self.messages += len(messages)
        self.bytes += size
        self.offset = next_offset


# --- sharing streams out over tasks

STREAM_COST = 32 << 10  # what a stream costs besides its bytes: two requests, in bytes that could be read meanwhile


def shared_out(streams: Iterable[StreamWithNews], tasks: int) -> Iterator[list[StreamWithNews]]:
    """The streams in so many groups of about the same work; the largest stream is begun first."""
    groups: list[tuple[int, int, list[StreamWithNews]]] = [(0, number, []) for number in range(tasks)]
    for stream in sorted(streams, key=lambda stream: stream.news_bytes, reverse=True):
        work, number, group = groups[0]
        group.append(stream)
        heapq.heapreplace(groups, (work + stream.news_bytes + STREAM_COST, number, group))
    return (group for _, _, group in sorted(groups, key=lambda entry: entry[1]) if group)
