"""Java's HttpClient as it comes, which offers an upgrade with every request: nothing of what it sends is lost."""

from __future__ import annotations

import hashlib
import random
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).parent
LARGE = 20_000_000
BYTES = {"Content-Type": "application/octet-stream"}
JAVA_TIMEOUT_S = 100


@dataclass(frozen=True)
class Asked:
    """A request; its body goes whole, with a length, or in chunks."""

    method: str
    url: str
    body: bytes = b""
    headers: dict[str, str] | None = None
    chunked: bool = False


@dataclass(frozen=True)
class Told:
    status: int
    size: int
    digest: str

    def has(self, content: bytes) -> bool:
        return (self.size, self.digest) == (len(content), hashlib.sha256(content).hexdigest())


Ask = Callable[[list[Asked]], list[Told]]


@pytest.fixture
def ask(java: Path, tmp_path: Path) -> Ask:
    """Have one run of Java's client send these requests, one after the other."""

    def line(number: int, asked: Asked) -> str:
        body = tmp_path / f"body-{number}"
        body.write_bytes(asked.body)
        how = "none" if not asked.body else "chunked" if asked.chunked else "whole"
        headers = [f"{name}={value}" for name, value in (asked.headers or {}).items()]
        return "\t".join([asked.method, how, asked.url, str(body), *headers])

    def run(requests: list[Asked]) -> list[Told]:
        lines = "\n".join(line(number, asked) for number, asked in enumerate(requests))
        command = [str(java), "-Xmx512m", str(HERE / "Peer.java")]
        done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr
        told = [said.split() for said in done.stdout.splitlines()]
        return [Told(int(status), int(size), digest) for status, size, digest in told]

    return run


@pytest.fixture(scope="module")
def running(module_server):
    return module_server()


def test_the_client_does_offer_an_upgrade(ask):
    """Or these tests would show nothing."""
    heads = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                heads.append(connection.recv(65536).lower())
                connection.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        assert [told.status for told in ask([Asked("POST", url, b"hello")])] == [204]
        thread.join()
    assert b"upgrade: h2c" in heads[0]


def test_every_body_arrives(running, ask):
    stream = f"{running.url}/v1/stream/java/bodies"
    told = ask(
        [
            Asked("PUT", stream, b"created, ", BYTES),
            Asked("POST", stream, b"appended, ", BYTES),
            Asked("POST", stream, b"in chunks, ", BYTES, chunked=True),
            Asked("POST", stream, b"and closed.", {**BYTES, "Stream-Closed": "true"}),
            Asked("GET", f"{stream}?offset=-1"),
            Asked("POST", stream, b"too late", BYTES),
        ]
    )
    assert [one.status for one in told] == [201, 204, 204, 204, 200, 409]
    content = b"created, appended, in chunks, and closed."
    assert told[4].has(content)
    answer = httpx.get(stream, params={"offset": "-1"})
    assert (answer.content, answer.headers["stream-closed"]) == (content, "true")


def test_json_in_chunks_and_a_stream_born_from_chunks(running, ask):
    stream = f"{running.url}/v1/stream/java/json"
    headers = {"Content-Type": "application/json"}
    told = ask(
        [
            Asked("PUT", stream, b'[1, {"two": 2}]', headers, chunked=True),
            Asked("POST", stream, b"[3]", headers, chunked=True),
            Asked("GET", f"{stream}?offset=-1"),
        ]
    )
    assert [one.status for one in told] == [201, 204, 200]
    assert told[2].has(b'[1,{"two": 2},3]')


def test_a_snapshot_is_what_was_sent(running, ask):
    stream = f"{running.url}/ds/javasnap/s"
    small, large = b"small state", random.Random(1).randbytes(3_000_000)
    told = ask(
        [
            Asked("PUT", f"{running.url}/ds/javasnap"),
            Asked("PUT", stream, b"one", BYTES),
            Asked("PUT", f"{stream}/snapshot/3", small, BYTES),
            Asked("GET", f"{stream}/snapshot/3"),
            Asked("POST", stream, b"two", BYTES),
            Asked("PUT", f"{stream}/snapshot/6", large, BYTES, chunked=True),
            Asked("GET", f"{stream}/snapshot/6"),
        ]
    )
    assert [one.status for one in told] == [201, 201, 204, 200, 204, 204, 200]
    assert told[3].has(small)
    assert told[6].has(large)


def test_a_transaction_is_committed(running, ask):
    base = f"{running.url}/ds/javaflow"
    part = b'{"stream":"a","json":1}\n{"stream":"b","json":2}\n'
    told = ask(
        [
            Asked("PUT", base),
            Asked("PUT", f"{base}/streams/transactions/etl/1/0", part, {"Content-Type": "application/x-ndjson"}),
            Asked(
                "POST",
                f"{base}/streams/transactions/etl/1",
                b'{"parts":["0"],"create":true,"content_type":"application/json"}',
                {"Content-Type": "application/json"},
            ),
            Asked("GET", f"{base}/b?offset=-1"),
        ]
    )
    assert [one.status for one in told] == [201, 200, 200, 200]
    assert told[3].has(b"[2]")


def test_twenty_megabytes_there_and_back(running, ask):
    content = random.Random(2).randbytes(LARGE)
    whole, chunked = (f"{running.url}/v1/stream/java/large-{how}" for how in ("whole", "chunked"))
    told = ask(
        [
            Asked("PUT", whole, content, BYTES),
            Asked("GET", f"{whole}?offset=-1"),
            Asked("PUT", chunked, b"<", BYTES),
            Asked("POST", chunked, content, BYTES, chunked=True),
            Asked("GET", f"{chunked}?offset=-1"),
        ]
    )
    assert [one.status for one in told] == [201, 200, 201, 204, 200]
    assert told[1].has(content)
    assert told[4].has(b"<" + content)
