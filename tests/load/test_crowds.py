"""Very many live readers, and slow ones among them."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import ServerProcess
from tests.hostile.memory import descriptors, resident_mib
from tests.hostile.wire import Wire, post, put, request
from tests.torture.harness import eventually, metric

from .crowd import Crowd, allow_descriptors

IDLE = 10_000
KIB_PER_CONNECTION_MAX = 16.0
FAST = 1000
PATH = "/v1/stream/crowd"
SETTINGS: dict[str, object] = {"sse_max_s": 600, "sse_heartbeat_s": 300, "idle_timeout_s": 600, "low_space_bytes": 0}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    allow_descriptors(IDLE + 1000)
    process = ServerProcess(tmp_path, SETTINGS)
    process.start()
    put(process.port, PATH)
    yield process
    process.stop()


def test_ten_thousand_idle_readers_cost_a_bounded_amount_of_memory_each(server: ServerProcess) -> None:
    before_mib, before_fds = resident_mib(server.pid), descriptors(server.pid)
    with Crowd(server.port, f"{PATH}?offset=now&live=sse") as crowd:
        crowd.join(IDLE, timeout_s=90)
        assert metric(server.port, "millstream_live_readers") == IDLE
        kib_each = (resident_mib(server.pid) - before_mib) * 1024 / IDLE
        print(f"{IDLE} idle SSE connections: {kib_each:.1f} KiB each, on top of {before_mib:.0f} MiB")
        assert kib_each < KIB_PER_CONNECTION_MAX
        post(server.port, PATH, b"the word")
        took_s = crowd.wait_for(b"the word", 1, timeout_s=60)
        print(f"all of them were told within {took_s:.2f} s")
        kib_each = (resident_mib(server.pid) - before_mib) * 1024 / IDLE
        assert kib_each < 1.5 * KIB_PER_CONNECTION_MAX, f"{kib_each:.1f} KiB each once they have been told something"
    eventually(lambda: metric(server.port, "millstream_live_readers") == 0, "readers that left are forgotten", 30)
    eventually(lambda: descriptors(server.pid) <= before_fds + 2, "their descriptors are closed", 30)


def deliver(server: ServerProcess, crowd: Crowd, events: int) -> tuple[float, float]:
    """Append and see everybody told; the median time to an acknowledgement, and to the last reader in all."""
    acknowledged: list[float] = []
    began = time.monotonic()
    crowd.marks.clear()
    with Wire(server.port) as wire:
        for _ in range(events):
            sent = time.monotonic()
            wire.send(request("POST", PATH, "Content-Type: text/plain", body=b"news!" + b"x" * 1000))
            assert wire.answer("POST").status == 204
            acknowledged.append(time.monotonic() - sent)
    crowd.wait_for(b"news!", events, timeout_s=60)
    return statistics.median(acknowledged), time.monotonic() - began


def test_a_slow_reader_among_a_thousand_fast_ones_harms_nobody(server: ServerProcess) -> None:
    events = 40
    with Crowd(server.port, f"{PATH}?offset=now&live=sse") as crowd:
        crowd.join(FAST, timeout_s=60)
        deliver(server, crowd, 5)  # warm
        ack_before_s, all_before_s = deliver(server, crowd, events)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", server.port))
            slow.sendall(f"GET {PATH}?offset=-1&live=sse HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            ack_s, all_s = deliver(server, crowd, events)
    print(f"acknowledged in {1000 * ack_before_s:.1f} ms, beside a slow reader in {1000 * ack_s:.1f} ms (median)")
    print(f"{events} events at {FAST} readers in {all_before_s:.2f} s, beside a slow one in {all_s:.2f} s")
    # Other work on the machine moves these figures; a reader that held the others up would cost its drain_timeout_s.
    assert ack_s < 3 * ack_before_s + 0.05
    assert all_s < 3 * all_before_s + 2.0


def test_what_a_slow_reader_has_not_taken_is_not_kept_for_it(server: ServerProcess) -> None:
    """It lags by 64 MiB; the server holds an offset and one event."""
    for _ in range(16):
        post(server.port, PATH, b"x" * (4 << 20))
    eventually(lambda: metric(server.port, "millstream_hot_bytes") == 0, "everything is in segments", 60)
    before_mib = resident_mib(server.pid)
    slow = [socket.socket() for _ in range(50)]
    for one in slow:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", server.port))
        one.sendall(f"GET {PATH}?offset=-1&live=sse HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    time.sleep(1.0)
    grown_mib = resident_mib(server.pid) - before_mib
    print(f"50 readers that lag by 64 MiB: {grown_mib:.0f} MiB")
    for one in slow:
        one.close()
    assert grown_mib < 50 * 1.5, "more than an event of 256 KiB each, and what the kernel takes"


def test_connections_that_come_and_go_leave_nothing_behind(server: ServerProcess) -> None:
    """Without waiting for a collection, which is rare: each held its last request, and with it perhaps a large body."""
    body = request("POST", PATH, "Content-Type: text/plain", "Producer-Id: p", body=b"refused" * 20_000)

    def come_and_go(times: int) -> None:
        for _ in range(times):
            with Wire(server.port) as wire:
                wire.send(body)
                assert wire.answer("POST").status == 400

    come_and_go(200)
    before_mib = resident_mib(server.pid)
    come_and_go(2000)
    grown_mib = resident_mib(server.pid) - before_mib
    print(f"2000 connections with a body of 140 KB each: {grown_mib:.1f} MiB")
    assert grown_mib < 10


def test_refused_appends_leave_nothing_behind(server: ServerProcess) -> None:
    """A refusal's traceback once kept the frames that it came through, and with them the body that was refused."""
    refused = request("POST", PATH, "Content-Type: application/json", body=b'"' + b"x" * 10_000 + b'"')

    def be_refused(times: int) -> None:
        with Wire(server.port) as wire:
            for _ in range(times // 20):
                wire.send(refused * 20)
                assert [wire.answer("POST").status for _ in range(20)] == [409] * 20

    be_refused(1000)
    before_mib = resident_mib(server.pid)
    be_refused(5000)
    grown_mib = resident_mib(server.pid) - before_mib
    print(f"5000 refused appends of 10 KB: {grown_mib:.1f} MiB")
    assert grown_mib < 10
