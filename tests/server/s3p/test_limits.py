"""S3P: connections, time, starting and stopping."""

from __future__ import annotations

import contextlib
import random
import re
import subprocess
import sys
import time

import pytest
from tests.conftest import ServerProcess, clean_environment, free_port
from tests.server.s3p.wire import Wire
from tests.torture.harness import eventually, metric

from millstream.protocol.s3p.encoder import encode_append, encode_create, encode_read
from millstream.protocol.s3p.reply_decoder import ErrorReply

DAMAGE = (b"", b"\r", b"\n", b"*", b"$", b"0", b"9", b"-", b"\xff")


def test_none_turns_it_off(server):
    running = server()
    running.s3p_port = 0
    running.stop()
    running.settings["s3p.listen"] = "none"
    running.start()
    assert "S3P" not in running.log().rpartition("Listening on http")[2]


def test_an_idle_connection_is_closed_and_a_blocked_one_is_not(server):
    running = server({"s3p.idle_timeout_s": 0.5})
    with Wire(running.s3p_port) as idle, Wire(running.s3p_port) as blocked, Wire(running.s3p_port) as slow:
        idle.create(b"x")
        slow.send(b"*3\r\n$4\r\nREAD\r\n")
        blocked.send(encode_read(b"x", block_ms=3000))
        began = time.monotonic()
        assert idle.rest() == b""
        assert slow.rest() == b""
        assert time.monotonic() - began < 2.9
        assert blocked.reply() == [], "a READ that waits is not idle"
        assert time.monotonic() - began > 2.9


def test_connections_over_the_limit_are_told_so(server):
    running = server({"s3p.connections_max": 2})
    with Wire(running.s3p_port) as one, Wire(running.s3p_port) as two:
        one.create(b"x")
        two.append(b"x", b"y")
        with Wire(running.s3p_port) as three:
            error = three.reply()
            assert isinstance(error, ErrorReply)
            assert error.code == "ERR_UNAVAILABLE"
            assert three.rest() == b""
        assert len(one.read(b"x")) == 1


def test_a_connection_that_ended_with_an_error_makes_room_at_once(server):
    """It lingers so that its client gets the error, even one that never hangs up."""
    running = server({"s3p.connections_max": 1})
    with contextlib.ExitStack() as open_wires:
        for _ in range(5):
            wire = open_wires.enter_context(Wire(running.s3p_port))
            wire.send(b"PING\r\n")
            error = wire.reply()
            assert isinstance(error, ErrorReply)
            assert error.code == "ERR_BAD_FORMAT"
        served = open_wires.enter_context(Wire(running.s3p_port))
        served.create(b"x")
        for _ in range(3):
            error = open_wires.enter_context(Wire(running.s3p_port)).reply()
            assert isinstance(error, ErrorReply)
            assert error.code == "ERR_UNAVAILABLE", "the limit holds for those that are served"
        served.append(b"x", b"y")


def test_an_append_of_exactly_the_limit_is_taken(server):
    running = server()
    for sizes, is_taken in (
        ([1 << 20], True),
        ([1 << 19] * 2, True),
        ([(1 << 20) + 1], False),
        ([1 << 19] * 2 + [1], False),
    ):
        with Wire(running.s3p_port) as wire:
            name = b"n%d" % sum(sizes) + b"-%d" % len(sizes)
            wire.create(name)
            wire.send(encode_append(name, [b"y" * size for size in sizes]))
            answer = wire.reply()
            assert isinstance(answer, bytes) == is_taken, answer
            if isinstance(answer, ErrorReply):
                assert answer.code == "ERR_LIMITS"
            else:
                assert [len(data) for _, data in wire.read(name)] == sizes


def test_unfinished_commands_share_a_limit(server):
    running = server({"inflight_bytes_max": "1200KiB", "append_bytes_max": "1MiB"})
    half = encode_append(b"x", [b"y" * 900_000])[:800_000]
    with Wire(running.s3p_port) as one, Wire(running.s3p_port) as two, Wire(running.s3p_port) as three:
        three.create(b"x")
        one.send(half)
        eventually(lambda: kept_bytes(running) > 700_000, "the server keeps what has arrived of the command")
        two.send(half)
        error = two.reply()
        assert isinstance(error, ErrorReply)
        assert error.code == "ERR_UNAVAILABLE"
        three.append(b"x", b"small ones get through")
        one.close()
        eventually(lambda: kept_bytes(running) == 0, "it lets go of what will never be complete")
        three.append(b"x", b"z" * 900_000)


