"""Merging segments, and removing those nothing reaches.

Two reasons to write blocks again: many small segments (a quiet server checkpoints little at a time), and segments
of which more than half is dead. Both are one operation: take a few segments, write what is live of them into one
new segment, stream by stream, small neighbours joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import TypeVar

from ..model.errors import CorruptData
from ..model.records import Extent
from ..storage.catalog.save import SegmentUse
from ..storage.segments.block import decode_block, open_block
from ..storage.segments.segment import SegmentBuilder, damaged, segment_name
from .checkpoint import Checkpointer

_MERGED_BYTES_MAX = 64 << 20  # of live data that one merge writes; it is held in memory
_TIER_FACTOR = 4
_T = TypeVar("_T")


class Merger:
    def __init__(self, checkpointer: Checkpointer, *, segments_min: int, block_bytes: int) -> None:
        self._checkpointer = checkpointer
        self._catalog = checkpointer.catalog
        self._segments_min = segments_min
        self._block_bytes = block_bytes
        self._last_read: dict[int, tuple[int, bytes]] = {}  # segment: place and block
        self._damaged: set[int] = set()  # segments that stay as they are

    def step(self) -> bool:
        """One merge, if one is due; whether there was one. Raises `CorruptData` where a block cannot be read: nothing
        has changed then, and the next step leaves that segment as it is, with all that is good in it."""
        healthy = [use for use in self._catalog.segments() if use.segment not in self._damaged]
        chosen = choose(healthy, self._segments_min)
        if not chosen:
            return False
        extents = self._catalog.extents_of_segments(chosen)
        with self._catalog.transaction():
            self._catalog.remove_extents(extents)
            if extents:
                builder = SegmentBuilder(self._checkpointer.next_segment(), self._block_bytes)
                size = builder.write(self._checkpointer.objects, self._rewritten(builder, extents))
                self._catalog.add_segment(builder.segment, size, builder.extents)
            self._catalog.empty_segments(chosen)
        return True

    def collect(self, held: Callable[[], int] = lambda: 0) -> list[int]:
        """Delete the segments that nothing reaches, but for those below the number that leases hold; their numbers."""
        garbage = self._catalog.unreachable_segments()
        if garbage:
            held_below = held()  # asked for after the garbage is known, see `leases`
            garbage = [segment for segment in garbage if segment >= held_below]
        if garbage:
            for segment in garbage:
                self._checkpointer.objects.delete(segment_name(segment))
            with self._catalog.transaction():
                self._catalog.forget_segments(garbage)
        return garbage

    def _rewritten(self, builder: SegmentBuilder, extents: list[Extent]) -> Iterator[None]:
        self._last_read = {}
        for _, of_stream in groupby(extents, key=lambda extent: extent.stream):
            for run in _runs(list(of_stream), self._block_bytes):
                self._rewrite_run(builder, run)
                yield

    def _rewrite_run(self, builder: SegmentBuilder, run: list[Extent]) -> None:
        if len(run) == 1:
            # Opened also because a damaged block must not be passed on as if it were good.
            opened, block = self._open(open_block, run[0])
            if opened.digest is not None:
                builder.add_encoded(run[0], block)
                return
        builder.add_joined(run[0].stream, [self._open(decode_block, extent)[0] for extent in run])

    def _open(self, decode: Callable[[bytes, int], _T], extent: Extent) -> tuple[_T, bytes]:
        try:
            block = self._read(extent)
            return decode(block, extent.stream), block
        except (CorruptData, OSError) as error:
            self._damaged.add(extent.segment)
            named = self._catalog.streams_numbered([abs(extent.stream)])
            raise damaged(extent, next((record.key for record in named), extent.stream), error) from None

    def _read(self, extent: Extent) -> bytes:
        """A block; of each segment the last one is kept, as the next stream may share it."""
        at, block = self._last_read.get(extent.segment, (0, b""))
        if at != extent.at:
            block = self._checkpointer.objects.get_range_open(segment_name(extent.segment), extent.at, extent.size)
            self._last_read[extent.segment] = (extent.at, block)
        return block


def _runs(extents: list[Extent], block_bytes: int) -> list[list[Extent]]:
    """Neighbours that follow each other without a gap and make one block of the wanted size at most."""
    runs: list[list[Extent]] = []
    for extent in extents:
        run = runs[-1] if runs else None
        if (
            run is not None
            and run[-1].next_offset == extent.first_offset
            and extent.next_offset - run[0].first_offset <= block_bytes
        ):
            run.append(extent)
        else:
            runs.append([extent])
    return runs


def choose(segments: list[SegmentUse], segments_min: int) -> list[int]:
    """Which segments to merge now: the half-dead first, then a tier that has grown too many of one size."""
    half_dead = [use for use in segments if 0 < use.live_bytes < use.block_bytes // 2]
    if half_dead:
        return _within_budget(half_dead)
    tiers: dict[int, list[SegmentUse]] = {}
    for use in segments:
        if 0 < use.live_bytes < _MERGED_BYTES_MAX // 2:
            tiers.setdefault(_tier(use.live_bytes), []).append(use)
    for tier in sorted(tiers):
        if len(tiers[tier]) >= segments_min:
            return _within_budget(tiers[tier])
    return []


def _tier(size: int) -> int:
    tier = 0
    while size > 64 << 10:
        size //= _TIER_FACTOR
        tier += 1
    return tier


def _within_budget(uses: list[SegmentUse]) -> list[int]:
    chosen: list[int] = []
    total = 0
    for use in uses:
        if chosen and total + use.live_bytes > _MERGED_BYTES_MAX:
            break
        chosen.append(use.segment)
        total += use.live_bytes
    return chosen
