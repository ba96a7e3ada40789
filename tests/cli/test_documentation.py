"""docs/cli.md is true: every command in it is run, and prints what stands there; every command and code is in it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.cli.exits import MEANINGS

from .conftest import environment

PAGE = Path(__file__).parent.parent.parent / "docs" / "cli.md"
CHANGES_EVERY_TIME = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME"),
    (r"\b\d{13}\b", "MS"),
    (r"\b[0-9a-f]{16}\.\d+", "POSITION"),
    (r"\b[0-9a-f]{8}-\d+", "STREAM-ID"),
    (r"\b[0-9a-f]{32}\b", "PRODUCER-ID"),
    (r"127\.0\.0\.1:\d+", "SERVER"),
    (r"\d+ s left", "SOME s left"),
)


def steady(text: str) -> str:
    for pattern, name in CHANGES_EVERY_TIME:
        text = re.sub(pattern, name, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def examples() -> list[tuple[str, str]]:
    """Each command of the page, and what it says is printed."""
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    parts = re.split(r"^\$ (.*)\n", "".join(blocks), flags=re.M)
    return list(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture
def shell(cli, live, tmp_path, monkeypatch):
    """Run a line; without anything for a shell in it, in this process, which is ten times as fast."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "bin" / "millstream"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m millstream "$@"\n')
    program.chmod(0o755)
    variables = {**environment(live), "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}

    def call(line: str) -> str:
        if line.startswith("millstream ") and not set("|<>&;$") & set(line):
            done = cli(*shlex.split(line)[1:])
            return done.text + done.err
        command = ["bash", "-c", line]
        ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=30, check=False)
        return ran.stdout + ran.stderr

    return call


def test_every_example_prints_what_the_page_says(shell):
    ran = 0
    for line, expected in examples():
        assert steady(shell(line)) == steady(expected), f"after: {line}"
        ran += 1
    assert ran > 25


def test_every_exit_code_is_documented():
    rows = [f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items()]
    assert "\n".join(("| code | meaning |", "|---|---|", *rows)) in PAGE.read_text()


# --- completion


def complete(live, words: str) -> list[str]:
    variables = {
        **environment(live),
        "_MILLSTREAM_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    command = [sys.executable, "-c", "from millstream.cli.main import main; main()"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_and_names_are_completed(cli, live):
    assert complete(live, "millstream stream ta") == ["tail"]
    for name in ("room-1", "room-2", "other"):
        cli("stream", "create", f"completed/{name}").ok()
    assert complete(live, "millstream stream tail completed/room") == ["completed/room-1", "completed/room-2"]
    assert complete(live, "millstream stream tail missing/room") == []


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_documented_way_prints_a_script(name):
    documented = re.search(rf"^(_MILLSTREAM_COMPLETE=source_{name}) millstream > \S+", PAGE.read_text(), re.M)
    assert documented
    variables = {**os.environ, "_MILLSTREAM_COMPLETE": f"source_{name}"}
    command = [sys.executable, "-c", "from millstream.cli.main import main; main()"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=30, check=True)
    assert "_MILLSTREAM_COMPLETE" in done.stdout


def test_completion_can_be_installed(tmp_path):
    variables = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "millstream", "--install-completion", "bash"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert any("millstream" in path.name for path in tmp_path.rglob("*") if path.is_file())
