"""What a report says about a bucket, as plain values. `measure` fills them, `page` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

# Interval lengths that read well on an axis; the first that gives at most INTERVALS_MAX columns is taken.
INTERVALS_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)
INTERVALS_MAX = 96


@dataclass(frozen=True, slots=True)
class Interval:
    """What was committed from `start` on, for the length of one interval."""

    start: datetime
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Messages of `low` to `high` bytes, both included."""

    low: int
    high: int
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One stream: what it holds, the times of its first and last message, and when it was written last."""

    stream: str
    content_type: str
    closed: bool
    messages: int
    bytes: int
    largest: int
    first_at: datetime | None
    last_at: datetime | None
    written_at: datetime

    @property
    def messages_per_s(self) -> float:
        """Over the time between its first and its last message; a burst within a second counts as one."""
        if self.first_at is None or self.last_at is None:
            return 0.0
        return self.messages / max(1.0, (self.last_at - self.first_at).total_seconds())


@dataclass(frozen=True, slots=True)
class Totals:
    streams: int
    closed: int
    messages: int
    bytes: int
    gaps: int
    snapshots: int
    median_bytes: int
    p99_bytes: int
    largest_bytes: int
    first_at: datetime | None
    last_at: datetime | None

    @property
    def seconds(self) -> float:
        if self.first_at is None or self.last_at is None:
            return 0.0
        return (self.last_at - self.first_at).total_seconds()


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything on the page. `hottest` and `silent` are cut to what fits; the Parquet files have all streams."""

    bucket: str
    made_at: datetime
    totals: Totals
    interval_s: int
    intervals: Sequence[Interval]
    sizes: Sequence[SizeClass]
    hottest: Sequence[StreamFigures]
    silent: Sequence[StreamFigures]
    silent_after_s: float
    silent_count: int


def interval_for(seconds: float) -> int:
    """How long one column of the time axis is."""
    for length in INTERVALS_S:
        if seconds / length <= INTERVALS_MAX:
            return length
    return INTERVALS_S[-1]


def without_gaps(intervals: Sequence[Interval], length_s: int) -> list[Interval]:
    """The same with empty intervals where nothing happened, so that the time axis is true."""
    found = {int(interval.start.timestamp()): interval for interval in intervals}
    if not found:
        return []
    starts = range(min(found), max(found) + 1, length_s)
    return [found.get(start) or Interval(datetime.fromtimestamp(start, UTC), 0, 0) for start in starts]


def size_class(power: int, messages: int, size_bytes: int) -> SizeClass:
    """The class of sizes with this many binary digits: 0 is empty, 1 is one byte, 4 is 8 to 15 bytes."""
    if power == 0:
        return SizeClass(0, 0, messages, size_bytes)
    return SizeClass(1 << (power - 1), (1 << power) - 1, messages, size_bytes)
