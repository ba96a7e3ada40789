"""Ours and the npm client on one server: each reads what the other writes, in every mode, through restarts."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.client import Client, Retry

HERE = Path(__file__).parent
LIVE = (False, "long-poll", "sse")
PATIENT = Retry(retries_max=None, delay_s=0.05, delay_max_s=0.2)
PEER_TIMEOUT_S = 60


class Peer:
    """One run of the npm client."""

    def __init__(self, node: Path, **command: Any) -> None:
        assert (HERE / "node_modules").is_dir(), "please run `make test`, which installs the npm client"
        self._process = subprocess.Popen(
            [str(node), str(HERE / "peer.mjs"), json.dumps(command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self) -> list[Any]:
        try:
            out, errors = self._process.communicate(timeout=PEER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, errors = self._process.communicate()
            pytest.fail(f"the npm client did not end; it said:\n{out[-2000:]}{errors[-2000:]}")
        assert self._process.returncode == 0, errors
        return [json.loads(line) for line in out.splitlines()]


RunPeer = Callable[..., Peer]


@pytest.fixture
def peer(node) -> RunPeer:
    return lambda **command: Peer(node, **command)


@pytest.fixture(scope="module")
def running(module_server):
    return module_server({"long_poll_ms": 500})


@pytest.fixture
def client(running):
    with Client(running.url, retry=PATIENT) as made:
        yield made


def restart_soon(running) -> threading.Thread:
    def restart() -> None:
        time.sleep(0.5)
        running.restart()

    thread = threading.Thread(target=restart)
    thread.start()
    return thread


def test_npm_writes_and_we_read(running, client, peer, name):
    items = [{"n": number, "text": "ä🌊\n"} for number in range(100)]
    streams = {act: client.stream(f"{name}-{act}") for act in ("append", "produce")}
    for writing in [peer(act=act, url=stream.url, items=items, close=True) for act, stream in streams.items()]:
        writing.result()
    running.restart()
    for stream in streams.values():
        for live in LIVE:
            assert list(stream.read(live=live).json()) == items


def test_we_write_and_npm_reads(running, client, peer, name):
    items = [{"n": number, "text": "ä🌊\n"} for number in range(500)]
    stream = client.stream(name)
    stream.create("application/json")
    with stream.producer(batch_messages_max=50) as producer:
        for item in items[:250]:
            producer.append(item)
        producer.flush()
        running.restart()
        for item in items[250:]:
            producer.append(item)
        producer.close_stream()
    for reading in [peer(act="read", url=stream.url, live=live, count=len(items)) for live in LIVE]:
        assert reading.result() == items


def test_npm_follows_us_through_a_restart(running, client, peer, name):
    """The npm reader may give up while a server is down, so it is asked before and after, each time in the middle."""
    stream = client.stream(name)
    stream.create("application/json", body=[0])
    with stream.producer(linger_s=0) as producer:
        for half in (range(1, 21), range(21, 41)):
            readers = [peer(act="read", url=stream.url, live=live, count=half[-1] + 1) for live in ("long-poll", "sse")]
            for number in half:
                producer.append([number])
                time.sleep(0.04)
            for reading in readers:
                assert reading.result() == [[number] for number in range(half[-1] + 1)]
            running.restart()


def test_we_follow_npm_through_a_restart(running, client, peer, name):
    stream = client.stream(name)
    stream.create("application/json")
    items = [{"n": number} for number in range(40)]
    got: dict[Any, list[Any]] = {live: [] for live in ("long-poll", "sse", True)}
    readers = [
        threading.Thread(target=lambda live=live: got[live].extend(stream.tail(live=live).json())) for live in got
    ]
    for reading in readers:
        reading.start()
    # The npm producer drops batches that a stopped server refuses, so the server restarts between two of them.
    peer(act="produce", url=stream.url, items=items[:20], pauseMs=30).result()
    running.restart()
    peer(act="produce", url=stream.url, items=items[20:], pauseMs=30, close=True, id="another").result()
    for reading in readers:
        reading.join(30)
    assert list(got.values()) == [items] * 3


def test_bytes_arrive_as_they_are(client, peer, name):
    data = bytes(range(256)) * 50
    stream = client.stream(name)
    stream.create("application/octet-stream", body=data)
    stream.close(b"the end")
    for reading in [peer(act="readBytes", url=stream.url, live=live) for live in LIVE]:
        (read,) = reading.result()
        assert base64.b64decode(read) == data + b"the end"


def test_the_state_protocol(running, client, peer, name):
    users = [{"id": str(number), "name": f"user {number}"} for number in range(5)]
    theirs = client.stream(name + "-theirs")
    peer(act="writeState", url=theirs.url, users=users).result()
    running.restart()
    kept: dict[str, Any] = {}
    for event in theirs.read().json():
        if event["headers"]["operation"] == "delete":
            del kept[event["key"]]
        else:
            kept[event["key"]] = event["value"]
    assert list(kept.values()) == users[1:]

    ours = client.stream(name + "-ours")
    ours.create("application/json")
    with ours.producer() as producer:
        for user in users:
            producer.append({"type": "user", "key": user["id"], "value": user, "headers": {"operation": "insert"}})
        producer.append({"type": "user", "key": "0", "headers": {"operation": "delete"}})
    for reading in [peer(act="readState", url=ours.url, live=live) for live in LIVE]:
        assert sorted(reading.result(), key=lambda user: user["id"]) == users[1:]
