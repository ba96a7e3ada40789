"""What connections do besides requests: pipeline, hang, stall, leave, and come in crowds."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.conftest import ServerProcess, StartServer
from tests.hostile.wire import WAIT_S, Wire, ask, content, post, put, request

HEALTH = request("GET", "/healthz")


def metric(port: int, name: str) -> float:
    text = ask(port, request("GET", "/metrics")).body.decode()
    matched = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert matched, f"no metric {name}"
    return float(matched[1])


def wait_for_connections(port: int, count: int) -> None:
    """Until only so many are left, the one that asks included."""
    deadline = time.monotonic() + WAIT_S
    while metric(port, "millstream_http_connections") > count:
        assert time.monotonic() < deadline, "connections that nobody uses are still there"
        time.sleep(0.1)


# --- one after another


def test_pipelined_requests_are_answered_in_order(port: int, path: str) -> None:
    """A hundred of them, reads between writes: each read sees all writes before it and none behind it."""
    appends = [request("POST", path, "Content-Type: text/plain", body=b"%02d." % index) for index in range(50)]
    reads = [request("GET", path)] * 50
    with Wire(port) as wire:
        wire.send(b"".join(b"".join(pair) for pair in zip(appends, reads, strict=True)))
        expected = b""
        for index in range(50):
            expected += b"%02d." % index
            assert wire.answer("POST").status == 204
            assert wire.answer().body == expected


def test_a_flood_of_pipelined_requests_is_answered_whole(port: int, path: str) -> None:
    waiting = request("GET", f"{path}?offset=now&live=long-poll")
    with Wire(port) as wire:
        wire.send(waiting + HEALTH * 2000)
        assert wire.answer().status == 204
        assert all(wire.answer().status == 200 for _ in range(2000))


def test_a_bad_request_behind_good_ones_is_answered_last(port: int, path: str) -> None:
    append = request("POST", path, "Content-Type: text/plain", body=b"hello")
    with Wire(port) as wire:
        wire.send(append + request("GET", path) + b"nonsense\r\n\r\n" + HEALTH)
        assert wire.answer("POST").status == 204
        assert wire.answer().body == b"hello"
        assert wire.answer().status == 400
        assert wire.is_ended()


def test_a_long_poll_does_not_let_the_next_request_pass(port: int, path: str) -> None:
    with Wire(port) as wire:
        wire.send(request("GET", f"{path}?offset=now&live=long-poll") + HEALTH)
        time.sleep(0.1)
        post(port, path, b"news")
        assert wire.answer().body == b"news"
        assert wire.answer().body == b"ok\n"


def test_connection_close_is_respected(port: int) -> None:
    with Wire(port) as wire:
        wire.send(request("GET", "/healthz", "Connection: close") + HEALTH)
        answer = wire.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert wire.is_ended()


def test_an_offer_to_upgrade_does_not_leave_the_client_waiting(port: int) -> None:
    """As `curl --http2` does it: an answer in HTTP/1.1, and then either another one or the end."""
    offer = request("GET", "/healthz", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA")
    with Wire(port) as wire:
        wire.send(offer)
        assert wire.answer().status == 200
        wire.send(HEALTH)
        started = time.monotonic()
        wire.is_ended()  # or is answered: either will do
        assert time.monotonic() - started < 0.2, "only the idle time-out ended it"


def test_connect_is_refused(port: int) -> None:
    assert ask(port, b"CONNECT example.com:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").status in (400, 404, 405)


@pytest.mark.parametrize("method", ["TRACE", "PATCH", "PROPFIND", "LINK", "M-SEARCH"])
def test_methods_that_a_stream_does_not_know_are_405(port: int, path: str, method: str) -> None:
    answer = ask(port, request(method, path), method)
    assert answer.status == 405
    assert "GET" in answer.headers["allow"]


# --- HTTP/1.0, HEAD


def test_http_1_0_is_answered_and_the_connection_ends(port: int, path: str) -> None:
    post(port, path, b"hello")
    with Wire(port) as wire:
        wire.send(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        assert wire.answer().body == b"hello"
        assert wire.is_ended()


def test_http_1_0_gets_events_without_chunks(port: int, path: str) -> None:
    post(port, path, b"hello", "text/plain", "Stream-Closed: true")
    with Wire(port) as wire:
        wire.send(f"GET {path}?offset=-1&live=sse HTTP/1.0\r\n\r\n".encode())
        head = wire.head()
        assert "transfer-encoding" not in head.headers
        assert wire.rest().startswith(b"event: data\ndata:hello\n\n")


def test_head_has_no_body_even_when_it_fails(port: int, path: str) -> None:
    post(port, path, b"hello")
    targets = (path, "/healthz", "/v1/stream/not/there", "/nowhere", "/v1/stream/%00", f"{path}?offset=x")
    with Wire(port) as wire:
        wire.send(b"".join(request("HEAD", target) for target in targets) + HEALTH)
        statuses = [wire.answer("HEAD").status for _ in targets]
        assert statuses == [200, 200, 404, 404, 400, 400]
        assert wire.answer().body == b"ok\n"


# --- slowly, or not at all


def test_a_slow_head_is_ended(port: int) -> None:
    with Wire(port) as wire:
        for piece in (b"GET /healthz HTTP/1.1\r\n", b"Host: 127.0.0.1\r\n", b"X-A: a\r\n", b"X-B: b\r\n"):
            wire.send(piece)
            time.sleep(0.2)
        assert wire.answer().status == 408
        assert wire.is_ended()


def test_a_slow_body_is_ended_and_appends_nothing(port: int, path: str) -> None:
    with Wire(port) as wire:
        wire.send(b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\n" % path.encode())
        wire.send(b"Content-Type: text/plain\r\nContent-Length: 100\r\n\r\n")
        for _ in range(5):
            wire.send(b"x")
            time.sleep(0.15)
        assert wire.answer("POST").status == 408
        assert wire.is_ended()
    assert content(port, path) == b""


def test_a_connection_that_says_nothing_is_ended(port: int) -> None:
    with Wire(port) as wire:
        assert wire.is_ended()


def test_an_idle_connection_is_ended_after_its_last_answer(port: int) -> None:
    with Wire(port) as wire:
        wire.send(HEALTH)
        assert wire.answer().status == 200
        assert wire.is_ended()


def test_a_client_that_has_said_all_still_gets_its_answers(port: int, path: str) -> None:
    """Half-closing, as `nc -N` and HTTP/1.0 clients do, is no reason to withhold the acknowledgement."""
    with Wire(port) as wire:
        wire.send(request("POST", path, "Content-Type: text/plain", body=b"hello"))
        wire.end_sending()
        assert wire.answer("POST").status == 204


@pytest.fixture(scope="module")
def stubborn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server that waits for anything but a client that takes no answer."""
    settings = {"drain_timeout_s": 0.5, "idle_timeout_s": 60}
    server = ServerProcess(tmp_path_factory.mktemp("stubborn"), settings)
    server.start()
    put(server.port, "/v1/stream/much")
    post(server.port, "/v1/stream/much", b"x" * (4 << 20))
    yield server.port
    server.stop()


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_a_reader_that_does_not_drain_is_dropped(stubborn: int, connection: str) -> None:
    with Wire(stubborn, receive_buffer=4096) as wire:
        wire.send(request("GET", "/v1/stream/much", f"Connection: {connection}"))
        wait_for_connections(stubborn, 1)


