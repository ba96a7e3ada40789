"""The catalog: what the writer saves, the reader finds; and garbage is what nothing reaches."""

from __future__ import annotations

import sqlite3

import pytest
from msgspec.structs import replace

from millstream.model.errors import UnknownFormat
from millstream.model.facts import Producer
from millstream.model.records import BucketRecord, Extent, Lease, StreamRecord, Writers
from millstream.storage.catalog import CatalogReader, CatalogWriter


@pytest.fixture
def path(tmp_path):
    return tmp_path / "catalog.db"


@pytest.fixture
def writer(path):
    catalog = CatalogWriter(path)
    yield catalog
    catalog.close()


@pytest.fixture
def reader(path, writer):
    catalog = CatalogReader(path)
    yield catalog
    catalog.close()


def record(number, key=None, **more):
    return StreamRecord(number, key or f"box/{number}", "text/plain", 10, 20, **more)


def extent(stream, first, following, segment=1):
    return Extent(stream, first, following, segment, 16, 300, 1, 5, 6)


FULL = record(
    7,
    tail=1 << 50,
    earliest=3,
    id_ms=1 << 42,
    id_seq=9,
    closed=True,
    lease=Lease(60, None, 1000, False),
    writers=Writers("seq-5", Producer("p", 2, 3), 17),
)


def test_streams_are_found_by_key_and_by_number(writer, reader):
    plain = record(1, "box/näme/with/slashes")
    with writer.transaction():
        writer.save_streams([plain, FULL])
    assert reader.stream("box/näme/with/slashes") == reader.stream_numbered(1) == plain
    assert reader.stream("box/7") == reader.stream_numbered(7) == FULL
    assert list(writer.streams_numbered([7, 1, 99])) == [plain, FULL]
    assert (reader.stream("box/no"), reader.stream_numbered(2)) == (None, None)
    assert reader.stream_count() == 2


def test_many_streams_are_fetched_whatever_sqlite_allows_in_one_statement(writer):
    with writer.transaction():
        writer.save_streams(record(number) for number in range(1, 1301))
    assert [found.number for found in writer.streams_numbered(range(1, 1301))] == list(range(1, 1301))


def test_saving_a_stream_again_replaces_it(writer, reader):
    for tail in (5, 10):
        with writer.transaction():
            writer.save_streams([record(1, tail=tail)])
    assert reader.stream_numbered(1).tail == 10


def test_a_key_can_be_taken_again_in_the_transaction_that_frees_it(writer, reader):
    with writer.transaction():
        writer.save_streams([record(1, "box/a")])
    with writer.transaction():
        writer.delete_streams([1])
        writer.save_streams([record(2, "box/a")])
    assert reader.stream("box/a").number == 2
    assert reader.stream_numbered(1) is None


def test_buckets_are_saved_and_removed(writer, reader):
    bucket = BucketRecord("box", 5, True, False, 3)
    with writer.transaction():
        writer.save_buckets([bucket])
    assert reader.bucket("box") == writer.bucket("box") == bucket
    with writer.transaction():
        writer.save_buckets([BucketRecord("box", 5, deleted=True)])
    assert (reader.bucket("box"), writer.bucket("box")) == (None, None)


def test_producers_belong_to_their_stream_and_go_with_it(writer, reader):
    with writer.transaction():
        writer.save_streams([record(1), record(2)])
        writer.save_producers(1, {"p": Producer("p", 0, 4), "q": Producer("q", 1 << 53, 0)})
        writer.save_producers(2, {"p": Producer("p", 9, 9)})
        writer.save_producers(1, {"p": Producer("p", 1, 0)})
    assert reader.producer(1, "p") == (1, 0)
    assert reader.producer(1, "q") == (1 << 53, 0)
    assert reader.producer(2, "p") == (9, 9)
    assert reader.producer(1, "r") is None
    with writer.transaction():
        writer.delete_streams([1])
    assert reader.producer(1, "p") is None
    assert reader.producer(2, "p") == (9, 9)


def test_state_is_remembered(writer, reader):
    assert writer.state("applied", 42) == 42
    assert reader.state("applied") is None
    with writer.transaction():
        writer.set_state("applied", 1)
        writer.set_state("applied", (1 << 63) - 1)
    assert writer.state("applied", 0) == reader.state("applied") == (1 << 63) - 1


def test_a_transaction_that_fails_leaves_nothing(writer, reader):
    with pytest.raises(ZeroDivisionError), writer.transaction():  # noqa: PT012
        writer.save_streams([record(1)])
        writer.set_state("applied", 5)
        1 / 0  # noqa: B018
    assert reader.stream_count() == 0
    assert reader.state("applied") is None
    with writer.transaction():
        writer.save_streams([record(1)])
    assert reader.stream_count() == 1


def test_readers_see_a_transaction_as_a_whole(writer, reader):
    with writer.transaction():
        writer.save_streams([record(1)])
        assert reader.stream_count() == 0
    assert reader.stream_count() == 1


