"""A client that reads slowly gets everything; one that takes nothing is dropped, over HTTP and over S3P."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time

import pytest
from tests.server.s3p.wire import Wire

from millstream.protocol.s3p.encoder import encode_append, encode_create, encode_read
from millstream.protocol.s3p.reply_decoder import ErrorReply, ReplyDecoder

TIMEOUT_S = 1.0
STEADILY_S = 6.0
PIECE = 64 << 10
TEXT = b"0123456789abcdef" * (1 << 20)  # more than kernels hold for a connection
RECORDS = 200


@pytest.fixture(scope="module")
def running(module_server):
    server = module_server(
        {"drain_timeout_s": TIMEOUT_S, "s3p.append_bytes_max": "4MiB", "s3p.record_bytes_max": "1MiB"}
    )
    for name in ("text", "closed"):
        ask(server.port, "PUT", f"/v1/stream/{name}")
        for at in range(0, len(TEXT), 4 << 20):
            ask(server.port, "POST", f"/v1/stream/{name}", TEXT[at : at + (4 << 20)])
    ask(server.port, "POST", "/v1/stream/closed", b"", {"Stream-Closed": "true"})
    ask(server.port, "PUT", "/v1/stream/large")
    for _ in range(2):
        ask(server.port, "POST", "/v1/stream/large", TEXT)
    with Wire(server.s3p_port) as wire:
        wire.send(encode_create(b"records"))
        wire.reply()
        for number in range(RECORDS):
            wire.send(encode_append(b"records", [b"%05d" % number + b"x" * 100_000]))
            assert not isinstance(wire.reply(), ErrorReply)
    return server


def ask(port, method, path, body=b"", headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Content-Type": "text/plain", **(headers or {})})
        answer = connection.getresponse()
        answer.read()
        assert answer.status < 300


class Slow:
    """A connection that is read from when the test says so, over a small buffer."""

    def __init__(self, port, *requests):
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)
        self._socket.settimeout(10)
        self._socket.connect(("127.0.0.1", port))
        for request in requests:
            self._socket.sendall(request)

    def steadily(self, seconds=STEADILY_S):
        """What comes within this time, a little five times a second."""
        got, end = bytearray(), time.monotonic() + seconds
        while time.monotonic() < end:
            got += self._socket.recv(PIECE)
            time.sleep(0.2)
        return bytes(got)

    def rest(self):
        got = bytearray()
        while piece := self._socket.recv(1 << 20):
            got += piece
        return bytes(got)

    def close(self):
        self._socket.close()


@pytest.fixture
def slow():
    with contextlib.ExitStack() as opened:

        def start(port, *requests):
            connection = Slow(port, *requests)
            opened.callback(connection.close)
            return connection

        yield start


def get(path, *lines, version="1.1"):
    return "\r\n".join([f"GET {path} HTTP/{version}", "Host: localhost", *lines, "", ""]).encode()


@pytest.mark.parametrize("path", ["/v1/stream/text", "/v1/stream/text?max_bytes=1000000"])
def test_a_slow_reader_gets_all(running, slow, path):
    """One long answer, and many short ones that were asked for at once."""
    count = 1 if path == "/v1/stream/text" else 16
    connection = slow(running.port, get(path) * (count - 1) + get(path, "Connection: close"))
    got = connection.steadily() + connection.rest()
    assert got.count(b"HTTP/1.1 200 OK") == count
    assert got.endswith(TEXT[-1000:] if count == 1 else TEXT[: 1_000_000 // 16 * 16][-1000:])
    assert len(got) > (len(TEXT) if count == 1 else 16 * 900_000)


def test_a_slow_reader_of_large_messages_gets_all(running, slow):
    """Each is more than all buffers on the way hold: none is handed over while the one before has not been taken."""
    connection = slow(running.port, get("/v1/stream/large", "Connection: close"))
    head, _, body = (connection.steadily() + connection.rest()).partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % (2 * len(TEXT)) in head
    assert body == 2 * TEXT


def test_an_answer_without_a_length_that_is_cut_does_not_look_like_its_end(running, slow):
    """HTTP/1.0 knows no chunks, and rows no end: only a reset tells that there is more."""
    connection = slow(running.port, get("/_default/streams/messages", version="1.0"))
    time.sleep(2 * TIMEOUT_S + 1)
    with pytest.raises(ConnectionResetError):
        connection.rest()


def test_a_long_answer_to_http_1_0_has_a_length_and_so_no_other_coding(running, slow):
    connection = slow(running.port, get("/v1/stream/text", "Accept-Encoding: gzip", version="1.0"))
    head, _, body = connection.rest().partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(TEXT) in head
    assert b"Content-Encoding" not in head
    assert body == TEXT


def test_a_slow_follower_gets_all(running, slow):
    connection = slow(running.port, get("/v1/stream/closed?offset=-1&live=sse", version="1.0"))
    got = connection.steadily() + connection.rest()
    assert b'"streamClosed":true' in got
    assert got.count(b"0123456789abcdef") >= len(TEXT) // 16 - 200  # but for where events end


def test_a_slow_reader_of_records_gets_all(running, slow):
    connection = slow(running.s3p_port, encode_read(b"records", count=RECORDS) * 8, b"nonsense\r\n")
    got = connection.steadily() + connection.rest()
    decoder = ReplyDecoder()
    decoder.feed(got)
    replies = list(iter(decoder.next_reply, None))
    assert len(replies) == 9
    assert isinstance(replies[-1], ErrorReply), "what ended the connection comes through as well"


@pytest.mark.parametrize("kind", ["long", "close", "sse", "s3p", "s3p error"])
def test_who_takes_nothing_is_dropped_in_time(running, slow, kind):
    requests = {
        "long": get("/v1/stream/text"),
        "close": get("/v1/stream/text?max_bytes=1000000") * 15 + get("/v1/stream/text", "Connection: close"),
        "sse": get("/v1/stream/text?offset=-1&live=sse"),
        "s3p": encode_read(b"records", count=RECORDS) * 8,
        "s3p error": encode_read(b"records", count=RECORDS) * 8 + b"nonsense\r\n",
    }
    connection = slow(running.s3p_port if kind.startswith("s3p") else running.port, requests[kind])
    connection.steadily(0.5)
    wait_until_dropped(running, time.monotonic() + 3 * TIMEOUT_S + 2)


def wait_until_dropped(running, give_up):
    while connections(running) > 1:
        assert time.monotonic() < give_up, "it is still there"
        time.sleep(0.1)


def connections(running):
    client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    with contextlib.closing(client):
        client.request("GET", "/metrics")
        lines = client.getresponse().read().decode().splitlines()
    names = ("millstream_http_connections ", "millstream_s3p_connections ")
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(names))
