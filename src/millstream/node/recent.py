"""What was committed since the archive was written last, sorted by bucket when somebody asks.

The writer hands over its batches, which costs it next to nothing. They are sorted into buckets only where a feed or a
bulk read needs it: at once while feeds are being followed, otherwise in slices before a read. When a checkpoint has
archived them they are forgotten, together with the payloads that leave memory.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..engine.machine import Change, Told
from ..engine.state import Bucket, HotRecord, Stream
from ..model import facts
from ..model.facts import Fact
from .archiving import loses
from .followers import Followers

_SLICE = 5_000  # facts sorted per loop turn


class RecentChange(NamedTuple):
    """A fact about a stream. `offset` is the stream's tail behind it; an append carries its payload, or says in which
    transaction's object it lies."""

    sequence: int
    at_ms: int
    offset: int
    stream: Stream
    fact: Fact


class _Batch(NamedTuple):
    """A committed batch: what its facts are about, and what was told of them."""

    first_sequence: int
    at_ms: int
    subjects: list[Stream | Bucket | None]
    told: list[Told]


class BucketTail:
    """What has happened in one bucket lately, and who follows it."""

    __slots__ = ("bucket", "changes", "followers", "losses")

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.changes: list[RecentChange] = []
        self.losses: dict[int, tuple[int, int | None]] = {}  # stream: sequence, first offset it has kept
        self.followers: dict[Any, None] | None = None

    def behind(self, after: int) -> int:
        """Where the changes behind a sequence start."""
        return bisect_right(self.changes, after, key=_sequence)

    def gone(self) -> dict[int, int | None]:
        return {number: earliest for number, (_, earliest) in self.losses.items()}


class RecentFacts:
    def __init__(self, archived: int) -> None:
        self.after = archived  # every later fact is here
        self.followers = Followers()
        self._raw: deque[_Batch] = deque()
        self._tails: dict[str, BucketTail] = {}

    # -- what comes in -----------------------------------------------------------------------------------

    def add(self, first_sequence: int, at_ms: int, changes: Sequence[Change], told: list[Told]) -> None:
        """A committed batch, and what publishing has told of it."""
        # Not the changes themselves: with a tuple for each, some hundred thousand facts take an eighth more.
        subjects = [subject for subject, _ in changes]
        self._raw.append(_Batch(first_sequence, at_ms, subjects, told))
        if self.followers.count:
            touched: set[BucketTail] = set()
            self._sort(1 << 30, touched)
            self.followers.wake(tail for tail in touched if tail.followers)

    def forget(self, through: int, at_most: int = 1 << 60) -> bool:
        """The archive has everything up to here: let that go, about so many facts at most. Whether all of it went."""
        self.after = max(self.after, through)
        while self._raw and self._raw[0].first_sequence + len(self._raw[0].told) - 1 <= through:
            if at_most <= 0:
                return False
            at_most -= len(self._raw.popleft().told)
        for bucket, tail in list(self._tails.items()):
            count = tail.behind(through)
            del tail.changes[: min(count, max(at_most, 0))]
            if count > at_most:
                return False
            at_most -= count
            for number in [number for number, (sequence, _) in tail.losses.items() if sequence <= through]:
                del tail.losses[number]
            if not tail.changes and not tail.followers:
                del self._tails[bucket]
        return True

    # -- what is asked for -------------------------------------------------------------------------------

    async def sort(self) -> None:
        """Get ready for `tail`, without holding up anybody."""
        while not self._sort(_SLICE, None):  # noqa: ASYNC110 - it is the work itself, in slices
            await asyncio.sleep(0)

    def tail(self, bucket: str) -> BucketTail:
        """The bucket's tail; what is not sorted yet is sorted now."""
        if self._raw:
            self._sort(1 << 30, None)
        tail = self._tails.get(bucket)
        if tail is None:
            tail = self._tails[bucket] = BucketTail(bucket)
        return tail

    def _sort(self, budget: int, touched: set[BucketTail] | None) -> bool:
        """Sort about so many facts into their buckets; whether all are."""
        while self._raw and budget > 0:
            first_sequence, at_ms, subjects, told = self._raw.popleft()
            budget -= len(told)
            for sequence, (subject, fact) in enumerate(zip(subjects, told, strict=True), first_sequence):
                if sequence > self.after and type(subject) is Stream and type(fact) is not facts.Touched:
                    tail = self._take(subject, fact, sequence, at_ms)
                    if touched is not None:
                        touched.add(tail)
        return not self._raw

    def _take(self, stream: Stream, told: Told, sequence: int, at_ms: int) -> BucketTail:
        bucket = stream.key.partition("/")[0]
        tail = self._tails.get(bucket)
        if tail is None:
            tail = self._tails[bucket] = BucketTail(bucket)
        fact = told.as_fact(stream.number) if isinstance(told, HotRecord) else told
        if type(fact) is facts.Appended:
            offset = fact.offset + facts.size_of(fact)
            if fact.upload is not None:
                fact = _whole(stream, fact, sequence)
        else:
            offset = 0 if type(fact) is facts.StreamCreated else stream.tail
            if loses(fact):
                tail.losses[stream.number] = (sequence, None if stream.deleted else stream.earliest)
        tail.changes.append(RecentChange(sequence, at_ms, offset, stream, fact))
        return tail


def _whole(stream: Stream, fact: facts.Appended, sequence: int) -> facts.Appended:
    """An append whose payload came in parts, with its payload; without, if the stream has lost it by now."""
    hot = stream.hot or []
    place = bisect_right(hot, sequence, key=lambda record: record.sequence) - 1
    found = place >= 0 and hot[place].sequence == sequence
    return replace(fact, payload=hot[place].payload if found else b"", upload=None)


def _sequence(change: RecentChange) -> int:
    return change.sequence


def losses_of(*sources: dict[int, int | None]) -> dict[int, int | None]:
    """What streams have lost, from several sources: the first offset each has kept, None for nothing."""
    lost: dict[int, int | None] = {}
    for source in sources:
        for number, earliest in source.items():
            known = lost.get(number, 0)
            lost[number] = None if earliest is None or known is None else max(known, earliest)
    return lost