def test_everything_is_there_after_reopening(path):
    writer = CatalogWriter(path)
    with writer.transaction():
        writer.save_streams([FULL])
        writer.add_segment(1, 500, [extent(7, 0, 100)])
    writer.give_back_space()
    writer.close()
    writer = CatalogWriter(path)
    assert list(writer.streams_numbered([7])) == [FULL]
    assert writer.extents_of_segments([1]) == [extent(7, 0, 100)]
    writer.close()


@pytest.mark.parametrize("version", [3, 99])
def test_a_catalog_of_another_format_is_refused(path, version):
    CatalogWriter(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with pytest.raises(UnknownFormat, match=f"format {version}; this version reads formats up to 2"):
        CatalogWriter(path)


def test_a_catalog_of_the_first_format_learns_to_count_messages(path):
    """It counted the bytes of blocks, headers included; a merge would take its segments for half dead."""
    writer = CatalogWriter(path)
    with writer.transaction():
        writer.add_segment(1, 900, [extent(7, 0, 100), extent(8, 0, 300)])
        writer.add_segment(2, 900, [extent(9, 0, 50, segment=2)])
        writer.add_segment(3, 900, [])
    writer.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE segments SET block_bytes = 1600, live_bytes = 800")
    connection.execute("ALTER TABLE extents DROP COLUMN last_id_ms")
    connection.execute("ALTER TABLE extents DROP COLUMN last_id_seq")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    for _ in range(2):  # the second time it is of today's format
        writer = CatalogWriter(path)
        assert [(use.block_bytes, use.live_bytes) for use in writer.segments()] == [(800, 400), (100, 50), (1600, 800)]
        assert writer.extents_of_segments([2]) == [extent(9, 0, 50, segment=2)]
        writer.close()


def test_a_stream_that_was_only_appended_to_is_told_by_its_last_block(writer, reader):
    old = record(7, tail=100, id_ms=5, id_seq=1)
    with writer.transaction():
        writer.save_streams([old, record(8), record(9, tail=50)])
        told = {"last_ms": 70, "last_id_ms": 60, "last_id_seq": 2}
        writer.add_segment(1, 900, [extent(7, 0, 100), replace(extent(7, 100, 250), **told), extent(9, 0, 50)])
    newer = replace(old, tail=250, written_ms=70, id_ms=60, id_seq=2)
    expected = [newer, record(8), record(9, tail=50)]
    assert list(writer.streams_numbered([7, 8, 9])) == expected
    assert [reader.stream(one.key) for one in expected] == expected
    assert [reader.stream_numbered(number) for number in (7, 8, 9)] == expected
    assert sorted(reader.streams_between("", "z", 10), key=lambda one: one.number) == expected


def test_ids_too_large_for_the_catalog_are_left_to_the_record(writer, reader):
    with writer.transaction():
        writer.save_streams([record(7, tail=10, id_ms=1 << 63, id_seq=3)])
        writer.add_segment(1, 900, [replace(extent(7, 0, 10), last_id_ms=1 << 63, last_id_seq=3)])
    assert reader.stream_numbered(7) == record(7, tail=10, id_ms=1 << 63, id_seq=3)
    assert reader.extents(7, 0, 10, 1) == [extent(7, 0, 10)]


def test_a_reader_does_not_make_a_catalog(path):
    with pytest.raises(sqlite3.OperationalError):
        CatalogReader(path).stream("box/a")
    assert not path.exists()


# -- extents -------------------------------------------------------------------------------------------------


def found(reader, start, end, limit=100):
    return [(e.first_offset, e.next_offset) for e in reader.extents(1, start, end, limit)]


def test_extents_from_the_block_that_holds_the_start_to_the_one_that_holds_the_end(writer, reader):
    with writer.transaction():
        writer.add_segment(1, 500, [extent(1, 0, 10), extent(1, 10, 20), extent(1, 20, 30), extent(2, 0, 99)])
    assert found(reader, 0, 30) == [(0, 10), (10, 20), (20, 30)]
    assert found(reader, 0, 1) == [(0, 10)]
    assert found(reader, 9, 10) == [(0, 10)]
    assert found(reader, 9, 11) == [(0, 10), (10, 20)]
    assert found(reader, 10, 11) == [(10, 20)]
    assert found(reader, 10, 20) == [(10, 20)]
    assert found(reader, 15, 16) == [(10, 20)]
    assert found(reader, 15, 1 << 60) == [(10, 20), (20, 30)]
    assert found(reader, 29, 30) == [(20, 30)]


def test_extents_at_the_end_and_beyond_start_with_the_last_block(writer, reader):
    """The reader checks what a block covers; the catalog only says which could."""
    with writer.transaction():
        writer.add_segment(1, 500, [extent(1, 0, 10), extent(1, 10, 20)])
    assert found(reader, 20, 25) == [(10, 20)]


def test_extents_around_a_gap(writer, reader):
    with writer.transaction():
        writer.add_segment(1, 500, [extent(1, 10, 20), extent(1, 50, 60)])
    assert found(reader, 0, 15) == [(10, 20)]
    assert found(reader, 0, 5) == []
    assert found(reader, 30, 55) == [(10, 20), (50, 60)]
    assert found(reader, 50, 55) == [(50, 60)]


def test_extents_come_in_order_and_only_so_many(writer, reader):
    blocks = [extent(1, n * 10, n * 10 + 10, segment) for segment in (1, 2) for n in range(segment - 1, 40, 2)]
    with writer.transaction():
        for segment in (2, 1):
            writer.add_segment(segment, 500, [block for block in blocks if block.segment == segment])
    assert found(reader, 5, 400, limit=3) == [(0, 10), (10, 20), (20, 30)]
    assert len(found(reader, 0, 400)) == 40


def test_a_stream_without_blocks_has_no_extents(reader):
    assert found(reader, 0, 100) == []


# -- segments and garbage ------------------------------------------------------------------------------------


def live(writer):
    return {use.segment: (use.bytes, use.live_bytes) for use in writer.segments()}


def test_deleting_a_stream_takes_its_blocks_off_what_is_live(writer, reader):
    with writer.transaction():
        writer.save_streams([record(1), record(2)])
        writer.add_segment(1, 1000, [extent(1, 0, 300), extent(1, 300, 500), extent(2, 0, 400)])
        writer.add_segment(2, 1000, [extent(1, 500, 1000, 2)])
    assert live(writer) == {1: (1000, 900), 2: (1000, 500)}
    assert reader.segment_bytes() == (2, 2000, 1400)
    with writer.transaction():
        writer.delete_streams([1])
    assert live(writer) == {1: (1000, 400), 2: (1000, 0)}
    assert found(reader, 0, 100) == []
    assert writer.unreachable_segments() == [2]
    with writer.transaction():
        writer.forget_segments([2])
    assert reader.segment_numbers() == [1]
    assert writer.unreachable_segments() == []


def test_deleting_several_streams_of_one_segment_at_once_adds_up(writer):
    with writer.transaction():
        writer.add_segment(1, 1000, [extent(stream, 0, 100) for stream in range(1, 6)])
        writer.delete_streams([1, 2, 3, 99])
    assert live(writer) == {1: (1000, 200)}


def test_a_segment_is_garbage_when_its_extents_went_elsewhere(writer, reader):
    old = [extent(1, 0, 10, 1), extent(2, 0, 10, 1)]
    with writer.transaction():
        writer.add_segment(1, 1000, old)
    with writer.transaction():
        writer.remove_extents(old)
        writer.add_segment(2, 900, [extent(1, 0, 10, 2), extent(2, 0, 10, 2)])
        writer.empty_segments([1])
    assert writer.unreachable_segments() == [1]
    assert live(writer)[1] == (1000, 0)
    assert [e.segment for e in reader.extents(1, 0, 10, 10)] == [2]


def test_extents_of_segments_come_stream_by_stream(writer):
    with writer.transaction():
        writer.add_segment(1, 1, [extent(2, 10, 20, 1), extent(1, 0, 10, 1)])
        writer.add_segment(2, 1, [extent(2, 0, 10, 2), extent(1, 10, 20, 2)])
        writer.add_segment(3, 1, [extent(1, 20, 30, 3)])
    assert [(e.stream, e.first_offset) for e in writer.extents_of_segments([1, 2])] == [
        (1, 0),
        (1, 10),
        (2, 0),
        (2, 10),
    ]


# -- deadlines -----------------------------------------------------------------------------------------------


def test_streams_whose_deadline_has_passed_are_listed_the_oldest_first(writer, reader):
    with writer.transaction():
        writer.save_streams(
            [
                record(1),
                record(2, lease=Lease(5, None, 1000)),
                record(3, lease=Lease(None, 4000, 1000)),
                record(4, lease=Lease(50, None, 1000)),
            ]
        )
    start = (-1, -1)
    assert reader.expiring(start, 3999, 10) == []
    assert reader.expiring(start, 6000, 10) == [(4000, 3, "box/3"), (6000, 2, "box/2")]
    assert reader.expiring(start, 6000, 1) == [(4000, 3, "box/3")]
    assert reader.expiring((4000, 3), 6000, 10) == [(6000, 2, "box/2")]
    with writer.transaction():
        writer.save_streams([record(3)])
        writer.delete_streams([2])
    assert reader.expiring(start, 10_000, 10) == []


def test_streams_of_one_deadline_are_paged_by_number(writer, reader):
    with writer.transaction():
        writer.save_streams(record(number, lease=Lease(None, 4000, 1000)) for number in range(1, 8))
    place, found = (-1, -1), []
    while page := reader.expiring(place, 5000, 3):
        found += [number for _, number, _ in page]
        place = page[-1][:2]
    assert found == list(range(1, 8))


def test_a_healthy_catalog_says_so(reader):
    assert reader.integrity() == "ok"
