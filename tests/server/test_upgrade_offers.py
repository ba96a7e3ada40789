"""Requests that offer another protocol, as `curl --http2` and Java's HttpClient send them (RFC 9110, section 7.8): the
offer is not taken, and the request is served as if it had not been made."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import ServerProcess
from tests.hostile.wire import Wire, ask, content, post, put, request

from millstream.protocol.http.requests import PlainAppend, Request
from millstream.server.http_listener import HttpListener
from millstream.server.http_receiving import RequestReceiver
from millstream.server.settings import Settings

H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
OFFERS = {
    "h2c": H2C,
    "websocket": ("Upgrade: websocket", "Connection: keep-alive, upgrade"),
    "several": ("upgrade: h2c", "UPGRADE: TLS/1.0, foo", "connection: x", "connection: UPGRADE"),
    "padded": ("Upgrade: \t h2c \t", "Connection:\tUpgrade \t"),
    "not meant for us": ("Upgrade: h2c",),
    "without saying what": ("Connection: upgrade",),
    "and then the end": ("Connection: close, upgrade", "Upgrade: h2c"),
}
TEXT = "Content-Type: text/plain"
CHUNKED = b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"


class Receiver(RequestReceiver):
    """Notes what it is to serve."""

    def __init__(self, listener: HttpListener) -> None:
        super().__init__(listener)
        self.served: list[Request] = []
        self.refused: list[tuple[int, str]] = []

    def serve(self, request: Request, append: object = None) -> None:
        self.served.append(request)
        self._held -= request.body_size

    def _reject(self, status: int, code: str, message: str) -> None:
        self._rejection = (status, code, message)
        self.refused.append((status, code))


def received(*pieces: bytes, head_bytes_max: int = 8192) -> tuple[list[tuple[object, ...]], list[tuple[int, str]]]:
    """What is served of bytes that come in these pieces, and what is refused."""

    async def run() -> Receiver:
        receiver = Receiver(HttpListener(Settings(listen="127.0.0.1:0", head_bytes_max=head_bytes_max)))
        for piece in pieces:
            receiver.data_received(piece)
        return receiver

    receiver = asyncio.run(run())
    told = [(one.method, one.target, one.body, one.keep_alive, one.version) for one in receiver.served]
    return told, receiver.refused


def sent(*lines: str) -> bytes:
    """Two appends, a create with a body in chunks and a read, each with these further header lines."""
    return b"".join(
        (
            request("POST", "/v1/stream/a", TEXT, *lines, body=b"hello"),
            request("POST", "/v1/stream/a?x", *lines, TEXT, body=b"x" * 90),
            request("PUT", "/v1/stream/b", TEXT, *lines, "Transfer-Encoding: chunked").replace(
                b"Content-Length: 0\r\n", b""
            )
            + CHUNKED,
            request("GET", "/v1/stream/a?offset=-1", *lines),
        )
    )


WANTED = [
    (b"POST", b"/v1/stream/a", b"hello", True, "1.1"),
    (b"POST", b"/v1/stream/a?x", b"x" * 90, True, "1.1"),
    (b"PUT", b"/v1/stream/b", b"hello", True, "1.1"),
    (b"GET", b"/v1/stream/a?offset=-1", b"", True, "1.1"),
]


@pytest.mark.parametrize("lines", list(OFFERS.values())[:-1], ids=list(OFFERS)[:-1])
def test_requests_with_an_offer_are_served_whole(lines: tuple[str, ...]) -> None:
    assert received(sent(*lines)) == (WANTED, [])


@pytest.mark.parametrize("offer", ["h2c", "padded", "several"])
def test_wherever_they_are_cut(offer: str) -> None:
    data = sent(*OFFERS[offer])
    for at in range(1, len(data)):
        assert received(data[:at], data[at:]) == (WANTED, []), f"cut at {at}"
    assert received(*(data[at : at + 1] for at in range(len(data)))) == (WANTED, [])


def test_an_offer_with_the_wish_to_close_is_answered_once() -> None:
    offer = request("POST", "/v1/stream/a", TEXT, *OFFERS["and then the end"], body=b"hello")
    assert received(offer) == ([(b"POST", b"/v1/stream/a", b"hello", False, "1.1")], [])


def test_an_offer_does_not_widen_a_limit_or_hide_a_mistake() -> None:
    large = request("POST", "/v1/stream/a", TEXT, *H2C, "X: " + "x" * 900, body=b"hello")
    for cut in (1, 300, len(large) - 6, len(large)):
        served, refused = received(large[:cut], large[cut:], head_bytes_max=1024)
        assert (served, set(refused)) == ([], {(431, "head_too_large")})
    twice = request("POST", "/v1/stream/a", TEXT, TEXT, *H2C, body=b"hello")
    assert received(twice)[0] == []
    assert received(twice)[1][0] == (400, "repeated_header")
    assert received(request("POST", "/v1/stream/a", *H2C, "Expect: tea", body=b"hello"))[1][0][0] == 417


def test_what_is_known_of_header_lines_with_an_offer_is_what_the_parser_made_of_them() -> None:
    async def run() -> tuple[list[Request], object]:
        listener = HttpListener(Settings(listen="127.0.0.1:0"))
        receiver = Receiver(listener)
        offer = request("POST", "/v1/stream/a", TEXT, *H2C, body=b"hello")
        receiver.data_received(offer)
        return receiver.served, listener.heads.recall(offer.replace(b"hello", b"again"))

    (parsed,), recalled = asyncio.run(run())
    assert isinstance(recalled, Request | PlainAppend)
    known = recalled if isinstance(recalled, Request) else recalled.request
    assert known.headers == parsed.headers
    assert known.keep_alive


# --- over the wire


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("offers"), {"part_bytes": "64KiB"})
    server.start()
    yield server
    assert server.stop() == 0


@pytest.fixture
def path(running: ServerProcess, request: pytest.FixtureRequest) -> str:
    return "/v1/stream/offers/" + re.sub(r"\W+", "-", request.node.name)


@pytest.mark.parametrize("lines", OFFERS.values(), ids=OFFERS)
def test_nothing_of_a_body_is_lost(running: ServerProcess, path: str, lines: tuple[str, ...]) -> None:
    port = running.port
    assert ask(port, request("PUT", path, TEXT, *lines, body=b"a"), "PUT").status == 201
    post(port, path, b"b", "text/plain", *lines)
    post(port, path, b"c" * 300_000, "text/plain", *lines)
    post(port, path, b"d", "text/plain", "Stream-Closed: true", *lines)
    assert content(port, path) == b"ab" + b"c" * 300_000 + b"d"
    assert ask(port, request("HEAD", path, *lines), "HEAD").headers["stream-closed"] == "true"


def test_the_connection_goes_on(running: ServerProcess, path: str) -> None:
    put(running.port, path)
    with Wire(running.port) as wire:
        for _ in range(3):
            wire.send(request("POST", path, TEXT, *H2C, body=b"x"))
            assert wire.answer("POST").status == 204
        wire.send(request("GET", path, *H2C) + request("GET", path))
        assert [wire.answer().body, wire.answer().body] == [b"xxx", b"xxx"]


def test_an_expectation_beside_an_offer_is_met(running: ServerProcess, path: str) -> None:
    put(running.port, path)
    head = request("POST", path, TEXT, *H2C, "Expect: 100-continue", body=b"x")[:-1]
    with Wire(running.port) as wire:
        wire.send(head)
        assert wire.any_answer("POST").status == 100
        wire.send(b"x")
        assert wire.answer("POST").status == 204
    assert content(running.port, path) == b"x"


@pytest.mark.parametrize("size", [5, 200_000])
def test_a_snapshot_is_published_whole(running: ServerProcess, size: int) -> None:
    port, body = running.port, b"s" * size
    ask(port, request("PUT", "/ds/offered"), "PUT")
    path = f"/ds/offered/doc{size}"
    assert ask(port, request("PUT", path, TEXT, body=b"hello"), "PUT").status == 201
    target = f"{path}/snapshot/{5:020d}"
    assert ask(port, request("PUT", target, TEXT, *H2C, body=body), "PUT").status == 204
    assert content(port, target) == body


def test_a_tunnel_is_refused(running: ServerProcess) -> None:
    with Wire(running.port) as wire:
        wire.send(b"CONNECT example.com:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n\x16\x03\x01")
        assert wire.answer("POST").status == 405
        assert wire.is_ended()


@pytest.mark.parametrize("size", [5, 2_000_000])
def test_curl_loses_nothing(running: ServerProcess, path: str, tmp_path: Path, size: int) -> None:
    """It offers h2c with its first request, and waits for 100 before it sends a large body."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.fail("curl is not installed; `apt-get install curl` or the like has it.")
    body = tmp_path / "body"
    body.write_bytes(b"y" * size)
    common = [curl, "--http2", "-sS", "--fail", "-H", TEXT, "--data-binary", f"@{body}"]
    url = f"http://127.0.0.1:{running.port}{path}"
    subprocess.run([*common, "-X", "PUT", url], check=True, timeout=30)
    subprocess.run([*common, "-H", "Transfer-Encoding: chunked", url], check=True, timeout=30)
    read = subprocess.run([curl, "--http2", "-sS", "--fail", url], check=True, timeout=30, capture_output=True)
    assert read.stdout == body.read_bytes() * 2
