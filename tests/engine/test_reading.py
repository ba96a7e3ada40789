"""Which bytes answer a read: every offset, every budget, compared with slicing one plain byte string."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.engine.world import JSON, TEXT

from millstream.engine.reading import cut_hot, resolve_offset, split_messages, take_messages
from millstream.engine.state import HotRecord, Stream
from millstream.model.errors import BadRequest, Gone
from millstream.model.offsets import BEGINNING, NOW

# Appends, each a list of messages.
Appends = list[list[bytes]]
messages = st.binary(min_size=1, max_size=5)
appends = st.lists(st.lists(messages, min_size=1, max_size=3), min_size=1, max_size=5)


def stream_of(content: Appends, content_type: str, cold_bytes: int = 0, earliest: int = 0) -> Stream:
    """A stream whose last appends are in memory, behind some bytes that are not."""
    hot, tail = [], cold_bytes
    for sequence, batch in enumerate(content):
        lengths = None if len(batch) == 1 else [len(message) for message in batch]
        hot.append(HotRecord(tail, b"".join(batch), lengths, 0, 0, 0, sequence))
        tail += sum(map(len, batch))
    return Stream(1, "shop/orders", content_type, 0, 0, tail=tail, earliest=earliest, hot=hot or None)


# --- bytes


@given(appends, st.sampled_from([0, 3]))
@example([[b"a"]], 0)
@example([[b"abc"], [b"d"], [b"ef"]], 3)
def test_a_cut_of_bytes_is_a_slice(content, cold_bytes):
    stream = stream_of(content, TEXT, cold_bytes)
    whole = b"." * cold_bytes + b"".join(map(b"".join, content))
    for start in range(cold_bytes, len(whole) + 1):
        for budget in range(1, len(whole) + 2):
            cut = cut_hot(stream, start, budget)
            assert cut.start == start
            assert b"".join(cut.pieces) == whole[start : cut.end]
            assert cut.end - start <= budget
            assert cut.end > start or start == len(whole)
            assert all(cut.pieces)


@given(appends)
def test_bytes_are_cut_inside_an_append_only_if_it_does_not_fit_alone(content):
    """Readers see whole appends where they can: a cut inside one would show text broken in the middle of a line."""
    stream = stream_of(content, TEXT)
    ends = [0, *accumulate(sum(map(len, batch)) for batch in content)]
    for start in range(stream.tail):
        next_end = next(end for end in ends if end > start)
        for budget in range(1, stream.tail + 1):
            end = cut_hot(stream, start, budget).end
            fitting = [each for each in ends if start < each <= start + budget]
            assert end == (max(fitting) if fitting else start + budget)
            assert fitting or next_end > start + budget


def test_with_enough_budget_everything_comes():
    stream = stream_of([[b"hello "], [b"world"]], TEXT)
    assert cut_hot(stream, 0, 1000).pieces == [b"hello ", b"world"]
    assert cut_hot(stream, 6, 1000).pieces == [b"world"]
    assert cut_hot(stream, 8, 1000).pieces == [b"rld"]


def test_at_the_tail_there_is_nothing():
    cut = cut_hot(stream_of([[b"hello"]], TEXT), 5, 1000)
    assert (cut.start, cut.end, cut.pieces) == (5, 5, [])


def test_an_empty_stream_has_nothing():
    for content_type in (TEXT, JSON):
        assert cut_hot(stream_of([], content_type), 0, 1000).pieces == []


def test_what_is_not_in_memory_is_never_asked_here():
    with pytest.raises(AssertionError):
        cut_hot(stream_of([[b"hello"]], TEXT, cold_bytes=3), 2, 1000)


# --- messages


def greedy(messages: list[bytes], budget: int) -> list[bytes]:
    """As many whole messages as fit, and at least one."""
    taken = messages[:1]
    for message in messages[1:]:
        if sum(map(len, taken)) + len(message) > budget:
            break
        taken.append(message)
    return taken


@given(appends, st.sampled_from([0, 3]))
@example([[b"a", b"b"], [b"c"], [b"dd", b"e", b"f"]], 0)
def test_a_cut_of_json_is_whole_messages_or_refused(content, cold_bytes):
    stream = stream_of(content, JSON, cold_bytes)
    flat = [message for batch in content for message in batch]
    boundaries = list(accumulate(map(len, flat), initial=cold_bytes))
    for start in range(cold_bytes, stream.tail + 1):
        for budget in range(1, stream.tail - cold_bytes + 2):
            if start not in boundaries:
                with pytest.raises(BadRequest) as caught:
                    cut_hot(stream, start, budget)
                assert caught.value.code == "offset_not_a_boundary"
                continue
            expected = greedy(flat[boundaries.index(start) :], budget)
            cut = cut_hot(stream, start, budget)
            assert (cut.start, cut.pieces) == (start, expected)
            assert cut.end == start + sum(map(len, expected))


@given(appends, st.integers(1, 20))
def test_reading_on_from_each_end_gives_every_message_once(content, budget):
    stream = stream_of(content, JSON)
    read, at = [], 0
    while at < stream.tail:
        cut = cut_hot(stream, at, budget)
        read += cut.pieces
        at = cut.end
    assert read == [message for batch in content for message in batch]


def test_a_message_larger_than_the_budget_comes_alone():
    stream = stream_of([[b'"long"'], [b"1"], [b"2"]], JSON)
    assert cut_hot(stream, 0, 1).pieces == [b'"long"']
    assert cut_hot(stream, 6, 1).pieces == [b"1"]


def test_json_mode_is_found_whatever_the_parameters():
    stream = stream_of([[b"[1]", b"2"]], "Application/JSON; charset=utf-8")
    assert cut_hot(stream, 0, 100).pieces == [b"[1]", b"2"]


# --- helpers


def test_messages_are_split_by_their_lengths():
    assert split_messages(b"abbccc", [1, 2, 3], 0) == [b"a", b"bb", b"ccc"]
    assert split_messages(b"abbccc", [1, 2, 3], 1) == [b"bb", b"ccc"]
    assert split_messages(b"abbccc", [1, 2, 3], 3) == [b"ccc"]
    assert split_messages(b"abbccc", [1, 2, 3], 6) == []
    assert split_messages(memoryview(b"abb"), [1, 2], 1) == [b"bb"]


@pytest.mark.parametrize("skip", [2, 4, 5])
def test_a_skip_must_end_with_a_message(skip):
    with pytest.raises(BadRequest) as caught:
        split_messages(b"abbccc", [1, 2, 3], skip)
    assert caught.value.code == "offset_not_a_boundary"


@given(st.lists(messages, max_size=6), st.lists(messages, max_size=3), st.integers(1, 30))
def test_messages_are_taken_while_they_fit_and_at_least_one(coming, taken, budget):
    pieces = list(taken)
    start, end = 100, 100 + sum(map(len, taken))
    new_end, full = take_messages(coming, pieces, start, end, budget)
    assert pieces[: len(taken)] == taken
    assert taken + coming[: len(pieces) - len(taken)] == pieces
    assert new_end == start + sum(map(len, pieces))
    assert new_end - start <= budget or len(pieces) <= max(1, len(taken))
    assert full or len(pieces) == len(taken) + len(coming)


# --- offsets


def test_the_sentinels_become_real_offsets():
    stream = stream_of([[b"hello"]], TEXT, cold_bytes=3, earliest=2)
    assert resolve_offset(stream, NOW) == 8
    assert resolve_offset(stream, BEGINNING) == 2


def test_an_offset_from_the_earliest_to_the_tail_stands():
    stream = stream_of([[b"hello"]], TEXT, cold_bytes=3, earliest=2)
    assert [resolve_offset(stream, offset) for offset in (2, 5, 8)] == [2, 5, 8]


def test_an_offset_beyond_the_tail_is_a_bad_request():
    with pytest.raises(BadRequest) as caught:
        resolve_offset(stream_of([[b"hello"]], TEXT), 6)
    assert caught.value.code == "offset_beyond_tail"
    assert "00000000000000000005" in caught.value.message


def test_an_offset_before_the_earliest_kept_is_gone():
    with pytest.raises(Gone) as caught:
        resolve_offset(stream_of([[b"hello"]], TEXT, cold_bytes=3, earliest=2), 1)
    assert (caught.value.code, caught.value.earliest) == ("offset_trimmed", 2)
