"""The process: a second one on the same data, and how it stops."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.conftest import ServerProcess, StartServer, clean_environment, free_port
from tests.hostile.wire import WAIT_S, Ended, Wire, content, post, put, request


def start_another(data_dir: Path, listen: str = "127.0.0.1:0") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "millstream", "serve", "--listen", listen, "--data-dir", str(data_dir)]
    command += ["--s3p-listen", "none"]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=clean_environment())


class Stopping:
    """A server that is being stopped while the test looks at its clients."""

    def __init__(self, server: ServerProcess) -> None:
        self.code: int | None = None
        self._thread = threading.Thread(target=self._stop, args=(server,))
        self._started = time.monotonic()
        self._thread.start()

    def _stop(self, server: ServerProcess) -> None:
        self.code = server.stop()

    def exit_code(self) -> int | None:
        self._thread.join(WAIT_S)
        assert time.monotonic() - self._started < WAIT_S, "it took too long to stop"
        return self.code


def test_a_second_server_on_the_same_data_is_refused(server: StartServer) -> None:
    running = server()
    put(running.port, "/v1/stream/a")
    second = start_another(running.data_dir)
    assert second.returncode == 1
    assert "Another process uses the data directory" in second.stderr
    assert "Traceback" not in second.stderr
    post(running.port, "/v1/stream/a", b"unharmed")
    assert content(running.port, "/v1/stream/a") == b"unharmed"


def test_a_second_server_on_the_same_port_is_refused(server: StartServer, tmp_path: Path) -> None:
    running = server()
    second = start_another(tmp_path / "other", f"127.0.0.1:{running.port}")
    assert second.returncode == 1
    assert "Cannot start" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_stop_ends_live_reads_and_answers_long_polls(server: StartServer) -> None:
    running = server({"long_poll_ms": 60_000})
    put(running.port, "/v1/stream/a")
    with Wire(running.port) as poll, Wire(running.port) as feed, Wire(running.port) as idle:
        poll.send(request("GET", "/v1/stream/a?offset=now&live=long-poll"))
        feed.send(request("GET", "/v1/stream/a?offset=now&live=sse"))
        assert feed.head().headers["content-type"] == "text/event-stream"
        assert "upToDate" in feed.events()
        time.sleep(0.1)
        stopping = Stopping(running)
        answer = poll.answer()
        assert (answer.status, answer.headers["connection"]) == (204, "close")
        assert feed.events() == ""  # the last chunk: a clean end, not a broken one
        for wire in (poll, feed, idle):
            assert wire.is_ended()
    assert stopping.exit_code() == 0


def test_a_stop_is_not_held_up_by_a_client_that_does_not_drain(server: StartServer) -> None:
    running = server({"stop_timeout_s": 0.5})
    put(running.port, "/v1/stream/a")
    post(running.port, "/v1/stream/a", b"x" * (8 << 20))
    with Wire(running.port, receive_buffer=4096) as stuck:
        stuck.send(request("GET", "/v1/stream/a?offset=-1&live=sse"))
        stuck.head()
        assert Stopping(running).exit_code() == 0


def test_a_stop_loses_nothing_that_was_acknowledged(server: StartServer) -> None:
    running = server()
    put(running.port, "/v1/stream/a")
    acknowledged = 0
    stopping = None
    with Wire(running.port) as wire:
        wire.send(request("POST", "/v1/stream/a", "Content-Type: text/plain", body=b"x") * 2000)
        for _ in range(2000):
            if acknowledged == 100:
                stopping = Stopping(running)
            try:
                acknowledged += wire.answer("POST").status == 204
            except Ended:
                break
    assert stopping is not None
    assert stopping.exit_code() == 0
    running.start()
    assert len(content(running.port, "/v1/stream/a")) >= acknowledged


def test_control_c_stops_it_as_politely(server: StartServer) -> None:
    running = server()
    process = running._process
    assert process is not None
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 0


def test_a_terminal_that_closes_does_not_end_it(server: StartServer) -> None:
    running = server()
    process = running._process
    assert process is not None
    process.send_signal(signal.SIGHUP)
    put(running.port, "/v1/stream/a")
    post(running.port, "/v1/stream/a", b"still there")
    assert content(running.port, "/v1/stream/a") == b"still there"
    assert running.stop() == 0
    assert "SIGHUP is ignored" in running.log()


def test_it_runs_with_all_three_standard_descriptors_closed(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "millstream", "serve", "--listen", f"127.0.0.1:{port}", "--s3p-listen", "none"]
    command += ["--data-dir", str(tmp_path / "data")]
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    process = subprocess.Popen(shell, env=clean_environment())
    try:
        wait_until_ready(port)
        put(port, "/v1/stream/a")
        post(port, "/v1/stream/a", b"x" * 100_000)
        assert content(port, "/v1/stream/a") == b"x" * 100_000
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(WAIT_S)


def wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        try:
            connection.request("GET", "/readyz/local")
            if connection.getresponse().status == 200:
                return
        except ConnectionRefusedError:
            pass  # it is still starting
        finally:
            connection.close()
        assert time.monotonic() < deadline, "it was not ready in time"
        time.sleep(0.05)
