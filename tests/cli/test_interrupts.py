"""Ctrl-C, SIGTERM and readers that go away: real processes, real signals."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import threading
import time

import pytest

from millstream.cli.interrupts import Interrupts
from millstream.cli.outfiles import whole_file, whole_folder

JSON = ("--type", "application/json")
ENOUGH_S = 20.0


def until(condition, what: str):
    give_up = time.monotonic() + ENOUGH_S
    while not (found := condition()):
        assert time.monotonic() < give_up, f"never {what}"
        time.sleep(0.05)
    return found


def lines_of(process: subprocess.Popen[bytes], count: int) -> list[bytes]:
    return [process.stdout.readline() for _ in range(count)]


# --- appends


def test_ctrl_c_before_the_input_ends_appends_nothing(cli, started):
    cli("stream", "create", "cut/whole", "--type", "text/plain").ok()
    process = started("stream", "append", "cut/whole")
    type_in(process, b"half of a mess")
    process.send_signal(signal.SIGINT)
    assert process.wait(ENOUGH_S) == 130
    assert process.stderr.read() == b"millstream: interrupted; nothing is stored\n"
    assert cli("stream", "read", "cut/whole").ok().out == b""


def type_in(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Write to its stdin, and wait until it has read that."""
    process.stdin.write(data)
    process.stdin.flush()
    until(lambda: unread(process) == 0, "read")


def unread(process: subprocess.Popen[bytes]) -> int:
    counted = fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4))
    return struct.unpack("i", counted)[0]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"])
def test_interrupted_lines_are_stored_up_to_a_known_one(cli, started, number, code):
    name = f"cut/lines-{code}"
    cli("stream", "create", name, *JSON).ok()
    process = started("stream", "append", name, "--json-lines", "--json")
    process.stdin.write(b"".join(b"%d\n" % n for n in range(1000)) + b'"cut in the mi')
    process.stdin.flush()
    until(lambda: cli("stream", "read", name).out.count(b"\n") == 1000, "stored")
    process.send_signal(number)
    out, err = process.communicate(timeout=ENOUGH_S)
    assert process.returncode == code
    done = json.loads(out)
    assert (done["interrupted"], done["messages"]) == (True, 1000)
    assert b"The first 1,000 messages are stored" in err
    assert cli("stream", "read", name).ok().out.count(b"\n") == 1000


def test_an_append_on_its_way_is_finished_first(cli, started, live):
    """The server is stopped in the middle of the append: Ctrl-C waits for it, and says that it is stored."""
    cli("stream", "create", "cut/late", "--type", "text/plain").ok()
    process = started("stream", "append", "cut/late", "--json")
    type_in(process, b"all ")
    os.kill(live.pid, signal.SIGSTOP)
    try:
        process.stdin.write(b"of it")
        process.stdin.close()
        process.stdin = None
        time.sleep(0.8)
        process.send_signal(signal.SIGINT)
        assert b"finishing" in (process.stderr.readline() + process.stderr.readline())
        assert process.poll() is None
    finally:
        os.kill(live.pid, signal.SIGCONT)
    out, _ = process.communicate(timeout=ENOUGH_S)
    assert process.returncode == 130
    assert json.loads(out)["interrupted"] is True
    assert cli("stream", "read", "cut/late").ok().out == b"all of it"


def test_ctrl_c_twice_ends_a_large_append_at_once(cli, started, live):
    cli("stream", "create", "cut/twice", *JSON).ok()
    process = started("stream", "append", "cut/twice", "--json-lines")
    type_in(process, b"1\n2\n")
    until(lambda: cli("stream", "read", "cut/twice").out == b"1\n2\n", "stored")
    os.kill(live.pid, signal.SIGSTOP)
    try:
        type_in(process, b"3\n")
        for _ in range(2):
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=5)
    finally:
        os.kill(live.pid, signal.SIGCONT)
    assert process.returncode == 130
    assert b"The first 2 messages are stored" in err
    assert b"A few more may be" in err


