"""`spark.readStream`: micro-batches between positions.

An offset, as Spark keeps it in the checkpoint, is

    position    up to where the query has read, in commit order over all streams of the bucket
    began       where its first batch begins
    started     the end of the log when the query started: what lies before is its history
    offsets     starting offsets of single streams, as long as history is read
    from_ms     a starting time, likewise, where the archive does not reach back to it
    snapshots   the snapshots that the first batch starts from

One position costs the same for ten streams and for ten million. Spark asks for the initial offset anew when it has to
repeat the first batch; `began` and the others stand in the end of that batch, so that it is repeated as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ..client.errors import Gone
from .asking import Asker, Extent
from .batch import read_partition
from .cutting import partitions_of
from .filtering import RowFilter
from .options import ReadOptions
from .plan import FeedPage, Plan, beginning_of, position_before, sequence_of
from .planning import SnapshotPiece

Offset: TypeAlias = dict[str, Any]

# Spark asks for news every 10 ms when there are none: waiting at the server is cheaper and just as quick. It must be
# short, as other sources of the same query wait meanwhile.
WAIT_MS = 100
_PAGE = 1000
_PAGES_PER_ASKING = 50


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._asker: Asker | None = None
        self._target: str | None = None  # of Trigger.AvailableNow
        self._nothing_until: str | None = None  # nothing of interest lies between the last offset and here
        self._plan: tuple[str, Plan] | None = None  # made by `latestOffset` for a start, used by `partitions`
        self._leases: dict[str, int] = {}  # by URL: the end of the batch that needs it

    # -- offsets -----------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        asker, start = self._open(), self._options.start
        if start.word == "snapshot":
            snapshots = asker.snapshot_offsets(self._options.selection)
            now = asker.now()
            return _initial(beginning_of(now), now, snapshots=snapshots)
        now = asker.now()
        if start.word == "latest":
            return _initial(now, now)
        if start.word == "position":
            return _initial(start.position, start.position)
        if start.word == "timestamp":
            return self._initial_of_time(asker, start.at_ms, now)
        return _initial(beginning_of(now), now, offsets=dict(start.offsets))

    def _initial_of_time(self, asker: Asker, at_ms: int, now: str) -> Offset:
        try:
            plan = asker.plan(Extent(str(at_ms), "now", max_messages=1))
        except Gone:
            return _initial(beginning_of(now), now, from_ms=at_ms)
        asker.release(plan.lease.url)
        return _initial(plan.after, now)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark knows one limit at a time; where both are set, `latestOffset` observes both."""
        if self._options.bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger)
        if self._options.messages_per_trigger is not None:
            return ReadMaxRows(self._options.messages_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        if "snapshots" in start and start.get("initial"):
            return _following(start, start["started"])  # the state at the start is one batch, whatever its size
        after = self._before_news(start["position"])
        if after is None:
            return start
        self._drop_plan()
        plan = self._open().plan(self._extent(after, limit))
        if plan.messages == 0 and not plan.rows:
            self._nothing_until = plan.until
            self._open().release(plan.lease.url)
            return start
        self._plan = (start["position"], plan)
        return _following(start, plan.until)

    def _extent(self, after: str, limit: ReadLimit) -> Extent:
        options = self._options
        until = self._target or "now"
        prefix = options.selection.server_prefix
        if isinstance(limit, ReadAllAvailable):
            return Extent(after, until, prefix)
        return Extent(after, until, prefix, options.bytes_per_trigger, options.messages_per_trigger)

    def _before_news(self, position: str) -> str | None:
        """Where the first change of a wanted stream lies just behind, if there is one.

        A bucket's other streams cause no batches, and what they do before that does not count for limits.
        """
        after = position
        if self._nothing_until is not None and sequence_of(self._nothing_until) > sequence_of(position):
            after = self._nothing_until
        # An asking without news ends `Trigger.AvailableNow`: it looks through everything that it is to read.
        for _ in range(_PAGES_PER_ASKING) if self._target is None else count():
            if self._target is not None and sequence_of(after) >= sequence_of(self._target):
                return None
            try:
                page = self._page(after)
            except Gone:
                return position  # older than the feed: the plan knows what is left of it
            for entry in page.entries:
                if self._options.selection.takes(entry.stream):
                    return self._up_to_target(position_before(entry.position))
            after = self._nothing_until = page.next_position
            if page.up_to_date:
                return None
        return None

    def _up_to_target(self, position: str) -> str | None:
        """None if the news came after what `Trigger.AvailableNow` is to read."""
        if self._target is not None and sequence_of(position) >= sequence_of(self._target):
            return None
        return position

    def _page(self, after: str) -> FeedPage:
        wait_ms = WAIT_MS if self._target is None else 0
        return self._open().feed(after, self._options.selection.server_prefix, limit=_PAGE, wait_ms=wait_ms)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._open().now()

    # -- batches -----------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        after = end["began"] if start.get("initial") else start["position"]
        if after == end["position"]:
            return []
        asker = self._open()
        plan = self._take_plan(after, end["position"])
        is_first = after == end["began"]
        snapshots = end.get("snapshots", {}) if is_first else {}
        pieces = [SnapshotPiece(stream, offset, end["started"]) for stream, offset in snapshots.items()]
        if not self._options.include_snapshots:
            pieces = []
        partitions = partitions_of(asker, plan, self._options, self._filter(end, is_first), pieces)
        self._leases[plan.lease.url] = sequence_of(plan.until)
        return partitions

    def _take_plan(self, after: str, until: str) -> Plan:
        """The plan that `latestOffset` made for this batch, or a new one if Spark repeats a batch."""
        planned, self._plan = self._plan, None
        if planned is not None:
            start, plan = planned
            if (start, plan.until) == (after, until):
                return plan
            self._open().release(plan.lease.url)
        return self._open().plan(Extent(after, until, self._options.selection.server_prefix))

    def _filter(self, end: Offset, is_first: bool) -> RowFilter:
        from_snapshots = is_first and "snapshots" in end
        return RowFilter(
            selection=self._options.selection,
            from_offsets=end["snapshots"] if from_snapshots else end.get("offsets", {}),
            from_ms=end.get("from_ms"),
            include_snapshots=self._options.include_snapshots and not from_snapshots,
            fail_on_gaps=self._options.fail_on_data_loss,
            starts_until=sequence_of(end["started"]),
            # Who starts from snapshots relies on what comes behind them; everyone else takes what is left of history.
            losses_after=0 if from_snapshots else sequence_of(end["started"]),
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)

    def commit(self, end: Offset) -> None:
        done = sequence_of(end["position"])
        for url in [url for url, until in self._leases.items() if until <= done]:
            del self._leases[url]
            self._open().release(url)

    def stop(self) -> None:
        if self._asker is None:
            return
        self._drop_plan()
        for url in self._leases:
            self._asker.release(url)
        self._asker.close()
        self._asker = None

    # ----------------------------------------------------------------------------------------------------

    def _open(self) -> Asker:
        if self._asker is None:
            self._asker = Asker(self._options.server)
        return self._asker

    def _drop_plan(self) -> None:
        planned, self._plan = self._plan, None
        if planned is not None:
            self._open().release(planned[1].lease.url)


def _initial(began: str, started: str, **more: Any) -> Offset:
    kept = {name: value for name, value in more.items() if value}
    return {"position": began, "began": began, "started": started, "initial": True, **kept}


def _following(start: Offset, position: str) -> Offset:
    """The offset behind a batch. What is about history goes when history is read; snapshots are for one batch."""
    offset = {name: value for name, value in start.items() if name != "initial"}
    if not start.get("initial"):
        offset.pop("snapshots", None)
        if sequence_of(start["position"]) >= sequence_of(start["started"]):
            offset.pop("offsets", None)
            offset.pop("from_ms", None)
    return {**offset, "position": position}
