"""Request lines and headers that are wrong, too long, or meant to confuse."""

from __future__ import annotations

import pytest
from tests.hostile.wire import Wire, ask, content, post, request

MALFORMED = {
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
    "only a word": b"HELLO\r\n\r\n",
    "wrong version": b"GET /v1/stream/a HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "NUL in the path": b"GET /v1/stream/a\0b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "space in the path": b"GET /v1/stream/a b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "space before the colon": b"GET /v1/stream/a HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
    "header without a colon": b"GET /v1/stream/a HTTP/1.1\r\nHost: 127.0.0.1\r\nnonsense\r\n\r\n",
    "header without a name": b"GET /v1/stream/a HTTP/1.1\r\nHost: 127.0.0.1\r\n: value\r\n\r\n",
    "NUL in a header": b"GET /v1/stream/a HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\0b\r\n\r\n",
    "control byte in a header": b"GET /v1/stream/a HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\x01b\r\n\r\n",
    "bare CR in a header": b"GET /v1/stream/a HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\rY: b\r\n\r\n",
    "folded header": b"GET /v1/stream/a HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\r\n b\r\n\r\n",
    "non-ASCII header name": b"GET /v1/stream/a HTTP/1.1\r\nHost: 127.0.0.1\r\nX\xe9: a\r\n\r\n",
    "no host": b"GET /v1/stream/a HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/stream/a HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1\r\n\r\n",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_head_is_answered_with_400(port: int, data: bytes) -> None:
    answer = ask(port, data)
    assert answer.status == 400


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_head_byte_by_byte_is_answered_too(port: int, data: bytes) -> None:
    with Wire(port) as wire:
        wire.send(*(bytes([byte]) for byte in data))
        assert wire.answer().status in (400, 501)  # how a word goes on is not known when it is no method any more


@pytest.mark.parametrize("method", ["BREW", "FOO", "get", "GETX", "!"])
def test_a_method_that_nobody_knows_is_501(port: int, method: str) -> None:
    data = f"{method} /v1/stream/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    answer = ask(port, data)
    assert (answer.status, answer.code) == (501, "unknown_method")
    with Wire(port) as wire:
        wire.send(*(bytes([byte]) for byte in data))
        assert wire.answer().status == 501
        assert wire.is_ended()


def test_a_request_without_a_version_is_answered_and_the_connection_ends(port: int) -> None:
    with Wire(port) as wire:
        wire.send(b"GET /v1/stream/nothing\r\n\r\n")
        assert wire.answer().status in (400, 404)
        assert wire.is_ended()


@pytest.mark.parametrize(
    "target",
    [
        "/v1/stream/%00",
        "/v1/stream/a%00b",
        "/v1/stream/a%ff",
        "/v1/stream/%c3%28",
        "/v1/stream/%ed%a0%80",
        "/v1/stream/a\xff",
        "/v1/stream/..",
        "/v1/stream/../../etc/passwd",
        "/v1/stream/a/../b",
        "/v1/stream/%2e%2e/b",
        "/v1/stream/a/%2e%2e",
        "/v1/stream/a/.%2E/b",
        "/v1/stream/a%2f..%2fb",
        "/v1/stream/.",
        "/v1/stream/a/./b",
        "/v1/stream/a%zz",
        "/v1/stream/100%",
        "/v1/stream/a#b",
        "/v1/stream/ds/x",
        "/v1/stream/__new/x",
        "/v1/stream/",
        "/v1/stream//",
        "/v1/stream/a/",
        "/v1/stream//b",
        "/v1/stream/streams",
        "/v1/stream/" + "n" * 1025,
        "/v1/stream/a/" + "%c3%a9" * 513,
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE", "HEAD"])
def test_a_path_that_names_no_stream_is_refused(port: int, method: str, target: str) -> None:
    answer = ask(port, request(method, target, "Content-Type: text/plain", body=b"x"), method)
    assert answer.status == 400


@pytest.mark.parametrize("name", ["a%20b", "%2F", "a%2Fb/c", "%F0%9F%8C%8A", "a:b@c!$&'()*+,;=", "%25", "~.-_"])
def test_a_name_may_hold_anything_else(port: int, name: str) -> None:
    target = f"/v1/stream/odd/{name}"
    created = ask(port, request("PUT", target, "Content-Type: text/plain", body=b"here"), "PUT")
    assert created.status == 201
    assert created.headers["location"] == f"http://127.0.0.1{target}"
    assert content(port, target) == b"here"


@pytest.mark.parametrize(
    "query",
    [
        "offset=",
        "offset=abc",
        "offset=-2",
        "offset=1.5",
        "offset=%00",
        "offset=%ff",
        "offset=٣",
        "offset=0&offset=0",
        "offset=999999999999999999999",
        "offset=99999999999999999999",
        "offset=0&live=maybe",
        "live=sse",
        "live=long-poll",
        "offset=0&live=long-poll&timeout_ms=-1",
        "offset=0&live=long-poll&timeout_ms=1e9",
        "offset=0&max_bytes=0",
    ],
)
def test_a_query_that_means_nothing_is_refused(port: int, path: str, query: str) -> None:
    target = f"{path}?{query}".encode()
    answer = ask(port, b"GET " + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert answer.status == 400


def test_a_path_outside_of_everything(port: int) -> None:
    for target in ("/", "/nothing", "/v1", "/v1/stream", "//", "/healthz/", "/%2e%2e/"):
        assert ask(port, request("GET", target)).status in (400, 404)
    assert ask(port, request("GET", "*")).status == 405
    assert ask(port, request("OPTIONS", "*"), "OPTIONS").status == 204


def test_a_huge_header_is_431(port: int) -> None:
    assert ask(port, request("GET", "/healthz", "X-Long: " + "x" * 9000)).status == 431


def test_many_small_headers_are_431(port: int) -> None:
    lines = [f"X-{index}: y" for index in range(2000)]
    assert ask(port, request("GET", "/healthz", *lines)).status == 431


def test_a_huge_url_is_431(port: int) -> None:
    assert ask(port, request("GET", "/v1/stream/" + "u" * 9000)).status == 431


def test_a_head_without_an_end_is_431_as_soon_as_it_is_too_long(port: int) -> None:
    with Wire(port) as wire:
        wire.send(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        wire.send(*[b"x" * 1000] * 20)
        assert wire.answer().status == 431
        assert wire.is_ended()


def test_a_head_of_the_size_that_is_allowed(port: int) -> None:
    assert ask(port, request("GET", "/healthz", "X-Long: " + "x" * 7000)).status == 200


@pytest.mark.parametrize(
    "line",
    [
        "Producer-Id: a",
        "Producer-Epoch: 0",
        "Producer-Id: a\r\nProducer-Epoch: 0\r\nProducer-Seq: -1",
        "Producer-Id: a\r\nProducer-Epoch: 0\r\nProducer-Seq: 1.0",
        "Producer-Id: a\r\nProducer-Epoch: \xb2\r\nProducer-Seq: 0",
        "Producer-Id: a\r\nProducer-Epoch: 9007199254740992\r\nProducer-Seq: 0",
        "Producer-Id: \r\nProducer-Epoch: 0\r\nProducer-Seq: 0",
        "Producer-Id: a\r\nProducer-Id: b\r\nProducer-Epoch: 0\r\nProducer-Seq: 0",
        "Stream-Seq: ",
        "Stream-Seq: a\r\nStream-Seq: b",
    ],
)
def test_protocol_headers_that_mean_nothing(port: int, path: str, line: str) -> None:
    post(port, path, b"x", "text/plain", line, expected=400)
    assert content(port, path) == b""


@pytest.mark.parametrize(
    "line",
    [
        "Stream-TTL: -1",
        "Stream-TTL: 1.5",
        "Stream-TTL: 01",
        "Stream-TTL: 99999999999999999999",
        "Stream-TTL: 1\r\nStream-Expires-At: 2040-01-01T00:00:00Z",
        "Stream-Expires-At: tomorrow",
        "Stream-Expires-At: 2040-13-01T00:00:00Z",
        "Stream-Expires-At: 0000-01-01T00:00:00Z",
        "Stream-Expires-At: 2040-01-01",
    ],
)
def test_lifetimes_that_mean_nothing(port: int, line: str) -> None:
    assert ask(port, request("PUT", "/v1/stream/lifetime", line), "PUT").status == 400
    assert ask(port, request("HEAD", "/v1/stream/lifetime"), "HEAD").status == 404


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z"])
def test_lifetimes_at_the_ends_of_the_calendar(port: int, moment: str) -> None:
    answer = ask(port, request("PUT", f"/v1/stream/ends/{moment[:4]}", f"Stream-Expires-At: {moment}"), "PUT")
    assert answer.status in (201, 400)


def test_a_content_type_comes_back_as_it_was_given(port: int) -> None:
    for index, kind in enumerate(("text/plain; a=\xe9", "x/y;z=\t1", "weird/*", "TEXT/Html")):
        target = f"/v1/stream/types/{index}"
        assert ask(port, request("PUT", target, f"Content-Type: {kind}"), "PUT").status == 201
        assert ask(port, request("HEAD", target), "HEAD").headers["content-type"] == kind
