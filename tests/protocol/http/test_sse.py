"""Server-Sent Events: what a browser's parser makes of what we send (protocol section 5.8)."""

from __future__ import annotations

import base64
import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.protocol.http.event_source import Event, parse_events

from millstream.protocol.http.sse import HEARTBEAT, control_event, data_event, unfinished_bytes

fragments = ["\n", "\r", " ", ":", "a", "é", "\ufeff", "\0", "\u2028", "😀", "data:", "id: 7", "event: control"]
tricky = st.lists(st.sampled_from(fragments), max_size=12).map("".join)
texts = st.one_of(tricky, st.text(st.characters(codec="utf-8"), max_size=30))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def normalised(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def only(stream: bytes) -> Event:
    [event] = parse_events(stream)
    return event


# --- text


def test_a_line_of_text():
    assert data_event([b"hello"], json=False, text=True) == b"event: data\ndata:hello\n\n"


def test_every_line_is_a_field_of_its_own():
    assert data_event([b"a\nb\n"], json=False, text=True) == b"event: data\ndata:a\ndata:b\ndata:\n\n"


def test_a_line_that_starts_with_a_space_gets_one_to_lose():
    assert data_event([b" a\n  b"], json=False, text=True) == b"event: data\ndata:  a\ndata:   b\n\n"


@given(texts)
@example("")
@example(" ")
@example("\n")
@example("\r\n")
@example("\n\r")
@example(" a\r\n  b\r c\n")
@example("\n\nevent: control\ndata: {}\n\n")
def test_a_browser_gets_the_text_back_with_plain_line_breaks(text):
    event = only(data_event([text.encode()], json=False, text=True))
    assert event.type == "data"
    assert event.data == normalised(text)


@given(texts, st.lists(st.integers(0, 60), max_size=4))
def test_how_the_text_is_divided_does_not_matter(text, cuts):
    """A CR LF or a character may lie on the border of two appends."""
    data = text.encode()
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(at)]
    assert data_event(pieces, json=False, text=True) == data_event([data], json=False, text=True)


# --- JSON


@given(st.lists(values, min_size=1, max_size=4), st.sampled_from([None, 2]))
def test_a_browser_gets_json_messages_as_one_array(messages, indent):
    pieces = [json.dumps(message, indent=indent, ensure_ascii=False).encode() for message in messages]
    event = only(data_event(pieces, json=True, text=True))
    assert (event.type, json.loads(event.data)) == ("data", messages)


def test_one_message_is_an_array_too():
    assert data_event([b'{"a":1}'], json=True, text=True) == b'event: data\ndata:[{"a":1}]\n\n'


# --- bytes


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=3))
def test_a_browser_gets_bytes_as_one_base64_text(pieces):
    event = only(data_event(pieces, json=False, text=False))
    assert event.type == "data"
    assert len(event.data) % 4 == 0
    assert base64.b64decode(event.data, validate=True) == b"".join(pieces)


# --- control events


def test_a_control_event_in_the_middle_of_a_stream():
    event = only(control_event(12, 34, up_to_date=False, closed=False))
    assert event.type == "control"
    assert json.loads(event.data) == {"streamNextOffset": "00000000000000000012", "streamCursor": "34"}


def test_a_control_event_at_the_tail():
    event = only(control_event(12, 34, up_to_date=True, closed=False))
    assert json.loads(event.data) == {
        "streamNextOffset": "00000000000000000012",
        "streamCursor": "34",
        "upToDate": True,
    }


def test_a_control_event_at_the_end_has_no_cursor():
    event = only(control_event(12, 34, up_to_date=True, closed=True))
    assert json.loads(event.data) == {
        "streamNextOffset": "00000000000000000012",
        "upToDate": True,
        "streamClosed": True,
    }


@pytest.mark.parametrize(("up_to_date", "closed"), [(False, False), (True, False), (True, True)])
def test_a_browser_that_reconnects_names_the_next_offset(up_to_date, closed):
    assert only(control_event(12, 34, up_to_date=up_to_date, closed=closed)).id == "00000000000000000012"


def test_a_data_event_and_its_control_event_are_two_events():
    stream = data_event([b"a\n"], json=False, text=True) + control_event(2, 1, up_to_date=True, closed=False)
    assert [event.type for event in parse_events(stream)] == ["data", "control"]


def test_a_heartbeat_is_no_event():
    assert parse_events(HEARTBEAT) == []
    assert parse_events(HEARTBEAT + data_event([b"a"], json=False, text=True)) == [Event("data", "a", "")]


# --- characters


def test_a_character_that_has_just_begun_waits():
    assert unfinished_bytes(b"a\xc3") == 1
    assert unfinished_bytes("aé".encode()) == 0
    assert unfinished_bytes("€".encode()[:2]) == 2
    assert unfinished_bytes("a😀".encode()[:4]) == 3
    assert unfinished_bytes("a😀".encode()) == 0


def test_so_does_a_line_end_that_may_have_begun():
    assert unfinished_bytes(b"a\r") == 1
    assert unfinished_bytes(b"a\r\r") == 1
    assert unfinished_bytes(b"a\r\n") == 0


@given(st.text(st.characters(codec="utf-8"), max_size=8), st.integers(0, 40))
def test_text_is_never_broken_inside_a_character(text, size):
    data = text.encode()[:size]
    whole = data[: len(data) - unfinished_bytes(data)]
    assert text.startswith(whole.decode())
    assert len(data) - len(whole) < 4
    if not whole.endswith(b"\r"):
        assert len(whole.decode()) + data.endswith(b"\r") == len(data.decode(errors="ignore"))


@given(st.binary(max_size=12))
def test_what_is_not_utf8_still_moves_on(data):
    """A broken stream must not stop a reader: what waits could still become a character."""
    waiting = unfinished_bytes(data)
    assert 0 <= waiting <= min(3, len(data))
    if waiting and not data.endswith(b"\r"):
        end, rests = data[-waiting:], (b"\x80", b"\xbf", b"\x9f\x80", b"\xa0\x80", b"\x8f\x80\x80", b"\x90\x80\x80")
        assert any(_is_character(end + rest) for rest in (*rests, b"\x80\x80", b"\xbf\xbf"))


def _is_character(data):
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def test_bytes_that_only_continue_characters_are_let_through():
    assert unfinished_bytes(b"\x80\x80\x80\x80\x80") == 0
    assert unfinished_bytes(b"") == 0
