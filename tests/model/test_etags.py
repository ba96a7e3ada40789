"""Entity tags: how they look, and which of them name a state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.etags import is_among, names_state, range_etag, state_etag

ID = "0000abcd-7"
tails = st.integers(min_value=0, max_value=10**12)


def test_the_four_forms():
    assert state_etag(ID, 5, closed=False) == '"0000abcd-7:5"'
    assert state_etag(ID, 5, closed=True) == '"0000abcd-7:5:c"'
    assert range_etag(ID, 2, 5, closed=False) == '"0000abcd-7:2:5"'
    assert range_etag(ID, 2, 5, closed=True) == '"0000abcd-7:2:5:c"'


# --- If-Match


def test_the_tag_of_a_state_names_that_state_only():
    assert names_state('"0000abcd-7:5"', ID, 5, closed=False)
    assert not names_state('"0000abcd-7:5"', ID, 6, closed=False)
    assert not names_state('"0000abcd-7:5"', ID, 15, closed=False)
    assert not names_state('"0000abcd-7:5"', "0000abcd-8", 5, closed=False)


def test_closing_makes_every_older_tag_stale():
    assert not names_state('"0000abcd-7:5"', ID, 5, closed=True)
    assert not names_state('"0000abcd-7:2:5"', ID, 5, closed=True)
    assert names_state('"0000abcd-7:5:c"', ID, 5, closed=True)
    assert not names_state('"0000abcd-7:5:c"', ID, 5, closed=False)


def test_the_tag_of_a_range_names_the_state_it_ends_at():
    assert names_state('"0000abcd-7:0:5"', ID, 5, closed=False)
    assert names_state('"0000abcd-7:5:5"', ID, 5, closed=False)
    assert names_state('"0000abcd-7:0:5:c"', ID, 5, closed=True)
    assert not names_state('"0000abcd-7:0:4"', ID, 5, closed=False)
    assert not names_state('"0000abcd-7:0:15"', ID, 5, closed=False)
    assert not names_state('"0000abcd-9:0:5"', ID, 5, closed=False)


def test_a_star_names_any_state():
    assert names_state("*", ID, 5, closed=False)
    assert names_state("*", ID, 5, closed=True)


def test_one_tag_of_a_list_is_enough():
    assert names_state('"other:1" , "0000abcd-7:5"', ID, 5, closed=False)
    assert not names_state('"other:1", "other:2"', ID, 5, closed=False)


def test_a_compressed_answers_weak_tag_names_the_same_state():
    assert names_state('W/"0000abcd-7:0:5"', ID, 5, closed=False)


@pytest.mark.parametrize("header", ["", '""', "0000abcd-7:5", '"0000abcd-7"', '"0000abcd-7:"', '"', "5", '":5"', ","])
def test_a_malformed_tag_names_nothing(header):
    assert not names_state(header, ID, 5, closed=False)


@given(tails, tails, st.booleans(), st.booleans())
def test_a_state_tag_names_exactly_its_own_state(tail, other, closed, other_closed):
    named = names_state(state_etag(ID, tail, closed), ID, other, other_closed)
    assert named == ((tail, closed) == (other, other_closed))


@given(tails, tails, tails, st.booleans(), st.booleans())
def test_a_range_tag_names_exactly_the_state_at_its_end(start, end, tail, closed, state_closed):
    named = names_state(range_etag(ID, start, end, closed), ID, tail, state_closed)
    assert named == ((end, closed) == (tail, state_closed))


# --- If-None-Match


def test_a_listed_tag_is_found_weak_or_strong():
    assert is_among('"a:0:5"', '"a:0:5"')
    assert is_among('"x", W/"a:0:5"', '"a:0:5"')
    assert is_among("*", '"a:0:5"')
    assert not is_among('"a:0:5:c"', '"a:0:5"')
    assert not is_among("a:0:5", '"a:0:5"')
    assert not is_among("", '"a:0:5"')
