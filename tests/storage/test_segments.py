"""Segments: an object of blocks that tells by itself what is in it."""

from __future__ import annotations

import pytest
from tests.storage.blocks import columns_of, rows_of

from millstream.model.errors import CorruptData, UnknownFormat
from millstream.storage.files import Files
from millstream.storage.objects import LocalObjects
from millstream.storage.segments.block import Columns, decode_block
from millstream.storage.segments.segment import FOLDER, SegmentBuilder, read_index, segment_name, segment_number


@pytest.fixture
def store(tmp_path):
    objects = LocalObjects(tmp_path, Files())
    objects.prepare(FOLDER)
    yield objects
    objects.close()


def messages_of_sizes(*sizes):
    payloads = [bytes([65 + n % 26]) * size for n, size in enumerate(sizes)]
    rising = list(range(100, 100 + len(sizes)))
    return Columns(payloads, rising, rising, [0] * len(sizes), rising)


def built(store, block_bytes=100, number=7):
    builder = SegmentBuilder(number, block_bytes)
    builder.add(3, 0, rows_of(messages_of_sizes(40, 40, 40, 250, 1, 1)))
    builder.add(5, 1 << 40, rows_of(messages_of_sizes(10)))
    builder.add(9, 77, rows_of(messages_of_sizes(99, 1, 100)))
    size = builder.write(store)
    assert size == store.size(segment_name(number))
    return builder


def test_the_index_says_what_the_builder_said(store):
    builder = built(store)
    assert read_index(store, segment_name(7)) == builder.extents
    assert builder.size + 32 < store.size(segment_name(7))


def test_every_extent_leads_to_its_block(store):
    found = {}
    for extent in built(store).extents:
        block = decode_block(store.get_range(segment_name(7), extent.at, extent.size), extent.stream)
        assert (block.stream, block.first_offset) == (extent.stream, extent.first_offset)
        assert block.next_offset == extent.next_offset
        assert len(block.lengths) == extent.messages
        assert (block.sequences[-1], block.times_ms[-1]) == (extent.last_sequence, extent.last_ms)
        found.setdefault(extent.stream, []).append(block)
    assert {stream: columns_of(*blocks) for stream, blocks in found.items()} == {
        3: messages_of_sizes(40, 40, 40, 250, 1, 1),
        5: messages_of_sizes(10),
        9: messages_of_sizes(99, 1, 100),
    }


@pytest.mark.parametrize("block_bytes", [1, 2, 40, 41, 80, 100, 372, 100_000])
def test_blocks_hold_whole_messages_and_at_most_the_wanted_bytes_unless_one_is_larger(store, block_bytes):
    builder = built(store, block_bytes)
    end = 0
    for extent in (extent for extent in builder.extents if extent.stream == 3):
        assert extent.first_offset == end
        end = extent.next_offset
        assert end - extent.first_offset <= block_bytes or extent.messages == 1
    assert end == 372


def test_a_block_is_taken_over_as_it_lies_in_another_segment(store):
    old = built(store)
    builder = SegmentBuilder(8, 100)
    for extent in old.extents:
        builder.add_encoded(extent, store.get_range(segment_name(7), extent.at, extent.size))
    builder.write(store)
    strip = [(e.stream, e.first_offset, e.next_offset, e.size, e.messages, e.last_ms) for e in old.extents]
    index = read_index(store, segment_name(8))
    assert [(e.stream, e.first_offset, e.next_offset, e.size, e.messages, e.last_ms) for e in index] == strip
    assert {extent.segment for extent in index} == {8}
    for extent in index:
        decode_block(store.get_range(segment_name(8), extent.at, extent.size), extent.stream)


def test_streams_with_little_share_blocks_and_others_have_their_own(store):
    builder = SegmentBuilder(7, 3200)  # less than 100 bytes are shared, 400 at most
    expected = {stream: messages_of_sizes(*[stream] * 3) for stream in (1, 10, 20, 30, 33, 34, 60, 90)}
    for stream, columns in expected.items():
        builder.add(stream, stream, rows_of(columns))
    builder.write(store)
    places = {extent.stream: extent.at for extent in builder.extents}
    assert len({places[stream] for stream in (1, 10, 20, 30, 33)}) == 1
    assert len(set(places.values())) == 4
    found = {}
    for extent in read_index(store, segment_name(7)):
        block = decode_block(store.get_range(segment_name(7), extent.at, extent.size), extent.stream)
        assert (block.first_offset, block.next_offset) == (extent.first_offset, extent.next_offset)
        assert len(block.lengths) == extent.messages
        assert (block.sequences[-1], block.times_ms[-1]) == (extent.last_sequence, extent.last_ms)
        found[extent.stream] = columns_of(block)
    assert found == expected