def test_a_second_signal_does_not_wait():
    with Interrupts() as interrupts:
        with interrupts.held():
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda: interrupts.received, "received")
            assert interrupts.exit_code == 143
            with pytest.raises(KeyboardInterrupt):
                interrupt_and_wait()
        assert interrupts.exit_code == 130


def interrupt_and_wait():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(ENOUGH_S)


def test_a_held_signal_is_raised_when_all_is_well():
    with Interrupts() as interrupts:
        interrupts.check()
        with interrupts.held():
            os.kill(os.getpid(), signal.SIGINT)
            until(lambda: interrupts.received, "received")
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


# --- reads


def test_tail_ends_with_130_and_says_where_to_go_on(cli, started):
    cli("stream", "create", "cut/tail", *JSON).ok()
    cli("stream", "append", "cut/tail", "-m", "1").ok()
    process = started("stream", "tail", "cut/tail", "--from", "beginning")
    assert lines_of(process, 1) == [b"1\n"]
    cli("stream", "append", "cut/tail", "-m", "22").ok()
    assert lines_of(process, 1) == [b"22\n"]
    time.sleep(0.3)  # what is printed when the signal comes would be printed again
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=ENOUGH_S)
    assert (process.returncode, out) == (130, b"")
    place = err.decode().split("--from ")[1].strip()
    cli("stream", "append", "cut/tail", "-m", "333").ok()
    assert cli("stream", "read", "cut/tail", "--from", place).ok().out == b"333\n"


def test_tail_outlives_a_restart_of_the_server(cli, started, live):
    cli("stream", "create", "cut/restart", *JSON).ok()
    cli("stream", "append", "cut/restart", "-m", "1").ok()
    process = started("stream", "tail", "cut/restart", "--from", "beginning")
    assert lines_of(process, 1) == [b"1\n"]
    live.restart()
    cli("stream", "append", "cut/restart", "-m", "2").ok()
    cli("stream", "close", "cut/restart").ok()
    out, err = process.communicate(timeout=ENOUGH_S)
    assert (process.returncode, out) == (0, b"2\n"), err


def test_a_reader_that_goes_away_ends_the_command_quietly(cli, started):
    cli("stream", "create", "cut/pipe", "--type", "text/plain").ok()
    cli("stream", "append", "cut/pipe", stdin=b"line\n" * 2_000_000).ok()
    process = started("stream", "read", "cut/pipe")
    assert lines_of(process, 1) == [b"line\n"]
    process.stdout.close()
    assert process.wait(ENOUGH_S) == 141
    assert process.stderr.read() == b""


def cut_in_the_middle(whole, target):
    with whole(target) as place:
        place.write(b"half") if whole is whole_file else (place / "part").write_bytes(b"half")
        raise KeyboardInterrupt


@pytest.mark.parametrize("whole", [whole_file, whole_folder])
def test_output_that_is_cut_leaves_nothing(whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        cut_in_the_middle(whole, tmp_path / "output")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_cut_stays_as_it_was(tmp_path):
    (tmp_path / "output").write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt):
        cut_in_the_middle(whole_file, tmp_path / "output")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]


# --- at a terminal


class Terminal:
    """A pseudo-terminal of 100 columns, and what was printed to it."""

    def __init__(self) -> None:
        self._screen, self.end = pty.openpty()
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.printed = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while select.select([self._screen], [], [])[0]:
            try:
                piece = os.read(self._screen, 65_536)
            except OSError:  # the other end is closed
                return
            self.printed += piece.decode(errors="replace")

    def press(self, keys: bytes) -> None:
        os.write(self._screen, keys)

    def close(self) -> None:
        os.close(self.end)
        self._reader.join(ENOUGH_S)
        os.close(self._screen)


@pytest.fixture
def terminal():
    opened = Terminal()
    yield opened
    opened.close()


