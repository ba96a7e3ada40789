"""`spark.read`: everything of a bucket between two bounds, as a consistent cut at one position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ..client.errors import Gone
from .asking import Asker, Extent
from .cutting import SharePartition, partitions_of
from .filtering import RowFilter
from .options import ReadOptions
from .plan import Plan, sequence_of
from .planning import SnapshotPiece

_BEGINNING, _END = "earliest", "now"


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with Asker(options.server) as asker:
            # Snapshots first: one that is published in between then shows as a gap, never as messages twice.
            wants_snapshots = "snapshot" in (options.start.word, options.end.word)
            snapshots = asker.snapshot_offsets(options.selection) if wants_snapshots else {}
            plan, from_ms, before_ms = self._plan(asker)
            rows = self._filter(plan, snapshots, from_ms, before_ms)
            extra: list[SnapshotPiece] = []
            if options.start.word == "snapshot" and options.include_snapshots:
                extra = [SnapshotPiece(stream, offset, plan.until) for stream, offset in snapshots.items()]
            return partitions_of(asker, plan, options, rows, extra)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)

    def _plan(self, asker: Asker) -> tuple[Plan, int | None, int | None]:
        """The plan, and the times that rows must be checked against because the archive does not reach back there."""
        start, end = self._options.start, self._options.end
        after = {"position": start.position, "timestamp": str(start.at_ms)}.get(start.word, _BEGINNING)
        until = {"position": end.position, "timestamp": str(end.at_ms)}.get(end.word, _END)
        from_ms = start.at_ms if start.word == "timestamp" else None
        before_ms = end.at_ms if end.word == "timestamp" else None
        prefix = self._options.selection.server_prefix
        if from_ms is not None:
            try:
                return asker.plan(Extent(after, until, prefix)), None, None
            except Gone:
                after = _BEGINNING
        if before_ms is not None:
            try:
                return asker.plan(Extent(after, until, prefix)), from_ms, None
            except Gone:
                until = _END
        return asker.plan(Extent(after, until, prefix)), from_ms, before_ms

    def _filter(self, plan: Plan, snapshots: dict[str, int], from_ms: int | None, before_ms: int | None) -> RowFilter:
        options = self._options
        start, end = options.start, options.end
        until = sequence_of(plan.until)
        from_snapshots = start.word == "snapshot"
        return RowFilter(
            selection=options.selection,
            from_offsets=snapshots if from_snapshots else start.offsets,
            to_offsets=snapshots if end.word == "snapshot" else end.offsets or None,
            to_offset_of_others=0 if end.word == "snapshot" else None,
            from_ms=from_ms,
            before_ms=before_ms,
            include_snapshots=options.include_snapshots and not from_snapshots,
            fail_on_gaps=options.fail_on_data_loss,
            starts_until=until,
            losses_after=until if start.word in ("earliest", "timestamp") else 0,
        )


def read_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # Spark makes up a partition where a plan has none.
    if isinstance(partition, SharePartition):
        yield from partition.fetcher.batches(partition.share)
