"""docs/s3p.md is true: its transcripts are run against a server, its tables are compared with the code."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.conftest import clean_environment
from tests.server.s3p.wire import Wire

from millstream.cli.main import run
from millstream.protocol.s3p import error_table
from millstream.server.settings import KEYS

PAGE = (Path(__file__).parents[3] / "docs" / "s3p.md").read_text()
ID = re.compile(rb"\b\d{13}-(\d+)\b")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def with_its_ms(text: bytes, ms: bytes) -> bytes:
    """The page's ids, with the time at which the server made them."""
    return ID.sub(lambda found: ms + b"-" + found[1], text)


def test_the_transcripts_are_what_a_server_says(server):
    port = server().s3p_port
    transcripts = blocks("s3p")
    assert len(transcripts) == 6
    ms = b"1700000001234"
    for transcript in transcripts:
        lines = transcript.encode().splitlines()
        sent = b"".join(line[2:] + b"\r\n" for line in lines if line.startswith(b"> "))
        expected = b"".join(line[2:] + b"\r\n" for line in lines if line.startswith(b"< "))
        with Wire(port) as wire:
            wire.send(with_its_ms(sent, ms))
            wire.end_sending()
            found = wire.rest()
        if b"APPEND" in sent:
            ms = ID.search(found)[0].partition(b"-")[0]
        assert found == with_its_ms(expected, ms)


def test_the_shell_session_is_what_the_shell_says(server, capfdbinary):
    running = server()

    def printed_by(command: str) -> str:
        code = run([*shlex.split(command)[1:], "--server", f"127.0.0.1:{running.s3p_port}"])
        sys.stdout.flush()
        printed = capfdbinary.readouterr()
        assert code == (4 if printed.err else 0)
        return (printed.out + printed.err).decode()

    (session,) = blocks("console")
    ms = b"1700000001234"
    for part in re.split(r"^\$ ", session, flags=re.M)[1:]:
        command, _, expected = part.partition("\n")
        printed = printed_by(with_its_ms(command.encode(), ms).decode())
        if " append " in command:
            ms = printed.partition("-")[0].encode()
        assert printed == with_its_ms(expected.encode(), ms).decode()


def test_the_python_example_runs(server):
    port = server().s3p_port
    (example,) = blocks("python")
    script = textwrap.dedent(example).replace("7500", str(port))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True, env=clean_environment()
    )
    assert re.sub(r"\d{13}", "MS", done.stdout) == "MS-0 b'hello'\nMS-1 b'world'\n"


def test_every_error_and_limit_is_documented():
    codes = {value for name, value in vars(error_table).items() if name.isupper() and isinstance(value, str)}
    assert codes == set(re.findall(r"^\| `(ERR_\w+)` \|", PAGE, re.M))
    limits = {name for name in KEYS if name.startswith("s3p.") and name.endswith("_max")} - {"s3p.read_bytes_max"}
    assert limits | {"s3p.idle_timeout_s"} == set(re.findall(r"^\| `(s3p\.\w+)` \|", PAGE, re.M))
    for name in KEYS:
        assert not name.startswith("s3p.") or name in PAGE, name