def test_a_shared_block_is_not_larger_than_it_may_be(store):
    builder = SegmentBuilder(7, 3200)
    for stream in range(1, 100):
        builder.add(stream, 0, rows_of(messages_of_sizes(99)))
    builder.write(store)
    shared = [extent.at for extent in builder.extents]
    assert all(shared.count(at) == 4 for at in set(shared[:-3]))


def test_a_stream_is_never_twice_in_one_block(store):
    """A directory names it once; a stream whose blocks do not follow each other comes in several parts."""
    builder = SegmentBuilder(7, 3200)
    builder.add(1, 0, rows_of(messages_of_sizes(5)))
    builder.add(2, 0, rows_of(messages_of_sizes(5)))
    builder.add(2, 500, rows_of(messages_of_sizes(6)))
    builder.add(3, 0, rows_of(messages_of_sizes(5)))
    builder.write(store)
    first, second = [extent for extent in builder.extents if extent.stream == 2]
    assert first.at != second.at
    block = decode_block(store.get_range(segment_name(7), second.at, second.size), 2)
    assert (block.first_offset, bytes(block.payload)) == (500, b"A" * 6)


def test_a_stream_alone_with_little_has_a_block_of_its_own(store):
    builder = SegmentBuilder(7, 3200)
    builder.add(1, 0, rows_of(messages_of_sizes(5)))
    builder.write(store)
    (extent,) = builder.extents
    assert decode_block(store.get_range(segment_name(7), extent.at, extent.size), 1).digest is not None


def test_names_sort_as_their_numbers_do():
    numbers = [1, 9, 10, 99_999, 10**11]
    assert sorted(map(segment_name, numbers)) == list(map(segment_name, numbers))
    assert [segment_number(segment_name(number)) for number in numbers] == numbers


def test_a_segment_cut_short_anywhere_is_refused(store, tmp_path):
    built(store)
    path = tmp_path / segment_name(7)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptData):
            read_index(store, segment_name(7))


def test_every_flipped_byte_is_noticed_by_the_index_or_by_a_block(store, tmp_path):
    built(store)
    path = tmp_path / segment_name(7)
    whole = path.read_bytes()
    padding = {*range(10, 16), *range(len(whole) - 16, len(whole) - 8)}
    for at in sorted(set(range(len(whole))) - padding):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x21]) + whole[at + 1 :])
        with pytest.raises((CorruptData, UnknownFormat)):
            read_everything(store)


def read_everything(store):
    for extent in read_index(store, segment_name(7)):
        decode_block(store.get_range(segment_name(7), extent.at, extent.size), extent.stream)


def test_a_segment_of_another_format_is_refused_by_its_number(store, tmp_path):
    built(store)
    path = tmp_path / segment_name(7)
    content = bytearray(path.read_bytes())
    content[8:10] = (9).to_bytes(2, "little")
    path.write_bytes(content)
    with pytest.raises(UnknownFormat, match="format 9; this version reads formats up to 2"):
        read_index(store, segment_name(7))


def test_a_segment_of_many_blocks_is_written_in_few_large_pieces_while_it_is_filled(store):
    builder = SegmentBuilder(7, 1)
    written = []

    def filling():
        for number in range(2500):
            builder.add(number + 1, 0, rows_of(messages_of_sizes(1000)))
            yield
            assert builder.size - sum(map(len, written)) <= (1 << 20) + 2000, "what is ready does not wait"

    size = builder.write(Recording(written), filling())
    assert len(written) == 4  # about a megabyte each, the rest, and the index
    assert size == sum(map(len, written)) > 2_500_000


def test_a_segment_of_nothing_is_not_written(store):
    assert SegmentBuilder(7, 100).write(store, iter([None, None])) == 0
    assert store.list(FOLDER) == []


def test_what_fails_while_a_segment_is_filled_leaves_nothing(store, tmp_path):
    builder = SegmentBuilder(7, 1)

    def filling():
        builder.add(1, 0, rows_of(messages_of_sizes(2_000_000)))
        yield
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        builder.write(store, filling())
    assert list((tmp_path / FOLDER).iterdir()) == []


class Recording:
    def __init__(self, written):
        self.written = written

    def put(self, name, pieces):
        self.written.extend(pieces)
        return sum(map(len, self.written))
