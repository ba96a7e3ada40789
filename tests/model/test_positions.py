"""Positions in the commit order, and the identity of a stream."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.errors import BadRequest
from millstream.model.positions import Position, format_stream_id

incarnations = st.integers(min_value=0, max_value=2**64 - 1)
sequences = st.lists(st.integers(min_value=0, max_value=10**20 - 1), min_size=1, max_size=5).map(tuple)


def test_a_token_names_the_log_and_how_far_it_was_read():
    assert Position(0xFEED, (7,)).token() == "000000000000feed.7"
    assert Position(1, (3, 0, 5)).token() == "0000000000000001.3.0.5"


@given(incarnations, sequences)
def test_a_token_gives_its_position_back(incarnation, seen):
    position = Position(incarnation, seen)
    assert Position.from_token(position.token()) == position


@pytest.mark.parametrize(
    "token",
    [
        *("", "7", ".7", "000000000000feed", "000000000000feed.", "000000000000feed..7", "000000000000feed.7."),
        *(
            "000000000000FEED.7",
            "00000000000feed.7",
            "0000000000000feed.7",
            "000000000000feed.-1",
            "000000000000feed.x",
        ),
        *(" 000000000000feed.7", "000000000000feed.7\n", "000000000000feed." + "1" * 21, "000000000000feed.٣"),
    ],
)
def test_anything_else_is_a_bad_request(token):
    with pytest.raises(BadRequest) as caught:
        Position.from_token(token)
    assert caught.value.code == "bad_position"


@given(st.text(max_size=60))
def test_any_text_is_a_position_or_a_bad_request(token):
    with contextlib.suppress(BadRequest):
        assert Position.from_token(token).sequences


def test_a_stream_id_holds_the_log_and_the_number_of_the_stream():
    assert format_stream_id(0xABCD, 1) == "0000abcd-1"
    assert format_stream_id(0x1234_5678_9ABC_DEF0, 255) == "9abcdef0-ff"


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**63), st.integers(0, 2**32 - 1), st.integers(1, 2**63))
def test_different_streams_have_different_ids(log, number, other_log, other_number):
    same = (log, number) == (other_log, other_number)
    assert (format_stream_id(log, number) == format_stream_id(other_log, other_number)) == same


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**63))
def test_a_stream_id_fits_into_a_header_an_etag_and_a_url(log, number):
    assert set(format_stream_id(log, number)) <= set("0123456789abcdef-")
