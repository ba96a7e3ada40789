"""Requests mutated at random, from a fixed seed: whatever comes in, what goes out is HTTP, and soon."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator

import pytest
from tests.conftest import ServerProcess
from tests.hostile.conftest import SMALL, check_health
from tests.hostile.wire import WAIT_S, Ended, Wire, content, put, request

SEED = 7
REQUESTS = 8000
DOCUMENTS = 2000
BUDGET_S = 15.0
LAST = request("GET", "/healthz", "Connection: close")

TEXT = "Content-Type: text/plain"
CORPUS = [
    request("GET", "/v1/stream/fuzz/a?offset=0"),
    request("GET", "/v1/stream/fuzz/a?offset=now&live=long-poll&timeout_ms=5&cursor=9"),
    request("GET", "/v1/stream/fuzz/%61?offset=00000000000000000003&max_bytes=2", "Accept-Encoding: gzip, zstd"),
    request("PUT", "/v1/stream/fuzz/b", TEXT, "Stream-TTL: 60", body=b"first"),
    request("PUT", "/v1/stream/fuzz/c", "Stream-Expires-At: 2040-01-01T00:00:00Z", "Stream-Closed: true"),
    request("POST", "/v1/stream/fuzz/a", TEXT, "Stream-Seq: 5", body=b"some text"),
    request("POST", "/v1/stream/fuzz/a", TEXT, 'If-Match: "x:3"', body=b"conditional"),
    request(
        "POST",
        "/v1/stream/fuzz/a",
        TEXT,
        "Producer-Id: p",
        "Producer-Epoch: 0",
        "Producer-Seq: 0",
        body=b"once",
    ),
    request("POST", "/v1/stream/fuzz/json", "Content-Type: application/json", body=b'[{"a":1},[2],"\xc3\xa9"]'),
    request("POST", "/v1/stream/fuzz/a", TEXT, "Expect: 100-continue", body=b"expected"),
    b"POST /v1/stream/fuzz/a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nTrailer: z\r\n\r\n",
    request("DELETE", "/v1/stream/fuzz/b"),
    request("DELETE", "/v1/stream/fuzz/a"),
    request("PUT", "/v1/stream/fuzz/a", TEXT),
    request("OPTIONS", "/v1/stream/fuzz/a", "Origin: http://localhost:1", "Access-Control-Request-Method: PUT"),
    request("GET", "/metrics"),
    request("GET", "/readyz/local", "Origin: http://evil.example"),
]
TOKENS = [
    *(bytes([byte]) for byte in (0, 9, 10, 11, 13, 32, 34, 37, 44, 47, 58, 59, 127, 128, 255)),
    *(b"\r\n", b"\r\n\r\n", b"\n\n", b"\r\n ", b" HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0"),
    *(b"Content-Length: 3\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Host: 127.0.0.1\r\n", b"Host: x\r\n"),
    *(b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n"),
    *(b"%00", b"%ff", b"%2e%2e", b"/../", b"%", b"%2", b"?", b"&offset=1", b"offset=-1", b"=", b"#"),
    *(b"0", b"-1", b"18446744073709551616", b"9" * 400, b"ffffffffffffffff\r\n", b"x" * 9000, b"A: b\r\n" * 300),
    *(b"[" * 3000, b"{}", b'"', b"\\u0000", b"\xed\xa0\x80", b"1e999", b"NaN"),
]


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose every wait is short, so that a mutation that asks it to wait does not take long."""
    short: dict[str, object] = {"idle_timeout_s": 0.3, "long_poll_ms": 20, "long_poll_ms_max": 50, "sse_max_s": 0.3}
    server = ServerProcess(tmp_path_factory.mktemp("fuzz"), {**SMALL, **short})
    server.start()
    put(server.port, "/v1/stream/fuzz/a")
    put(server.port, "/v1/stream/fuzz/json", "application/json")
    yield server
    assert server.stop() == 0


def mutated(chance: random.Random, data: bytes) -> bytes:
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + int(40 * chance.random() ** 2))
        kind = chance.randrange(6)
        if kind == 0:
            data = data[:at] + data[end:]
        elif kind == 1:
            data = data[:at] + data[at:end] * 2 + data[end:]
        elif kind == 2:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        elif kind == 3:
            other = chance.choice(CORPUS)
            data = data[:at] + other[chance.randrange(len(other)) :]
        else:
            data = data[:at] + chance.choice(TOKENS) + data[at if kind == 4 else end :]
    return data


def send_in_pieces(wire: Wire, chance: random.Random, data: bytes) -> None:
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 1, 3))))
    wire.send(*(data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b))


def answers(wire: Wire) -> int:
    """Read well-formed answers up to the end of the connection; how many."""
    count = 0
    while True:
        try:
            wire.any_answer()
        except Ended:
            return count
        count += 1


def test_mutated_requests_get_well_formed_answers(patient: ServerProcess) -> None:
    chance = random.Random(SEED)
    started = time.monotonic()
    answered = 0
    for number in range(REQUESTS):
        data = mutated(chance, chance.choice(CORPUS))
        with Wire(patient.port) as wire:
            began = time.monotonic()
            send_in_pieces(wire, chance, data + LAST)
            try:
                if number % 4 == 0:
                    wire.wait(0.01)  # for what takes a moment, such as an acknowledgement
                wire.end_sending()
                answered += answers(wire)
            except (AssertionError, OSError, ValueError) as error:
                if not isinstance(error, OSError) or isinstance(error, TimeoutError):
                    pytest.fail(f"request {number} of seed {SEED}, {data!r}: {error!r}")
            assert time.monotonic() - began < WAIT_S, (number, data)
        if time.monotonic() - started > BUDGET_S:
            break  # a slow machine: what was tried counts
    assert answered > 0.5 * number, f"{answered} answers to {number} requests"
    check_health(patient)


DOCUMENT = b'{"text":"a\\u00e9\\n","numbers":[0,-1,2.5e3,12345678901234567890],"nested":{"t":true,"n":null,"":[]}}'
JSON_TOKENS = [
    *(bytes([byte]) for byte in b'{}[],:"\\-+.eE0 \t\n\0\x7f\xff\xc3\xa9'),
    b"tru",
    b"NaN",
    b"\\u",
    b"\\ud800",
]


def mutated_document(chance: random.Random) -> bytes:
    data = DOCUMENT
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(data))
        end = at + chance.choice((0, 0, 1, 1, 5))
        data = data[:at] + chance.choice(JSON_TOKENS) * chance.choice((0, 1, 1, 2)) + data[end:]
    return data


def test_no_mutated_document_spoils_a_json_stream(patient: ServerProcess) -> None:
    """Every reader gets all messages in one array, so a single bad one would be everybody's problem."""
    chance = random.Random(SEED)
    path = "/v1/stream/fuzz/documents"
    put(patient.port, path, "application/json")
    taken = []
    with Wire(patient.port) as wire:
        for _ in range(DOCUMENTS):
            data = mutated_document(chance)
            wire.send(request("POST", path, "Content-Type: application/json", body=data))
            status = wire.answer("POST").status
            assert status in (204, 400), data
            if status == 204:
                taken.append(data)
    assert 100 < len(taken) < DOCUMENTS - 100
    stored = content(patient.port, path)
    assert len(json.loads(stored, parse_constant=pytest.fail)) == len(taken)
    assert stored == b"[" + b",".join(data.strip(b" \t\r\n") for data in taken) + b"]"
