"""Record batches out of blocks: the same rows as the server makes of them, however they are cut and gathered."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.spark.filtering import RowFilter
from millstream.spark.options import Selection
from millstream.spark.plan import PlanRow
from millstream.spark.rows import BATCH_ROWS, Gatherer, Span, block_rows, plan_rows_batch, sized
from millstream.spark.schema import ARROW_SCHEMA
from millstream.storage.archive.arrow import record_batch
from millstream.storage.archive.chunk import ChunkStream
from millstream.storage.archive.rows import Selection as RowSelection
from millstream.storage.archive.rows import rows_of_block
from millstream.storage.segments.block import Columns, decode_block, encode_block, open_block

INCARNATION = 0x1B2C3D4E5F607182
TEXT = "text/plain"


def block_of(payloads: list[bytes], first_offset: int = 0, first_sequence: int = 1, stream: int = 7) -> bytes:
    count = len(payloads)
    columns = Columns(
        payloads,
        [1_700_000_000_000 + number for number in range(count)],
        [1_700_000_000_000 + number // 2 for number in range(count)],
        list(range(count)),
        [first_sequence + number // 2 for number in range(count)],
    )
    return b"".join(encode_block(stream, first_offset, columns))


@settings(deadline=None)  # the first time, pyarrow is loaded
@given(
    payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=30),
    first_offset=st.integers(0, 10_000),
    kept=st.integers(0, 10_400),
    after=st.integers(0, 20),
    until=st.integers(0, 25),
)
def test_a_block_gives_the_rows_that_the_server_would(payloads, first_offset, kept, after, until):
    block = block_of(payloads, first_offset)
    wanted = RowSelection(after, until, "", kept)
    rows_there = rows_of_block(decode_block(block, 7), "agents", ChunkStream(7, "s", TEXT))
    theirs = record_batch(rows_there, wanted, INCARNATION)
    gatherer = Gatherer("agents", f"{INCARNATION:016x}")
    rows = block_rows(open_block(block, 7), "s", TEXT, kept, Span(after, until))
    ours = None if rows is None else gatherer.add(rows) or gatherer.flush()
    if ours is None:
        assert theirs.num_rows == 0
    else:
        assert ours.schema == ARROW_SCHEMA
        assert ours.to_pylist() == theirs.to_pylist()


def test_small_blocks_are_gathered_into_one_batch():
    gatherer = Gatherer("agents", f"{INCARNATION:016x}")
    everything = Span(0, 10**9)
    for number in range(100):
        rows = block_rows(open_block(block_of([b"a%d" % number, b"b"]), 7), f"s{number}", TEXT, 0, everything)
        assert rows is not None
        assert gatherer.add(rows) is None
    batch = gatherer.flush()
    assert batch is not None
    assert batch.num_rows == 200
    assert batch.column("stream").to_pylist()[::2] == [f"s{number}" for number in range(100)]
    assert batch.column("value").to_pylist()[::2] == [b"a%d" % number for number in range(100)]
    assert gatherer.flush() is None


def test_batches_are_cut_to_size():
    rows = [
        PlanRow("agents", "s", number, number, "1b2c3d4e5f607182.1", TEXT, "gap") for number in range(BATCH_ROWS + 5)
    ]
    assert [batch.num_rows for batch in sized(iter([plan_rows_batch(rows)]))] == [BATCH_ROWS, 5]


def test_rows_of_a_plan():
    row = PlanRow(
        "agents", "s", 3, 3, "1b2c3d4e5f607182.9", TEXT, "snapshot", "2026-11-15T05:30:00.123Z", None, b"state"
    )
    (found,) = plan_rows_batch([row]).to_pylist()
    assert (found["kind"], found["offset"], found["id"], found["value"]) == ("snapshot", 3, None, b"state")
    assert found["timestamp"].isoformat() == "2026-11-15T05:30:00.123000+00:00"


def test_a_filter_keeps_what_it_should():
    rows = [
        PlanRow("agents", "a", 0, 3, "1b2c3d4e5f607182.1", TEXT, "message", value=b"one"),
        PlanRow("agents", "a", 3, 3, "1b2c3d4e5f607182.2", TEXT, "snapshot", value=b"state"),
        PlanRow("agents", "b", 0, 3, "1b2c3d4e5f607182.3", TEXT, "message", value=b"two"),
        PlanRow("agents", "a", 3, 6, "1b2c3d4e5f607182.9", TEXT, "message", value=b"six"),
    ]
    batch = plan_rows_batch(rows)

    def kept(**options) -> list[bytes]:
        return RowFilter(**options).kept(batch).column("value").to_pylist()

    assert kept() == [b"one", b"two", b"six"]
    assert kept(include_snapshots=True) == [b"one", b"state", b"two", b"six"]
    assert kept(selection=Selection(names=("b",))) == [b"two"]
    assert kept(from_offsets={"a": 3}, starts_until=100, include_snapshots=True) == [b"state", b"two", b"six"]
    assert kept(from_offsets={"a": 100}, starts_until=5) == [b"two", b"six"]  # what came later is not history
    assert kept(to_offsets={"a": 3}) == [b"one", b"two"]
    assert kept(to_offsets={"a": 3}, to_offset_of_others=0, include_snapshots=True) == [b"one", b"state"]
