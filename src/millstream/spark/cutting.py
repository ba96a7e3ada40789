"""Asks the server for a plan and cuts it into partitions, each with all that an executor needs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from pyspark.sql.datasource import InputPartition

from .asking import Asker, Extent
from .fetching import Fetcher, open_store
from .filtering import RowFilter
from .options import ReadOptions
from .plan import ArchiveRange, HotRange, Plan, SegmentRange
from .planning import BulkPiece, LeaseTerms, Piece, Share, SnapshotPiece, Source, cut, hot_pieces, pieces_of

_RENEW_S_MIN, _RENEW_S_MAX = 0.3, 60.0


class SharePartition(InputPartition):
    """One task's work, complete: an executor knows nothing else."""

    def __init__(self, index: int, share: Share, fetcher: Fetcher) -> None:
        super().__init__(index)
        self.share = share
        self.fetcher = fetcher


def partitions_of(
    asker: Asker, plan: Plan, options: ReadOptions, rows: RowFilter, snapshots: Iterable[SnapshotPiece] = ()
) -> list[InputPartition]:
    """A plan's rows as partitions; `snapshots` are fetched besides. Gives the lease back if no object is needed."""
    shares = cut_plan(asker, plan, options, snapshots)
    source = source_of(plan)
    fetcher = Fetcher(options.server, source, plan.prefix, options.tier, rows)
    if not any(share.is_stored for share in shares):
        asker.release(plan.lease.url)
    return [SharePartition(index, share, fetcher) for index, share in enumerate(shares)]


def cut_plan(asker: Asker, plan: Plan, options: ReadOptions, snapshots: Iterable[SnapshotPiece] = ()) -> list[Share]:
    """Objects are read directly where this process can reach them; an executor that cannot asks the server."""
    most = options.bytes_per_partition
    target = max(1, min(most, -(-plan.bytes // options.min_partitions)))
    pieces: list[Piece] = list(snapshots)
    if options.tier == "http" or (options.tier == "auto" and open_store(plan.store) is None):
        pieces += _bulk_pieces(asker, plan, target)
        return cut(pieces, (), bytes_per_partition=most, min_partitions=options.min_partitions)
    pieces += pieces_of(plan, options.selection.takes, _hot(asker, plan, target))
    return cut(pieces, plan.rows, bytes_per_partition=most, min_partitions=options.min_partitions)


def source_of(plan: Plan) -> Source:
    now_s = time.time()
    left_s = plan.lease.expires_at_ms / 1000 - now_s
    terms = LeaseTerms(plan.lease.url, min(_RENEW_S_MAX, max(_RENEW_S_MIN, left_s / 3)), now_s)
    return Source(plan.incarnation, plan.store, terms, {stream.number: stream.earliest for stream in plan.gone})


def _bulk_pieces(asker: Asker, plan: Plan, target: int) -> Iterator[BulkPiece]:
    """The whole plan as bulk reads, cut where its ranges meet."""
    after = plan.after
    segments = [part for part in plan.ranges if isinstance(part, SegmentRange)]
    if segments:
        until = f"{plan.incarnation}.{segments[0].until}"
        yield from _walk(asker, Extent(after, until, plan.prefix, target), sum(part.bytes for part in segments))
        after = until
    for part in plan.ranges:
        if isinstance(part, ArchiveRange):
            until = f"{plan.incarnation}.{part.until}"
            yield BulkPiece(after, until, part.bytes)
            after = until
    if plan.hot_bytes > target:
        yield from _walk(asker, Extent(after, plan.until, plan.prefix, target), plan.hot_bytes)
    elif plan.rows or plan.ranges:
        yield BulkPiece(after, plan.until, plan.hot_bytes)


def _hot(asker: Asker, plan: Plan, target: int) -> Iterator[BulkPiece]:
    if plan.hot_bytes <= target:
        yield from hot_pieces(plan)
        return
    for part in plan.ranges:
        if isinstance(part, HotRange):
            yield from _walk(asker, Extent(part.after, part.until, plan.prefix, target), plan.hot_bytes)


def _walk(asker: Asker, extent: Extent, size: int) -> Iterator[BulkPiece]:
    """A range cut into pieces by asking how far so many bytes reach."""
    assert extent.max_bytes is not None
    after = extent.after
    while size > extent.max_bytes and after != extent.until:
        step = asker.plan(Extent(after, extent.until, extent.prefix, extent.max_bytes))
        asker.release(step.lease.url)
        yield BulkPiece(after, step.until, step.bytes)
        after, size = step.until, max(0, size - step.bytes)
    if after != extent.until:
        yield BulkPiece(after, extent.until, size)
