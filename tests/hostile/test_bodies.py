"""Bodies whose length is unclear, wrong or too much; what is appended is exactly what was meant, or nothing."""

from __future__ import annotations

import time

import pytest
from tests.hostile.wire import Answer, Wire, ask, content, post, put, request

LIMIT = 1 << 20  # append_bytes_max of the shared server
CHUNKED = "Transfer-Encoding: chunked"


def post_raw(path: str, *lines: str) -> bytes:
    """The head of an append; its body and what says its length are the caller's."""
    head = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: text/plain", *lines, "", "")
    return "\r\n".join(head).encode("latin-1")


def append(port: int, path: str, line: str, body: bytes) -> Answer:
    return ask(port, post_raw(path, line) + body, "POST")


def chunks(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))


# --- one length, and only one


@pytest.mark.parametrize(
    "lines",
    [
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5, 5",
        "Content-Length: -5",
        "Content-Length: +5",
        "Content-Length: 0x5",
        "Content-Length: 5.0",
        "Content-Length: 5 5",
        "Content-Length: \xb5",
        "Content-Length: ",
        "Content-Length: five",
        "Content-Length: 99999999999999999999",
        "Content-Length: 18446744073709551621",
    ],
)
def test_a_content_length_that_is_no_number_is_refused(port: int, path: str, lines: str) -> None:
    answer = append(port, path, lines, b"hello")
    assert answer.status in (400, 413)
    assert content(port, path) == b""


@pytest.mark.parametrize(
    "lines",
    [
        f"Content-Length: 5\r\n{CHUNKED}",
        f"{CHUNKED}\r\nContent-Length: 5",
        f"Content-Length: 0\r\n{CHUNKED}",
        f"{CHUNKED}\r\n{CHUNKED}",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: \x0bchunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: gzip, chunked",
    ],
)
def test_two_lengths_or_an_unknown_coding_are_refused(port: int, path: str, lines: str) -> None:
    with Wire(port) as wire:
        wire.send(post_raw(path, lines) + chunks(b"hello") + request("DELETE", path))
        assert wire.answer("POST").status == 400
        assert wire.is_ended()  # and what followed, smuggled or not, was not listened to
    assert content(port, path) == b""


def test_a_body_that_breaks_off_appends_nothing(port: int, path: str) -> None:
    for head in (post_raw(path, "Content-Length: 10"), post_raw(path, CHUNKED) + b"a\r\n"):
        with Wire(port) as wire:
            wire.send(head + b"12345")
    assert content(port, path) == b""


def test_what_is_behind_a_body_is_the_next_request(port: int, path: str) -> None:
    with Wire(port) as wire:
        wire.send(post_raw(path, "Content-Length: 5") + b"hello" + request("GET", path))
        assert wire.answer("POST").status == 204
        assert wire.answer().body == b"hello"


def test_garbage_behind_a_body_is_400_and_the_append_stands(port: int, path: str) -> None:
    with Wire(port) as wire:
        wire.send(post_raw(path, "Content-Length: 5") + b"hello\x00\x01\x02")
        assert wire.answer("POST").status == 204
        assert wire.answer().status == 400
        assert wire.is_ended()
    assert content(port, path) == b"hello"


def test_a_get_may_have_a_body_and_nobody_cares(port: int, path: str) -> None:
    post(port, path, b"hello")
    with Wire(port) as wire:
        wire.send(request("GET", path, body=b"what is this"), request("GET", path))
        assert wire.answer().body == b"hello"
        assert wire.answer().body == b"hello"


# --- chunks


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (chunks(b"hello"), b"hello"),
        (chunks(b"h", b"e", b"l", b"l", b"o"), b"hello"),
        (chunks(b"\r\n0\r\n\r\n"), b"\r\n0\r\n\r\n"),
        (b"5;name=value\r\nhello\r\n0\r\n\r\n", b"hello"),
        (b'5;a="b;c"\r\nhello\r\n0\r\n\r\n', b"hello"),
        (b"00005\r\nhello\r\n000\r\n\r\n", b"hello"),
        (b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", b"01234567890123456789"),
        (b"5\r\nhello\r\n0\r\nX-Trailer: y\r\n\r\n", b"hello"),
    ],
)
def test_chunks_append_exactly(port: int, path: str, body: bytes, expected: bytes) -> None:
    assert append(port, path, CHUNKED, body).status == 204
    assert content(port, path) == expected


def test_chunks_byte_by_byte_append_exactly(port: int, path: str) -> None:
    with Wire(port) as wire:
        message = post_raw(path, CHUNKED) + chunks(b"hello ", b"world")
        wire.send(*(bytes([byte]) for byte in message))
        assert wire.answer("POST").status == 204
    assert content(port, path) == b"hello world"


@pytest.mark.parametrize(
    "body",
    [
        b"x\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"4\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\n0\n\n",
        b"ffffffffffffffff1\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\r\nbad trailer\r\n\r\n",
    ],
)
def test_malformed_chunks_are_400_and_append_nothing(port: int, path: str, body: bytes) -> None:
    assert append(port, path, CHUNKED, body).status == 400
    assert content(port, path) == b""


