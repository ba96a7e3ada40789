"""Which rows of a batch the reader is given, and whether a gap among them is a loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from .errors import DataLoss
from .options import Selection
from .plan import sequence_of
from .schema import GAP, MESSAGE, SNAPSHOT

_FAR = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RowFilter:
    """What is kept.

    `from_offsets` is about rows up to the sequence `starts_until`, what was there when the reader
    started: a stream that is deleted and made anew counts from 0 again. A gap up to `losses_after` is no loss to a
    reader who asked for whatever there still was.
    """

    selection: Selection = field(default_factory=Selection)
    from_offsets: Mapping[str, int] = field(default_factory=dict)
    to_offsets: Mapping[str, int] | None = None
    to_offset_of_others: int | None = None
    from_ms: int | None = None
    before_ms: int | None = None
    include_snapshots: bool = False
    fail_on_gaps: bool = True
    starts_until: int = 0
    losses_after: int = 0

    def kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that count. Raises `DataLoss` if one of them stands for messages that are gone."""
        for mask in self._masks(batch):
            batch = batch if mask is None else batch.filter(mask)
        self._check_for_losses(batch)
        return batch

    def _masks(self, batch: pa.RecordBatch) -> list[pa.Array | None]:
        masks = [self._streams(batch), self._kinds(batch), self._times(batch), self._starts(batch), self._ends(batch)]
        given = [mask for mask in masks if mask is not None]
        if not given:
            return []
        whole = given[0]
        for mask in given[1:]:
            whole = pc.and_(whole, mask)
        return [whole]

    def _streams(self, batch: pa.RecordBatch) -> pa.Array | None:
        if self.selection.is_everything:
            return None  # the server and the plan have seen to the prefix
        streams = batch.column("stream")
        wanted = [name for name in streams.unique().to_pylist() if self.selection.takes(name)]
        return pc.is_in(streams, value_set=pa.array(wanted, pa.string()))

    def _kinds(self, batch: pa.RecordBatch) -> pa.Array | None:
        if self.include_snapshots:
            return None
        return pc.not_equal(batch.column("kind"), SNAPSHOT)

    def _times(self, batch: pa.RecordBatch) -> pa.Array | None:
        if self.from_ms is None and self.before_ms is None:
            return None
        times = batch.column("timestamp").cast(pa.int64())
        late_enough = pc.greater_equal(times, -_FAR if self.from_ms is None else self.from_ms * 1000)
        return pc.and_(late_enough, pc.less(times, _FAR if self.before_ms is None else self.before_ms * 1000))

    def _starts(self, batch: pa.RecordBatch) -> pa.Array | None:
        if not self.from_offsets:
            return None
        starts = _looked_up(self.from_offsets, batch, absent=0)
        # A gap that reaches into what is wanted counts; a snapshot counts at its offset.
        is_point = pc.equal(batch.column("offset"), batch.column("next_offset"))
        reached = pc.if_else(
            is_point,
            pc.greater_equal(batch.column("offset"), starts),
            pc.greater(batch.column("next_offset"), starts),
        )
        return pc.or_(reached, self._is_later(batch))

    def _ends(self, batch: pa.RecordBatch) -> pa.Array | None:
        if self.to_offsets is None:
            return None
        absent = _FAR if self.to_offset_of_others is None else self.to_offset_of_others
        ends = _looked_up(self.to_offsets, batch, absent=absent)
        return pc.if_else(
            pc.equal(batch.column("kind"), SNAPSHOT),
            pc.less_equal(batch.column("offset"), ends),
            pc.less(batch.column("offset"), ends),
        )

    def _is_later(self, batch: pa.RecordBatch) -> pa.Array:
        """Which rows came after the reader had started."""
        positions = pc.list_element(pc.split_pattern(batch.column("position"), "."), 1)
        return pc.greater(positions.cast(pa.int64()), self.starts_until)

    def _check_for_losses(self, batch: pa.RecordBatch) -> None:
        if not self.fail_on_gaps or batch.num_rows == 0:
            return
        gaps = batch.filter(pc.equal(batch.column("kind"), GAP))
        for gap in gaps.select(["stream", "offset", "next_offset", "position"]).to_pylist():
            if sequence_of(gap["position"]) > self.losses_after:
                raise DataLoss(
                    f"Messages of {gap['stream']!r} from offset {gap['offset']} to {gap['next_offset']} were trimmed "
                    "or deleted before they were read. To go on without them, set failOnDataLoss to false: they are "
                    f"then rows of kind '{GAP}' beside those of kind '{MESSAGE}'."
                )


def _looked_up(offsets: Mapping[str, int], batch: pa.RecordBatch, absent: int) -> pa.Array:
    """The offset of each row's stream."""
    names = pa.array(offsets.keys(), pa.string())
    known = pa.array([min(offset, _FAR) for offset in offsets.values()], pa.int64())
    return pc.fill_null(known.take(pc.index_in(batch.column("stream"), value_set=names)), absent)
