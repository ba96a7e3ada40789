"""Offsets: what is written, what is read, and that text sorts as the numbers do."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.errors import BadRequest
from millstream.model.offsets import BEGINNING, NOW, format_offset, parse_offset

offsets = st.integers(min_value=0, max_value=10**20 - 1)


def test_an_offset_is_written_with_twenty_digits():
    assert format_offset(0) == "00000000000000000000"
    assert format_offset(1234) == "00000000000000001234"
    assert format_offset(2**63 - 1) == "09223372036854775807"


def test_the_sentinels():
    assert parse_offset("-1") == BEGINNING
    assert parse_offset("now") == NOW
    assert BEGINNING < 0
    assert NOW < 0
    assert BEGINNING != NOW


def test_a_decimal_of_any_length_up_to_twenty_digits_is_read():
    assert parse_offset("7") == 7
    assert parse_offset("007") == 7
    assert parse_offset("0" * 20) == 0
    assert parse_offset("9" * 20) == 10**20 - 1


def test_the_reference_servers_pairs_are_read():
    assert parse_offset("0000000000000000_0000000000000000") == 0
    assert parse_offset("0000000000000000_0000000000000042") == 42
    assert parse_offset("0000000000000001_0000000000000000") == 10**16


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "-0", "-2", "--1", "+1", "1.0", "1e3", "0x10", "NOW", "Now", "now ", " 1", "1 ", "1\n", "-1\n"),
        *("1,2", "1_000", "٣", "²", "0" * 21, "9" * 300, "null", "undefined", "latest", "../1", "1%20"),
        *("0_0", "0000000000000000_", "_0000000000000000", "0000000000000000-0000000000000000"),
        *(
            "000000000000000_00000000000000000",
            "0000000000000000_0000000000000000_0",
            "0000000000000000_000000000000000a",
        ),
    ],
)
def test_anything_else_is_a_bad_request(text):
    with pytest.raises(BadRequest) as caught:
        parse_offset(text)
    assert caught.value.code == "bad_offset"


@given(offsets)
def test_what_is_written_is_read_back(offset):
    assert parse_offset(format_offset(offset)) == offset


@given(offsets, offsets)
def test_text_sorts_as_numbers_do(one, other):
    assert (format_offset(one) < format_offset(other)) == (one < other)


@given(offsets)
def test_no_offset_is_written_as_a_sentinel_or_needs_encoding(offset):
    text = format_offset(offset)
    assert text not in ("-1", "now")
    assert text.isascii()
    assert text.isdigit()


@given(st.text(max_size=40))
def test_any_text_is_an_offset_or_a_bad_request(text):
    with contextlib.suppress(BadRequest):
        assert parse_offset(text) >= NOW