def test_a_trailer_is_not_a_header(port: int, path: str) -> None:
    """Who checks headers in front of us does not see trailers (RFC 9110, section 6.5.1)."""
    body = b"5\r\nhello\r\n0\r\nStream-Closed: true\r\n\r\n"
    assert append(port, path, CHUNKED, body).status == 204
    assert "stream-closed" not in ask(port, request("HEAD", path), "HEAD").headers


def test_trailers_without_end_are_refused(port: int, path: str) -> None:
    """They would fill the memory: 4 MiB here, where a head may have 8 KiB."""
    with Wire(port) as wire:
        wire.send(post_raw(path, CHUNKED) + b"5\r\nhello\r\n0\r\n")
        for start in range(0, 4096, 64):
            wire.send(b"".join(b"X-%d: %b\r\n" % (index, b"x" * 1000) for index in range(start, start + 64)))
        wire.send(b"\r\n")
        assert wire.answer("POST").status in (400, 413, 431)
    assert content(port, path) == b""


# --- too much


def test_a_body_of_the_size_that_is_allowed(port: int, path: str) -> None:
    post(port, path, b"x" * LIMIT)
    assert len(content(port, path)) == LIMIT


@pytest.mark.parametrize("size", [LIMIT + 1, 10**12, 10**18])
def test_too_large_a_content_length_is_413_before_the_body(port: int, path: str, size: int) -> None:
    with Wire(port) as wire:
        wire.send(post_raw(path, f"Content-Length: {size}"))
        assert wire.answer("POST").status == 413
        assert wire.is_ended()


def test_too_large_a_body_is_413_although_the_client_goes_on_sending(port: int, path: str) -> None:
    with Wire(port) as wire:
        wire.send(post_raw(path, f"Content-Length: {4 * LIMIT}"), *[b"x" * 65536] * 64)
        assert wire.answer("POST").status == 413


def test_too_many_chunks_are_413(port: int, path: str) -> None:
    with Wire(port) as wire:
        wire.send(post_raw(path, CHUNKED))
        wire.send(*[b"10000\r\n" + b"x" * 65536 + b"\r\n"] * 20)
        assert wire.answer("POST").status == 413
        assert wire.is_ended()
    assert content(port, path) == b""


def test_one_chunk_that_is_too_large_is_413(port: int, path: str) -> None:
    with Wire(port) as wire:
        wire.send(post_raw(path, CHUNKED), b"fffffff\r\n", *[b"x" * 65536] * 20)
        assert wire.answer("POST").status == 413


# --- in pieces


def test_a_refused_head_is_answered_although_its_body_comes_later(port: int, path: str) -> None:
    """Head and body usually come in two segments, and a refusal must not wait for one that is not read."""
    lines = ("Stream-Seq: a", "Stream-Seq: b", "Content-Length: 5")
    with Wire(port) as wire:
        wire.send(post_raw(path, *lines))
        time.sleep(0.1)
        wire.send(b"hello")
        assert wire.answer("POST").status == 400


# --- Expect: 100-continue


def test_expect_is_answered_before_the_body_and_after_it(port: int, path: str) -> None:
    with Wire(port) as wire:
        wire.send(post_raw(path, "Content-Length: 5", "Expect: 100-continue"))
        assert wire.any_answer("POST").status == 100
        wire.send(b"hello")
        assert wire.answer("POST").status == 204
    assert content(port, path) == b"hello"


def test_expect_with_too_large_a_body_is_413_at_once(port: int, path: str) -> None:
    with Wire(port) as wire:
        wire.send(post_raw(path, f"Content-Length: {LIMIT + 1}", "Expect: 100-continue"))
        assert wire.any_answer("POST").status == 413


def test_an_unknown_expectation_is_417(port: int, path: str) -> None:
    answer = append(port, path, "Content-Length: 5\r\nExpect: cookies", b"hello")
    assert answer.status == 417
    assert content(port, path) == b""


# --- what a stream makes of it


def test_an_empty_append_is_400(port: int, path: str) -> None:
    post(port, path, b"", expected=400)


def test_an_append_without_a_content_type_is_400(port: int, path: str) -> None:
    assert ask(port, request("POST", path, body=b"x"), "POST").status == 400


def test_large_bodies_come_back_byte_for_byte(port: int) -> None:
    path = "/v1/stream/large"
    put(port, path, "application/octet-stream")
    bodies = [bytes([index]) * (65536 + index) for index in range(5)]  # above part_bytes: these travel in parts
    for body in bodies:
        post(port, path, body, "application/octet-stream")
    assert content(port, path) == b"".join(bodies)


def test_a_large_body_for_a_stream_that_is_not_there_is_404(port: int) -> None:
    post(port, "/v1/stream/not/there", b"x" * 200_000, expected=404)