def kept_bytes(running: ServerProcess) -> float:
    return metric(running.port, "millstream_s3p_inflight_bytes")


def test_a_stop_answers_what_has_begun(server):
    running = server()
    with Wire(running.s3p_port) as blocked, Wire(running.s3p_port) as writer, Wire(running.s3p_port):
        writer.create(b"x")
        blocked.send(encode_read(b"x", block_ms=10_000))
        time.sleep(0.2)
        writer.send(encode_append(b"x", [b"y"]) * 100)
        began = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - began < 8
        answered = writer.rest()
        assert blocked.rest().startswith(b"*"), "empty, or woken by the appends"
    running.start()
    with Wire(running.s3p_port) as wire:
        found = wire.read(b"x")
        assert len(found) >= len(re.findall(rb"\$\d+\r\n\d+-\d+\r\n", answered))


def test_a_port_that_is_taken_is_said_so(server, tmp_path):
    running = server()
    command = [sys.executable, "-m", "millstream", "serve", "--listen", f"127.0.0.1:{free_port()}"]
    command += ["--data-dir", str(tmp_path / "data"), "--s3p-listen", f"127.0.0.1:{running.s3p_port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=clean_environment())
    assert done.returncode == 1
    assert "Cannot start" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("listen", ["0.0.0.0:7500", "[::]:7500"])
def test_other_machines_are_not_served_by_accident(tmp_path, listen):
    command = [sys.executable, "-m", "millstream", "serve", "--listen", "127.0.0.1:0", "--s3p-listen", listen]
    command += ["--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=clean_environment())
    assert done.returncode == 2
    assert "--insecure" in done.stderr


def test_a_large_append_whose_client_leaves_is_finished_or_dropped(server):
    """Its parts are in the journal already: they must not stay in memory for ever."""
    running = server({"part_bytes": "1KiB", "checkpoint_age_s": 0.05})
    with Wire(running.s3p_port) as wire:
        wire.create(b"x")
    for name in (b"x", b"nobody"):
        for _ in range(10):
            wire = Wire(running.s3p_port)
            wire.send(encode_append(name, [b"y" * 50_000]))
            wire.reset()
    with Wire(running.s3p_port) as wire:
        wire.append(b"x", b"last")
        found = [len(data) for _, data in wire.read(b"x")]
        assert found[-1] == 4
        assert set(found[:-1]) <= {50_000}
    running.kill()
    running.start()
    with Wire(running.s3p_port) as wire:
        assert [len(data) for _, data in wire.read(b"x")] == found


def test_garbage_harms_nobody(server):
    """Commands with bytes changed, dropped and doubled, cut anywhere: each ends in replies, an error or silence."""
    running = server()
    chance = random.Random(4711)
    with Wire(running.s3p_port) as bystander:
        bystander.create(b"x")
        bystander.create(b"mine")
        for turn in range(150):
            commands = encode_append(b"x", [b"y" * 20, b"z"]), encode_read(b"x", 3, 5), encode_create(b"n%d" % turn)
            talk = bytearray(b"".join(commands))
            for _ in range(chance.randrange(1, 5)):
                at = chance.randrange(len(talk))
                talk[at : at + chance.randrange(3)] = chance.choice(DAMAGE)
            cut = chance.randrange(len(talk))
            with Wire(running.s3p_port) as wire:
                with contextlib.suppress(OSError):  # the server may have heard enough
                    wire.send(bytes(talk[:cut]), bytes(talk[cut:]))
                    wire.end_sending()
                replied = wire.rest()
            assert re.fullmatch(rb"(?:[+*$0-9a-zA-Z-][^\r\n]*\r\n)*(?:-ERR_[A-Z_]+ [ -~]+\r\n)?", replied), replied
            bystander.append(b"mine", b"%d" % turn)
        assert len(bystander.read(b"mine")) == 150
    assert "Traceback" not in running.log()
