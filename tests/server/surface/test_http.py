"""HTTP itself: how requests are read, whatever they ask for."""

from __future__ import annotations

import pytest
from tests.conftest import ServerProcess
from tests.hostile.wire import Answer, Wire, ask, content, post, put, request

TEXT = "Content-Type: text/plain"


@pytest.fixture
def port(shared: ServerProcess) -> int:
    return shared.port


# --- values


PADDINGS = ("{}", "{} ", "  {}", "\t{}\t", "{} \t  ")


def test_white_space_around_a_value_is_not_part_of_it(port, path):
    """RFC 9112, section 5.1."""
    put(port, path)
    for number, padding in enumerate(PADDINGS):
        producer = [f"Producer-Id:{padding.format('p')}", f"Producer-Epoch:{padding.format(0)}"]
        post(port, path, b"x", "text/plain", *producer, f"Producer-Seq:{padding.format(number)}", expected=200)
    for padding in PADDINGS:
        post(
            port,
            path,
            b"x",
            "text/plain",
            f"Stream-Seq:{padding.format('b')}",
            expected=204 if padding == "{}" else 409,
        )
    for number, padding in enumerate(PADDINGS):
        name = f"{path}-{number}"
        lines = (f"Stream-TTL:{padding.format(36)}", f"Content-Type:{padding.format('text/x; a=b')}")
        assert ask(port, request("PUT", name, *lines), "PUT").status == 201
        assert ask(port, request("HEAD", name), "HEAD").headers["content-type"] == "text/x; a=b"
        post(port, name, b"x", "text/x", f"Expect:{padding.format('100-continue')}")
        post(port, name, b"x", "text/x", f"Stream-Closed:{padding.format('true')}")
        assert ask(port, request("HEAD", name), "HEAD").headers["stream-closed"] == "true"


def test_nor_is_it_for_header_lines_that_are_known(port, path):
    put(port, path)
    with Wire(port) as wire:
        for _ in range(3):
            wire.send(request("POST", path, "Content-Type:\ttext/plain \t", body=b"x"))
            assert wire.answer("POST").status == 204
    assert content(port, path) == b"xxx"