def test_ctrl_c_at_a_terminal_leaves_it_clean(cli, started, terminal):
    cli("stream", "create", "tty/tail", *JSON).ok()
    cli("stream", "append", "tty/tail", "-m", '{"text": "\\u001b[2J", "n": 1}').ok()
    before = termios.tcgetattr(terminal.end)
    process = started("stream", "tail", "tty/tail", "--from", "beginning", stdout=terminal.end, stderr=terminal.end)
    until(lambda: "text" in terminal.printed, "printed")
    process.send_signal(signal.SIGINT)
    assert process.wait(ENOUGH_S) == 130
    until(lambda: "stopped" in terminal.printed, "told where to go on")
    assert "\x1b[32m" in terminal.printed, "JSON has colours"
    assert terminal.printed.count("\x1b[?25l") == terminal.printed.count("\x1b[?25h"), "the cursor is back"
    assert termios.tcgetattr(terminal.end) == before


def test_a_slow_append_shows_a_bar_and_wipes_it_away(cli, started, terminal):
    cli("stream", "create", "tty/slow", *JSON).ok()
    process = started("stream", "append", "tty/slow", "--json-lines", stderr=terminal.end)
    process.stdin.write(b"1\n" * 1000)
    process.stdin.flush()
    until(lambda: "appending" in terminal.printed, "shown")
    process.send_signal(signal.SIGINT)
    assert process.wait(ENOUGH_S) == 130
    until(lambda: "interrupted" in terminal.printed, "told")
    assert "\x1b[?25l" in terminal.printed
    assert terminal.printed.rindex("\x1b[?25h") > terminal.printed.rindex("\x1b[?25l"), "the cursor is back"


def test_a_slow_read_shows_how_far_it_is(cli, started, terminal):
    cli("stream", "create", "tty/large", "--type", "text/plain").ok()
    body = b"x" * 12_000_000
    cli("stream", "append", "tty/large", stdin=body).ok()
    process = started("stream", "read", "tty/large", stderr=terminal.end)
    until(lambda: "/11.4 MiB" in terminal.printed.replace("\x1b[32m", ""), "shown")  # nobody reads, so it has to wait
    assert process.stdout.read() == body
    assert process.wait(ENOUGH_S) == 0
    assert terminal.printed.rindex("\x1b[?25h") > terminal.printed.rindex("\x1b[?25l"), "the cursor is back"


def test_tables_and_sizes_for_people(cli, started, terminal):
    name = "a-name-that-is-long-" * 3
    cli("stream", "create", f"tables/{name}", "--type", "text/plain", "-m", "x" * 2048).ok()
    process = started("stream", "ls", "tables", stdout=terminal.end)
    assert process.wait(ENOUGH_S) == 0
    until(lambda: "KiB" in terminal.printed, "printed")
    assert "last write" in terminal.printed
    assert "2.0 KiB" in terminal.printed


def test_binary_is_not_thrown_at_a_terminal(cli, started, terminal):
    cli("stream", "create", "tty/binary", "--type", "application/octet-stream", "-m", "x").ok()
    process = started("stream", "read", "tty/binary", stdout=terminal.end)
    assert process.wait(ENOUGH_S) == 2
    assert b"--output" in process.stderr.read()


def test_delete_asks_where_there_is_somebody_to_ask(cli, started, terminal):
    cli("stream", "create", "tty/asked", "--type", "text/plain").ok()
    for keys, code in ((b"n\n", 1), (b"y\n", 0)):
        asked = terminal.printed.count("[y/N]")
        process = started("stream", "delete", "tty/asked", stdin=terminal.end, stderr=terminal.end)
        until(lambda asked=asked: terminal.printed.count("[y/N]") > asked, "asked")
        terminal.press(keys)
        assert process.wait(ENOUGH_S) == code
    assert cli("stream", "head", "tty/asked").code == 4
