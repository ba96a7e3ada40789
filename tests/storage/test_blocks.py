"""Blocks: what goes in comes out, and no flipped bit passes."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.blocks import columns_of, digest_of

from millstream.model.errors import CorruptData
from millstream.storage.segments.block import (
    HEADER_BYTES,
    Columns,
    decode_block,
    decode_payload,
    encode_block,
    encode_shared,
    join_blocks,
    message_digest,
)

U64 = (1 << 64) - 1
numbers = st.one_of(st.integers(0, 300), st.integers(0, 1 << 33), st.integers(0, U64))
growing = st.one_of(st.just(0), st.integers(0, 300), st.integers(0, 1 << 40))


@st.composite
def messages(draw):
    """Messages as a stream gets them: times and sequences never go back, ids are the times, or anything."""
    payloads = draw(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=20))
    count = len(payloads)
    times = draw(rising(st.integers(0, 1 << 42), count))
    ids = times if draw(st.booleans()) else draw(st.lists(numbers, min_size=count, max_size=count))
    id_seqs = draw(st.lists(numbers, min_size=count, max_size=count))
    return Columns(payloads, times, ids, id_seqs, draw(rising(st.integers(1, 1 << 50), count)))


@st.composite
def rising(draw, first, count):
    steps = draw(st.lists(growing, min_size=count - 1, max_size=count - 1))
    return list(accumulate([draw(first), *steps]))


def encoded(stream, first_offset, columns):
    return b"".join(encode_block(stream, first_offset, columns))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(messages(), numbers, st.integers(0, 1 << 60))
def test_a_block_gives_back_the_messages_it_was_made_of(columns, stream, first_offset):
    data = encoded(stream, first_offset, columns)
    block = decode_block(data, stream)
    payload = b"".join(columns.payloads)
    assert columns_of(block) == columns
    assert (block.stream, block.first_offset, block.next_offset) == (stream, first_offset, first_offset + len(payload))
    assert bytes(block.payload) == payload
    found_offset, lengths, view = decode_payload(data, stream)
    assert (found_offset, list(lengths), bytes(view)) == (first_offset, list(map(len, columns.payloads)), payload)


def test_messages_of_one_moment_cost_a_byte_each_besides_their_payload():
    columns = Columns([b"x"] * 50, [10**12] * 50, [10**12] * 50, [0] * 50, [7] * 50)
    assert len(encoded(1, 0, columns)) == HEADER_BYTES + 50 + 50


def test_ids_may_go_back_within_a_block():
    """A client's own ids need not follow our clock."""
    columns = Columns([b"a", b"b", b"c"], [5, 5, 5], [900, 100, U64], [3, U64, 0], [1, 2, 3])
    assert columns_of(decode_block(encoded(1, 0, columns), 1)) == columns


def test_ids_that_are_the_times_cost_nothing():
    times = [10**12 + n * 1000 for n in range(50)]
    ours = encoded(1, 0, Columns([b"x"] * 50, times, times, [0] * 50, [7] * 50))
    theirs = encoded(1, 0, Columns([b"x"] * 50, times, [*times[:-1], times[-1] + 1], [0] * 50, [7] * 50))
    assert len(ours) < len(theirs)


SMALL = Columns([b"hello", b"world!"], [10, 400], [20, 70_000], [1, 2], [5, 6])


def small_blocks():
    """A block that stream 3 has for itself, and one that it shares."""
    return [encoded(3, 1000, SMALL), b"".join(encode_shared([3, 8], [1000, 7], [1, 1], SMALL))]


both_ways = pytest.mark.parametrize("decode", [decode_block, decode_payload])
both_kinds = pytest.mark.parametrize("data", small_blocks(), ids=["own", "shared"])


@both_ways
@both_kinds
def test_every_flipped_bit_is_noticed(decode, data):
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(CorruptData):
                decode(flipped, 3)


@both_ways
@both_kinds
def test_a_block_cut_short_or_too_long_is_refused(decode, data):
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            decode(data[:size], 3)
    with pytest.raises(CorruptData):
        decode(data + b"\0", 3)


@both_ways
@both_kinds
@pytest.mark.parametrize("stream", [0, 2, 4, 9, U64])
def test_a_block_of_other_streams_is_refused(decode, data, stream):
    with pytest.raises(CorruptData, match=f"holds nothing of stream {stream}"):
        decode(data, stream)


@st.composite
def sharing(draw):
    """Several streams with a few messages each: number, first offset and columns."""
    numbers = sorted(draw(st.sets(st.integers(1, U64), min_size=2, max_size=8)))
    return [(number, draw(st.integers(0, 1 << 60)), draw(messages())) for number in numbers]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(sharing())
def test_a_shared_block_gives_each_stream_its_own(streams):
    joined = Columns(*([item for _, _, columns in streams for item in columns[n]] for n in range(5)))
    counts = [len(columns.payloads) for _, _, columns in streams]
    data = b"".join(encode_shared([s[0] for s in streams], [s[1] for s in streams], counts, joined))
    digests = 0
    for number, first_offset, columns in streams:
        block = decode_block(data, number)
        assert columns_of(block) == columns
        assert (block.stream, block.first_offset, block.digest) == (number, first_offset, None)
        assert b"".join(join_blocks([block])) == encoded(number, first_offset, columns)
        found_offset, lengths, payload = decode_payload(data, number)
        assert (found_offset, list(lengths)) == (first_offset, list(map(len, columns.payloads)))
        assert bytes(payload) == b"".join(columns.payloads)
        digests += digest_of(block)
    assert int.from_bytes(data[72:88], "little") == digests % (1 << 128)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=30), st.data())
def test_digests_add_up_whatever_the_blocks(payloads, data):
    ones = [1] * len(payloads)
    columns = Columns(payloads, ones, ones, ones, ones)
    offsets = [sum(map(len, payloads[:index])) for index in range(len(payloads))]
    whole = sum(map(message_digest, offsets, payloads)) % (1 << 128)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(payloads)))) | {0, len(payloads)})
    blocks = [decode_block(encoded(1, offsets[start], columns.part(start, end)), 1) for start, end in pairwise(cuts)]
    assert sum(block.digest for block in blocks) % (1 << 128) == whole
    assert b"".join(join_blocks(blocks)) == encoded(1, 0, columns)


def test_a_digest_tells_offsets_and_boundaries_apart():
    digests = {
        sum(message_digest(offset, payload) for offset, payload in messages)
        for messages in ([(0, b"ab")], [(1, b"ab")], [(0, b"a"), (1, b"b")], [(0, b"b"), (1, b"a")])
    }
    assert len(digests) == 4