def test_many_tiny_header_lines_are_counted_in_full(port):
    lines = "a:\r\n" * 16_000
    answer = ask(port, f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n".encode())
    assert (answer.status, answer.code) == (431, "head_too_large")
    distinct = "".join(f"{number:x}:\r\n" for number in range(6000))
    assert len(distinct) > 32 << 10
    assert ask(port, f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n{distinct}\r\n".encode()).status == 431


# --- HTTP/1.0


def test_http_1_0_is_not_told_to_continue(port, path):
    """RFC 9110, section 10.1.1: it knows no interim answers."""
    put(port, path)
    with Wire(port) as wire:
        wire.send(request("POST", path, TEXT, "Expect: 100-continue", body=b"x", version="1.0"))
        assert wire.any_answer("POST").status == 204
    assert content(port, path) == b"x"


def test_a_connection_of_http_1_0_ends_with_the_answer_and_that_is_said(port, path):
    put(port, path)
    with Wire(port) as wire:
        wire.send(request("GET", path, "Connection: keep-alive", version="1.0"))
        answer = wire.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert wire.is_ended()


def test_who_names_no_host_gets_a_location_without_one(port, path):
    answer = ask(port, f"PUT {path} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode(), "PUT")
    assert (answer.status, answer.headers["location"]) == (201, path)
    answer = ask(port, b"PUT /ds/hostless HTTP/1.0\r\nContent-Length: 0\r\n\r\n", "PUT")
    assert (answer.status, answer.headers["location"]) == (201, "/ds/hostless")


# --- which host


def of_host(port: int, path: str, host: str, version: str = "1.1", method: str = "GET") -> Answer:
    data = f"{method} {path} HTTP/{version}\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n"
    return ask(port, data.encode(), method)


HOSTS = ["", "127.0.0.1:1@evil", "evil@127.0.0.1", "127.0.0.1/", "127.0.0.1 x", "[::1", "::1", "127.0.0.1:x", "a,b"]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_host_that_names_none_is_refused(port, path, host, version):
    assert of_host(port, path, host, version, "PUT").status == 400
    assert of_host(port, path, host, version, "OPTIONS").status == 400
    assert of_host(port, path, "127.0.0.1").status == 404


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:80", "LOCALHOST", "a.localhost", "[::1]", "[::1]:4437", "127.0.0.1:"]
)
def test_a_host_of_this_machine_is_served(port, host):
    assert of_host(port, "/healthz", host).status == 200


def test_a_whole_url_as_target_is_held_to_its_own_host(port, path):
    """RFC 9112, section 3.2.2: it counts, whatever the header says."""
    with Wire(port) as wire:
        wire.send(request("PUT", f"http://localhost:99{path}?x=1", TEXT, body=b"x"))
        created = wire.answer("PUT")
        assert (created.status, created.headers["location"]) == (201, f"http://localhost:99{path}")
        assert content(port, path) == b"x"
        wire.send(request("GET", f"http://evil.example{path}"))
        answer = wire.answer()
        assert (answer.status, answer.code) == (421, "unknown_host")
    for version in ("1.0", "1.1"):
        assert ask(port, request("GET", f"HTTP://evil.example{path}", version=version)).status == 421
        assert ask(port, request("GET", f"http://127.0.0.1@evil.example{path}", version=version)).status == 400
    assert ask(port, f"GET http://evil.example{path} HTTP/1.0\r\n\r\n".encode()).status == 421
    assert ask(port, f"GET http://127.0.0.1{path} HTTP/1.1\r\n\r\n".encode()).status == 400


# --- OPTIONS


STREAM = {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"}


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/healthz", {"GET", "HEAD", "OPTIONS"}),
        ("/metrics", {"GET", "HEAD", "OPTIONS"}),
        ("/v1/stream/a", STREAM),
        ("/ds/bucket/a", STREAM),
        ("/bucket", {"GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"}),
        ("/bucket/streams", {"GET", "HEAD", "OPTIONS"}),
        ("/bucket/streams/feed", {"GET", "OPTIONS"}),
        ("/bucket/streams/leases/x", {"POST", "DELETE", "OPTIONS"}),
        ("/bucket/streams/transactions/a/1/p", {"PUT", "OPTIONS"}),
        ("/bucket/a/snapshot", {"GET", "HEAD", "OPTIONS"}),
        ("/bucket/a/snapshot/00000000000000000000", {"GET", "HEAD", "PUT", "DELETE", "OPTIONS"}),
        ("/bucket/a/bootstrap", {"GET", "HEAD", "OPTIONS"}),
    ],
)
def test_options_are_those_of_the_resource(port, path, methods):
    answer = ask(port, request("OPTIONS", path), "OPTIONS")
    assert answer.status == 204
    assert set(answer.headers["allow"].split(", ")) == methods
    assert set(answer.headers["access-control-allow-methods"].split(", ")) == methods


@pytest.mark.parametrize("path", ["/v1/stream/..", "/v1/nothing", "/", "/bucket/a/nothing", "/bucket/a/snapshot/x"])
def test_a_page_that_asks_first_is_let_through_to_be_told_what_is_wrong(port, path):
    answer = ask(port, request("OPTIONS", path, "Origin: http://localhost"), "OPTIONS")
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == "http://localhost"
    assert "PUT" in answer.headers["access-control-allow-methods"]


# --- what is not there yet, or not meant


def test_what_is_not_supported_never_succeeds_as_something_else(port, path):
    later = ("Stream-Forked-From: /v1/stream/x", "Stream-Fork-Offset: 1", "Stream-Record-Match: 1")
    for line in later:
        answer = ask(port, request("PUT", path, TEXT, line, body=b"x"), "PUT")
        assert (answer.status, answer.code) == (501, "not_supported")
    assert ask(port, request("HEAD", path), "HEAD").status == 404
    put(port, path)
    for line in later:
        for _ in range(3):
            post(port, path, b"x", "text/plain", line, expected=501)
        assert ask(port, request("DELETE", path, line), "DELETE").status == 501
    for query in ("record=1", "offset=-1&tail_records=1", "offset=-1&live=sse&record_view=x"):
        assert ask(port, request("GET", f"{path}?{query}")).status == 501
        assert ask(port, request("HEAD", f"{path}?{query}"), "HEAD").status == 501
    assert content(port, path) == b""


@pytest.mark.parametrize("mode", ["", "&live=long-poll", "&live=sse"])
def test_a_cursor_without_an_offset_is_refused_in_every_mode(port, path, mode):
    put(port, path)
    answer = ask(port, request("GET", f"{path}?cursor=5{mode}"))
    assert (answer.status, answer.code) == (400, "offset_missing")
    assert b"offset" in answer.body


@pytest.mark.parametrize("size", [5, 700_000])
def test_a_body_is_what_it_says(port, path, size):
    body = b"x" * size
    ask(port, request("PUT", "/ds/whole"), "PUT")
    stream = f"/ds/whole/s{size}"
    assert ask(port, request("PUT", stream, TEXT, body=body), "PUT").status == 201
    snapshot = f"{stream}/snapshot/{size:020d}"
    part = f"/ds/whole/streams/transactions/app/1/p{size}"
    for method, target in (("PUT", path), ("POST", stream), ("PUT", snapshot), ("PUT", part)):
        answer = ask(port, request(method, target, TEXT, "Content-Encoding: gzip", body=body), method)
        assert (answer.status, answer.code) == (415, "unsupported_encoding")
    for method, target in (("PUT", path), ("POST", stream), ("PUT", snapshot)):
        answer = ask(port, request(method, target, "Content-Type: te xt/plain", body=body), method)
        assert (answer.status, answer.code) == (400, "bad_content_type")
    assert content(port, stream) == body
    assert ask(port, request("HEAD", path), "HEAD").status == 404
    post(port, stream, b"y", "text/plain", "Content-Encoding: identity")
    assert ask(port, request("PUT", snapshot, TEXT, "Content-Encoding: identity", body=body), "PUT").status == 204
