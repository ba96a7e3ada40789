"""A plan cut into partitions by bytes: a huge stream is split between its blocks, ten thousand tiny ones are packed.

Pure: what it is given decides what it returns, and nothing is fetched here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from .plan import ArchiveRange, HotRange, Plan, PlanRow, SegmentRange, Store

_T = TypeVar("_T")
PIECE_COST = 4 << 10  # what opening a piece counts for, in bytes: a million tiny blocks are work as well


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """One block, with the stream it belongs to."""

    object: str
    at: int
    size: int
    number: int
    stream: str
    content_type: str
    first_offset: int
    next_offset: int
    after: int
    until: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ArchivePiece:
    """One chunk of the archive."""

    object: str
    at: int
    size: int
    after: int
    until: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BulkPiece:
    """Everything between two positions, from the server."""

    after: str
    until: str
    bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotPiece:
    """A stream's snapshot, from the server."""

    stream: str
    offset: int
    position: str  # where the reader starts; the snapshot's own is not kept
    bytes: int = 0


Piece = SegmentPiece | ArchivePiece | BulkPiece | SnapshotPiece


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How to keep a plan's objects: where to renew, and how often."""

    url: str
    renew_every_s: float
    granted_at_s: float  # by the clock of the machine that planned


@dataclass(frozen=True, slots=True)
class Source:
    """What every partition of a plan needs to know."""

    incarnation: str
    store: Store
    lease: LeaseTerms
    gone: Mapping[int, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Share:
    """What one partition reads: rows that came with the plan, and pieces to fetch."""

    pieces: tuple[Piece, ...] = ()
    rows: tuple[PlanRow, ...] = ()

    @property
    def is_stored(self) -> bool:
        """Whether objects are needed, and with them the lease."""
        return any(isinstance(piece, SegmentPiece | ArchivePiece) for piece in self.pieces)


def pieces_of(plan: Plan, takes: Callable[[str], bool], hot: Iterable[BulkPiece]) -> Iterator[Piece]:
    """The plan's ranges as pieces; blocks of streams that are not wanted are left out."""
    streams = {stream.number: stream for stream in plan.streams}
    for part in plan.ranges:
        if isinstance(part, SegmentRange):
            named = streams[part.stream]
            if takes(named.stream):
                yield _segment_piece(part, named.stream, named.content_type)
        elif isinstance(part, ArchiveRange):
            yield ArchivePiece(part.object, part.at, part.size, part.after, part.until, part.bytes)
    yield from hot


def hot_pieces(plan: Plan) -> list[BulkPiece]:
    """The hot ranges as they stand in the plan."""
    ranges = [part for part in plan.ranges if isinstance(part, HotRange)]
    return [BulkPiece(part.after, part.until, plan.hot_bytes // len(ranges)) for part in ranges]


def cut(
    pieces: Iterable[Piece], rows: Sequence[PlanRow], *, bytes_per_partition: int, min_partitions: int
) -> list[Share]:
    """Shares of about the same size, none larger than a partition may be unless a single piece is."""
    pieces = list(pieces)
    return [Share(rows=run) for run in _packed(rows, bytes_per_partition, min_partitions, _row_cost)] + [
        Share(pieces=run) for run in _packed(pieces, bytes_per_partition, min_partitions, _cost)
    ]


def _packed(things: Sequence[_T], most: int, runs_min: int, cost: Callable[[_T], int]) -> Iterator[tuple[_T, ...]]:
    """Runs of even cost: a last one with the crumbs would only make everyone wait for one more task."""
    total = sum(map(cost, things))
    even = total / max(1, runs_min, -(-total // most))
    run: list[_T] = []
    size = 0
    for thing in things:
        added = cost(thing)
        if run and (size + added > most or size + added / 2 > even):
            yield tuple(run)
            run, size = [], 0
        run.append(thing)
        size += added
    if run:
        yield tuple(run)


def _segment_piece(part: SegmentRange, stream: str, content_type: str) -> SegmentPiece:
    return SegmentPiece(
        part.object,
        part.at,
        part.size,
        part.stream,
        stream,
        content_type,
        part.first_offset,
        part.next_offset,
        part.after,
        part.until,
        part.bytes,
    )


def _cost(piece: Piece) -> int:
    return PIECE_COST + piece.bytes


def _row_cost(row: PlanRow) -> int:
    return PIECE_COST + len(row.value or b"")
