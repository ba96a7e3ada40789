"""`millstream s3p`: from standard input, following, and what is said when something is wrong. More in docs/s3p.md."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.conftest import ServerProcess, clean_environment

from millstream.cli.exits import Exit
from millstream.cli.main import run
from millstream.cli.s3p import app
from millstream.client.s3p import S3pClient

COMMANDS = sorted(command.name or "" for command in app.registered_commands)


@pytest.fixture(scope="module")
def running(module_server) -> ServerProcess:
    return module_server()


@pytest.fixture
def client(running) -> Iterator[S3pClient]:
    with S3pClient("127.0.0.1", running.s3p_port) as client:
        yield client


def command(running: ServerProcess, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "millstream", "s3p", *arguments, "--server", f"127.0.0.1:{running.s3p_port}"]


def test_the_commands_are_those_of_the_protocol():
    assert COMMANDS == ["append", "create", "delete", "read", "trim"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name, capsys):
    assert run(["s3p", name, "--help"]) == 0
    assert f"Example: millstream s3p {name}" in capsys.readouterr().out


def test_lines_of_standard_input_are_records(running, client):
    client.create("lines")
    text = b"".join(b"line %d\n" % number for number in range(1200)) + b"\r\n\nlast without an end"
    done = subprocess.run(
        command(running, "append", "lines"), input=text, capture_output=True, timeout=30, check=True,
        env=clean_environment(),
    )  # fmt: skip
    records = client.read("lines") + client.read("lines", after=client.read("lines")[-1].id)
    assert len(records) == 1201
    assert records[-1].data == b"last without an end"
    assert done.stdout.split()[-1].decode() == str(records[-1].id)


def test_reading_goes_on_beyond_one_answer(running, client, capsys):
    client.create("many")
    for _ in range(3):
        client.append("many", [b"x"] * 900)
    server = f"127.0.0.1:{running.s3p_port}"
    assert run(["s3p", "read", "many", "--json", "--server", server]) == 0
    assert len(list(map(json.loads, capsys.readouterr().out.splitlines()))) == 2700


def test_binary_records_are_shown_in_base64(running, client, capsys):
    client.create("binary")
    last = client.append("binary", [b"\xff\x00"])
    assert run(["s3p", "read", "binary", "--json", "--server", f"127.0.0.1:{running.s3p_port}"]) == 0
    assert json.loads(capsys.readouterr().out) == {"id": str(last), "base64": "/wA="}


def test_every_command_says_what_it_did_as_json(running, capsys):
    server = ["--json", "--server", f"127.0.0.1:{running.s3p_port}"]

    def said(*arguments: str) -> object:
        assert run(["s3p", *arguments, *server]) == 0
        return json.loads(capsys.readouterr().out)

    assert said("create", "told", "--client-ids") == {"stream": "told", "client_ids": True}
    assert said("append", "told", "a", "b", "--id", "7-1") == {"last_id": "7-2"}
    assert said("trim", "told", "--until", "7-2") == {"stream": "told", "until": "7-2"}
    assert said("read", "told") == {"id": "7-2", "data": "b"}
    assert said("delete", "told") == {"stream": "told", "deleted": True}


def test_exit_codes_tell_what_is_wrong(running, client, capsys):
    client.create("there")
    server = ["--server", f"127.0.0.1:{running.s3p_port}"]
    assert run(["s3p", "read", "nobody", *server]) == Exit.NOT_FOUND
    assert run(["s3p", "create", "there", *server]) == Exit.CONFLICT
    assert run(["s3p", "append", "there", "x", "--id", "1-1", *server]) == Exit.USAGE
    assert run(["s3p", "read", "there", "--server", f"127.0.0.1:{running.port}"]) == Exit.NOT_SUPPORTED
    assert capsys.readouterr().err.count("\n") == 4


def test_following_prints_what_comes_until_interrupted(running, client):
    client.create("tail")
    client.append("tail", [b"old"])
    process = subprocess.Popen(
        command(running, "read", "tail", "--follow"), stdout=subprocess.PIPE, env=clean_environment()
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().endswith(b" old\n")
        client.append("tail", [b"new"])
        assert process.stdout.readline().endswith(b" new\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["read", "x", "--server", "nowhere"], "HOST:PORT"),
        (["read", "x", "--follow", "--count", "3"], "--follow"),
        (["append", "x", "--id", "1-1"], "--id"),
        (["trim", "x"], "--until"),
        (["trim", "x", "--until", "soon"], "<ms>-<seq>"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_a_wrong_use_is_one_sentence_on_stderr(arguments, expected, capsys):
    assert run(["s3p", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert expected in printed.err


def test_a_server_that_is_not_there_is_said_so(capsys):
    assert run(["s3p", "read", "x", "--server", "127.0.0.1:1"]) == Exit.UNREACHABLE
    assert "No reply from 127.0.0.1:1" in capsys.readouterr().err
