"""Plans are cut by bytes: a huge stream is split, ten thousand tiny ones are packed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.spark.plan import (
    ArchiveRange,
    HotRange,
    Lease,
    NamedStream,
    Plan,
    PlanRow,
    SegmentRange,
    Store,
    beginning_of,
    sequence_of,
)
from millstream.spark.planning import PIECE_COST, BulkPiece, Share, cut, hot_pieces, pieces_of

INCARNATION = "1b2c3d4e5f607182"
BLOCK = 128 << 10
MIB = 1 << 20


def block(stream: int, index: int, size: int = BLOCK) -> SegmentRange:
    return SegmentRange(
        "segments/000000000001", index * size, size, stream, index * size, (index + 1) * size, 0, 9, 1, size
    )


def chunk(index: int, size: int = 4 * BLOCK) -> ArchiveRange:
    return ArchiveRange("journal/000000000001", index * size, size, index, index + 1, 100, size)


def plan_of(ranges: list, streams: int = 1, size: int | None = None, rows: list[PlanRow] | None = None) -> Plan:
    return Plan(
        after=f"{INCARNATION}.0",
        until=f"{INCARNATION}.99",
        up_to_date=True,
        incarnation=INCARNATION,
        messages=1,
        bytes=sum(getattr(part, "bytes", 0) for part in ranges) if size is None else size,
        lease=Lease("x", 0, "/x"),
        store=Store("fs", "objects"),
        streams=[NamedStream(number, f"s{number}", "text/plain") for number in range(1, streams + 1)],
        gone=[],
        rows=rows or [],
        ranges=ranges,
    )


def shares_of(plan: Plan, bytes_per_partition: int = 64 * MIB, min_partitions: int = 1) -> list[Share]:
    pieces = pieces_of(plan, lambda stream: True, hot_pieces(plan))
    return cut(pieces, plan.rows, bytes_per_partition=bytes_per_partition, min_partitions=min_partitions)


def size_of(share: Share) -> int:
    return sum(piece.bytes + PIECE_COST for piece in share.pieces)


def test_a_huge_stream_is_split_between_its_blocks():
    plan = plan_of([block(1, index) for index in range(8192)])  # 1 GiB in one stream
    shares = shares_of(plan)
    assert len(shares) == 17  # 1 GiB and what opening 8192 blocks counts for, by 64 MiB
    assert max(map(size_of, shares)) <= 64 * MIB
    assert [piece.at for share in shares for piece in share.pieces] == [index * BLOCK for index in range(8192)]


def test_ten_thousand_tiny_streams_are_packed():
    plan = plan_of([block(number, 0, 100) for number in range(1, 10_001)], streams=10_000)
    shares = shares_of(plan)
    assert len(shares) == 1
    assert len(shares[0].pieces) == 10_000


def test_a_million_tiny_blocks_are_work_as_well():
    plan = plan_of([block(1, index, 100) for index in range(100_000)])
    assert len(shares_of(plan)) == 7


def test_more_partitions_when_asked_for():
    plan = plan_of([chunk(index) for index in range(64)])
    assert len(shares_of(plan)) == 1
    assert len(shares_of(plan, min_partitions=8)) == 8
    assert len(shares_of(plan, min_partitions=1000)) == 64  # a chunk is not split


def test_streams_that_are_not_wanted_are_not_read():
    plan = plan_of([block(1, 0), block(2, 0), chunk(0)], streams=2)
    pieces = list(pieces_of(plan, lambda stream: stream == "s2", []))
    assert [getattr(piece, "stream", "archive") for piece in pieces] == ["s2", "archive"]


def test_the_hot_tail_is_what_the_objects_do_not_hold():
    hot = HotRange(f"{INCARNATION}.90", f"{INCARNATION}.99")
    plan = plan_of([block(1, 0), hot], size=BLOCK + 5000)
    assert plan.hot_bytes == 5000
    assert hot_pieces(plan) == [BulkPiece(hot.after, hot.until, 5000)]


def test_rows_of_the_plan_have_partitions_of_their_own():
    row = PlanRow("agents", "s1", 0, 4096, f"{INCARNATION}.5", "text/plain", "gap")
    shares = shares_of(plan_of([block(1, 1)], rows=[row]))
    assert [(len(share.rows), len(share.pieces)) for share in shares] == [(1, 0), (0, 1)]


def test_nothing_makes_no_partition():
    assert shares_of(plan_of([])) == []


@given(
    sizes=st.lists(st.integers(0, 3 * MIB), max_size=60),
    target=st.integers(1, 8 * MIB),
    min_partitions=st.integers(1, 20),
)
def test_every_piece_is_read_once_and_in_order(sizes, target, min_partitions):
    pieces = [BulkPiece(str(index), str(index + 1), size) for index, size in enumerate(sizes)]
    shares = cut(pieces, (), bytes_per_partition=target, min_partitions=min_partitions)
    assert [piece for share in shares for piece in share.pieces] == pieces
    assert all(size_of(share) <= target or len(share.pieces) == 1 for share in shares)


def test_positions():
    assert sequence_of(f"{INCARNATION}.42") == 42
    assert beginning_of(f"{INCARNATION}.42") == f"{INCARNATION}.0"
    assert beginning_of(f"{INCARNATION}.42.7") == f"{INCARNATION}.0.0"
