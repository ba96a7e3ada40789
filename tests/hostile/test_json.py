"""JSON streams keep what they are given byte for byte, and take nothing that would spoil a reader's array."""

from __future__ import annotations

import json
import time

import pytest
from tests.hostile.wire import Wire, ask, content, post, put, request

JSON = "application/json"


@pytest.fixture
def stream(path: str, port: int) -> str:
    """A fresh JSON stream."""
    put(port, f"{path}/json", JSON)
    return f"{path}/json"


@pytest.mark.parametrize(
    "message",
    [
        b"12345678901234567890",
        b"1.0",
        b"-0.0",
        b"1E400",
        b"0.1000000000000000055511151231257827",
        b'{"b":1,"a":2,"b":3}',
        b'{ "a" : [ 1 , 2 ] }',
        b'"\\u00e9\\/\\ud83d\\ude00"',
        '"é\u2028"'.encode(),
        b'""',
        b"null",
        b"false",
    ],
)
def test_a_message_comes_back_exactly(port: int, stream: str, message: bytes) -> None:
    post(port, stream, message, JSON)
    assert content(port, stream) == b"[" + message + b"]"
    post(port, stream, b"[%b, %b]" % (message, message), JSON)
    assert content(port, stream) == b"[" + b",".join([message] * 3) + b"]"


def test_an_array_is_a_batch_and_only_at_the_top(port: int, stream: str) -> None:
    post(port, stream, b' [1, [2, 3], {"a":[4]}]\n', JSON)
    assert content(port, stream) == b'[1,[2, 3],{"a":[4]}]'


BROKEN = [
    b"",
    b" ",
    b"{",
    b"}",
    b"[1",
    b"1]",
    b"[1,]",
    b"[,1]",
    b"[1 2]",
    b"1 2",
    b"1,2",
    b'{"a":1,}',
    b'{"a"}',
    b'{"a":}',
    b"{a:1}",
    b"{'a':1}",
    b"{1:2}",
    b"tru",
    b"truee",
    b"nul",
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"-",
    b"+1",
    b"01",
    b"-01",
    b"1.",
    b".5",
    b"1e",
    b"1e+",
    b"0x10",
    b"1_000",
    b'"abc',
    b'"\\x41"',
    b'"\\u12"',
    b'"\\u12G4"',
    b'"a\nb"',
    b'"a\tb"',
    b'"a\0b"',
    b'"\x1f"',
    b"\xef\xbb\xbf1",
    b"// comment\n1",
    b"1 // comment",
    b"\x00",
    b"1\x00",
    b"\x0b1",
]


@pytest.mark.parametrize("body", BROKEN)
def test_what_is_no_json_is_400(port: int, stream: str, body: bytes) -> None:
    """One such message would make every later read of the stream unreadable."""
    post(port, stream, body, JSON, expected=400)
    assert content(port, stream) == b"[]"


@pytest.mark.parametrize("body", BROKEN[4:])
def test_what_is_no_json_is_400_inside_of_json_too(port: int, stream: str, body: bytes) -> None:
    for whole in (b"[0,%b]" % body, b'{"key":%b}' % body, b'[[{"key":%b}]]' % body):
        try:
            json.loads(whole)
        except ValueError:
            post(port, stream, whole, JSON, expected=400)
    assert content(port, stream) == b"[]"


@pytest.mark.parametrize("text", [b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\xaf"])
def test_invalid_utf_8_is_400_wherever_it_is(port: int, stream: str, text: bytes) -> None:
    for body in (b'"%b"', b'{"%b":1}', b'{"a":"%b"}', b'[1,"%b"]', b'[1,{"a":["%b"]}]'):
        post(port, stream, body % text, JSON, expected=400)
    assert content(port, stream) == b"[]"


@pytest.mark.parametrize("depth", [5_000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_deep_nesting_is_400(port: int, stream: str, depth: int, opening: bytes, closing: bytes) -> None:
    for body in (opening * depth + b"1" + closing * depth, opening * depth):
        post(port, stream, body, JSON, expected=400)
    assert content(port, stream) == b"[]"


def test_an_empty_array_appends_nothing_and_says_so(port: int, stream: str) -> None:
    post(port, stream, b"[]", JSON, expected=400)
    post(port, stream, b" [ ] ", JSON, expected=400)
    post(port, stream, b"[[]]", JSON)
    assert content(port, stream) == b"[[]]"


def test_an_empty_array_creates_an_empty_stream(port: int, path: str) -> None:
    target = f"{path}/created"
    assert ask(port, request("PUT", target, f"Content-Type: {JSON}", body=b"[]"), "PUT").status == 201
    assert content(port, target) == b"[]"


def test_a_large_batch_is_kept_whole(port: int, stream: str) -> None:
    """Large enough to travel in parts."""
    messages = [b'{"n": %d, "filler": "%b"}' % (index, b"x" * (index % 700)) for index in range(2000)]
    post(port, stream, b"[" + b" , ".join(messages) + b"]", JSON)
    assert content(port, stream) == b"[" + b",".join(messages) + b"]"


def test_a_broken_batch_leaves_nothing_behind(port: int, stream: str) -> None:
    body = b"[" + b",".join([b'"' + b"x" * 1000 + b'"'] * 500) + b",]"
    post(port, stream, body, JSON, expected=400)
    assert content(port, stream) == b"[]"


@pytest.mark.parametrize("value", ["TRUE", "True", "true"])
def test_stream_closed_counts_in_any_case(port: int, stream: str, value: str) -> None:
    post(port, stream, b"1", JSON, f"Stream-Closed: {value}")
    answer = post(port, stream, b"2", JSON, expected=409)
    assert answer.headers["stream-closed"] == "true"
    assert content(port, stream) == b"[1]"


@pytest.mark.parametrize("value", ["false", "yes", "1", ""])
def test_other_values_do_not_close(port: int, stream: str, value: str) -> None:
    post(port, stream, b"1", JSON, f"Stream-Closed: {value}")
    post(port, stream, b"2", JSON)


# --- offsets


@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
def test_an_offset_beyond_the_tail_is_400_at_once(port: int, stream: str, live: str) -> None:
    post(port, stream, b"1", JSON)
    started = time.monotonic()
    answer = ask(port, request("GET", f"{stream}?offset=2{live}"))
    assert answer.status == 400
    assert time.monotonic() - started < 0.3


@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
def test_an_offset_inside_a_message_is_400(port: int, stream: str, live: str) -> None:
    post(port, stream, b'"hello"', JSON)
    with Wire(port) as wire:
        wire.send(request("GET", f"{stream}?offset=3{live}") + request("GET", "/healthz"))
        assert wire.answer().status == 400
        assert wire.answer().body == b"ok\n"


def test_a_long_poll_at_the_tail_waits_and_does_not_spin(port: int, stream: str) -> None:
    post(port, stream, b"1", JSON)
    started = time.monotonic()
    answer = ask(port, request("GET", f"{stream}?offset=1&live=long-poll&timeout_ms=300"))
    assert answer.status == 204
    assert 0.25 < time.monotonic() - started < 1.0