def test_a_reader_that_leaves_little_undrained_is_dropped(port: int, path: str) -> None:
    """Too little for the server's buffer to be called full, but the rest would lie there for ever.

    How much the kernel takes is its secret (about 2.7 MiB), hence a row of connections around it.
    """
    post(port, path, b"x" * 65536)
    with ExitStack() as wires:
        for count in range(36, 50):
            wire = wires.enter_context(Wire(port, receive_buffer=4096))
            wire.send(request("GET", path) * count)
        wait_for_connections(port, 1)


def test_a_follower_that_does_not_drain_is_dropped(stubborn: int) -> None:
    with Wire(stubborn, receive_buffer=4096) as wire:
        wire.send(request("GET", "/v1/stream/much?offset=-1&live=sse"))
        wait_for_connections(stubborn, 1)


def test_followers_that_leave_are_forgotten(port: int, path: str) -> None:
    wires = [Wire(port) for _ in range(20)]
    for index, wire in enumerate(wires):
        live = "sse" if index % 2 else "long-poll&timeout_ms=60000"
        wire.send(request("GET", f"{path}?offset=now&live={live}"))
    deadline = time.monotonic() + WAIT_S
    while metric(port, "millstream_live_readers") < 20:
        assert time.monotonic() < deadline
    for wire in wires:
        wire.close()
    post(port, path, b"to nobody")
    while metric(port, "millstream_live_readers") > 0:
        assert time.monotonic() < deadline, "readers that left are still followed"


def test_a_client_that_leaves_before_its_answer_has_still_appended(port: int, path: str) -> None:
    for _ in range(20):
        with Wire(port) as wire:
            wire.send(request("POST", path, "Content-Type: text/plain", body=b"x"))
    deadline = time.monotonic() + WAIT_S
    while content(port, path) != b"x" * 20:
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- crowds


@pytest.fixture
def crowded(server: StartServer) -> ServerProcess:
    return server({"connections_max": 5, "inflight_bytes_max": "2MiB", "append_bytes_max": "2MiB"})


def test_too_many_connections_are_told_so(crowded: ServerProcess) -> None:
    inside = [Wire(crowded.port) for _ in range(5)]
    for wire in inside:
        wire.send(HEALTH)
        assert wire.answer().status == 200
    with Wire(crowded.port) as refused:
        answer = refused.answer()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert refused.is_ended()
    for wire in inside:
        wire.send(HEALTH)
        assert wire.answer().status == 200
        wire.close()
    wait_for_connections(crowded.port, 1)


def test_a_connection_that_ended_with_an_error_makes_room_at_once(crowded: ServerProcess) -> None:
    """It lingers so that its client gets the answer, even one that never hangs up."""
    wait_for_connections(crowded.port, 1)
    with ExitStack() as open_wires:
        for _ in range(8):
            wire = open_wires.enter_context(Wire(crowded.port))
            wire.send(b"GET nothing HTTP/9\r\n\r\n")
            assert wire.answer().status == 400
            assert wire.is_ended()
        assert ask(crowded.port, HEALTH).status == 200


def test_bodies_beyond_what_all_may_hold_together_are_503(crowded: ServerProcess) -> None:
    put(crowded.port, "/v1/stream/held")
    unfinished = request("POST", "/v1/stream/held", "Content-Type: text/plain", body=b"x" * 1_500_000)[:-1]
    with Wire(crowded.port) as first, Wire(crowded.port) as second:
        first.send(unfinished)
        deadline = time.monotonic() + WAIT_S
        while metric(crowded.port, "millstream_http_inflight_bytes") < 1_499_999:
            assert time.monotonic() < deadline
        second.send(unfinished)
        answer = second.answer("POST")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        first.send(b"x")
        assert first.answer("POST").status == 204
    deadline = time.monotonic() + WAIT_S
    while metric(crowded.port, "millstream_http_inflight_bytes") > 0:
        assert time.monotonic() < deadline, "bodies that are gone are still counted"
