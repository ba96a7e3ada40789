"""Cursors: they let caches collapse readers, and never go back (protocol section 8.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.protocol.http.cursors import next_cursor
from millstream.protocol.http.requests import Request, read_query

EPOCH_MS = 1_728_432_000_000  # 2024-10-09T00:00:00Z
NOW_MS = EPOCH_MS + 1000 * 20_000 + 7_000

times = st.integers(EPOCH_MS, EPOCH_MS + 10**12)
cursors = st.integers(0, 10**9)


def sent_back(cursor: int) -> int | None:
    """What the server understands of a cursor that a client echoes."""
    return read_query(Request(b"GET", b"/", b"live=long-poll&offset=-1&cursor=%d" % cursor, {}, b"", True)).cursor


def test_a_cursor_is_the_number_of_the_interval():
    assert next_cursor(EPOCH_MS, None) == 0
    assert next_cursor(EPOCH_MS + 19_999, None) == 0
    assert next_cursor(EPOCH_MS + 20_000, None) == 1
    assert next_cursor(NOW_MS, None) == 1000


def test_a_client_from_an_earlier_interval_gets_the_present_one():
    assert next_cursor(NOW_MS, 0) == 1000
    assert next_cursor(NOW_MS, 999) == 1000


def test_a_client_from_this_interval_or_a_later_one_gets_a_later_one():
    for client in (1000, 1001, 5000):
        assert client < next_cursor(NOW_MS, client) <= client + 180


@pytest.mark.parametrize("jitter_s", [1, 19, 20, 3600])
def test_whatever_chance_says_the_next_cursor_is_another(monkeypatch, jitter_s):
    monkeypatch.setattr("random.randint", lambda least, most: jitter_s)
    assert 1000 < next_cursor(NOW_MS, 1000) <= 1180


def test_clients_do_not_all_get_the_same_later_one():
    assert len({next_cursor(NOW_MS, 1000) for _ in range(200)}) > 10


@given(times, cursors)
def test_a_cursor_is_after_the_clients_and_not_before_the_present(now_ms, client):
    cursor = next_cursor(now_ms, client)
    assert cursor > client
    assert cursor >= next_cursor(now_ms, None)


@given(times, st.lists(st.integers(0, 60_000), min_size=2, max_size=10))
def test_a_client_that_echoes_cursors_sees_them_grow(now_ms, waits):
    cursor = None
    for wait_ms in waits:
        now_ms += wait_ms
        previous, cursor = cursor, next_cursor(now_ms, cursor)
        assert previous is None or cursor > previous


def test_a_cursor_of_ours_is_understood_however_large_it_has_become():
    """The largest cursor that is read must not lead to one that is not: the next answer would go back."""
    cursor = 10**16 - 1
    for _ in range(3):
        previous, cursor = cursor, next_cursor(NOW_MS, sent_back(cursor))
        assert cursor > previous
