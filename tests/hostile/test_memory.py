"""Bodies as large as they may be, made to cost far more than their size: nobody waits long, memory stays bounded."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import ServerProcess
from tests.hostile.memory import peak_mib
from tests.hostile.wire import Answer, Wire, ask, content, put, request

MIB = 1 << 20
LARGEST = 64 * MIB  # append_bytes_max
ANSWER_S_MAX = 20.0  # two seconds on an idle machine
# Six times the largest body: it is received, joined, looked at, and kept until the disk has it. What it must not be is
# a multiple of the messages, characters or brackets in it: 64 MiB of `1,1,1,` once took 5 GiB.
PEAK_MIB_MAX = 110 + 6 * 64
PATH = "/v1/stream/large"


def filled(opening: bytes, piece: bytes, closing: bytes) -> bytes:
    return opening + piece * ((LARGEST - len(opening) - len(closing)) // len(piece)) + closing


HOSTILE: dict[str, tuple[Callable[[], bytes], int]] = {
    "tiny messages": (lambda: filled(b"[", b"1,", b"1]"), 400),
    "empty messages": (lambda: filled(b"[", b"[],", b"[]]"), 400),
    "tiny messages and half a surrogate pair": (lambda: filled(b'["\\ud800",', b"1,", b"1]"), 400),
    "a message of tiny parts": (lambda: filled(b"[[", b"1,", b"1]]"), 204),
    "a message of empty parts and half a pair": (lambda: filled(b'["\\ud800",[', b"{},", b"1]]"), 204),
    "brackets that open": (lambda: filled(b"", b"[", b""), 400),
    "brackets that open and close a little": (lambda: filled(b"[", b"[" * 900 + b"]" * 900 + b",", b"1]"), 204),
    "a number": (lambda: filled(b"", b"9", b""), 204),
    "a string of escapes": (lambda: filled(b'"', b"\\u00e9", b'"'), 204),
    "a string without an end": (lambda: filled(b'"', b"x", b""), 400),
    "white space": (lambda: filled(b"[", b" ", b"1]"), 204),
    "broken at the last byte": (lambda: filled(b"[1", b" ", b"x]"), 400),
    "bad UTF-8 at the last byte": (lambda: filled(b'"', b"x", b'\xff"'), 400),
}


def post_json(port: int, body: bytes) -> tuple[Answer, float]:
    began = time.monotonic()
    answer = ask(port, request("POST", PATH, "Content-Type: application/json", body=body), "POST")
    return answer, time.monotonic() - began


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_largest_bodies_cost_a_few_times_their_size_and_little_time(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.hostile.wire.WAIT_S", ANSWER_S_MAX)
    make, expected = HOSTILE[kind]
    server = ServerProcess(tmp_path, {"low_space_bytes": 0, "idle_timeout_s": 60})
    server.start()
    try:
        put(server.port, PATH, "application/json")
        answer, took_s = post_json(server.port, make())
        assert answer.status == expected, answer
        assert took_s < ANSWER_S_MAX
        assert peak_mib(server.pid) < PEAK_MIB_MAX
        if expected == 400:
            assert content(server.port, PATH) == b"[]"
    finally:
        server.stop()


def test_what_is_created_and_deleted_while_the_helper_hangs_is_bounded(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, {"low_space_bytes": 0, "hot_bytes_max": 32 * MIB, "checkpoint_age_s": 0.2})
    server.start()
    try:
        put(server.port, "/v1/stream/first", "text/plain")
        helper = wait_for_helper(server.pid)
        before = peak_mib(server.pid)
        os.kill(helper, signal.SIGSTOP)
        answers = Counter[int]()
        with Wire(server.port) as wire:
            for number in range(800):
                path = f"/v1/stream/{number}"
                wire.send(request("PUT", path, "Content-Type: text/plain", body=b"x" * (400 << 10)))
                answers[wire.answer("PUT").status] += 1
                wire.send(request("DELETE", path))
                answers[wire.answer("DELETE").status] += 1
        assert answers[503] > 600
        assert peak_mib(server.pid) < before + 64
        os.kill(helper, signal.SIGCONT)
        give_up = time.monotonic() + 20
        while ask(server.port, request("PUT", "/v1/stream/last"), "PUT").status == 503:
            assert time.monotonic() < give_up, "writes do not come back"
            time.sleep(0.1)
    finally:
        server.stop()


def wait_for_helper(pid: int) -> int:
    """The process that makes checkpoints."""
    give_up = time.monotonic() + 10
    while time.monotonic() < give_up:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if b"upkeep_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        time.sleep(0.05)
    raise AssertionError("the server has no helper")
