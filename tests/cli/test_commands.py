"""The commands: what they hand over, what they print, how they fail."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import millstream
from millstream.cli.exits import MEANINGS, Exit
from millstream.cli.main import commands, run
from millstream.server.settings import KEYS, Settings


def every_command(group, before=()) -> list[tuple[str, ...]]:
    """All commands as one types them, groups of commands among them."""
    found = []
    for name, command in group.commands.items():
        found.append((*before, name))
        if hasattr(command, "commands"):
            found += every_command(command, (*before, name))
    return found


COMMANDS = every_command(commands())


@pytest.fixture(autouse=True)
def _no_settings_from_the_shell(monkeypatch):
    for key in KEYS.values():
        monkeypatch.delenv(key.environment_name, raising=False)


# --- help


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command, capsys):
    assert run([*command, "--help"]) == 0
    printed = capsys.readouterr().out
    named = " ".join(command)
    assert f"Example: millstream {named}" in printed, f"please give `{named}` an epilog with an example"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_can_print_json(command, capsys):
    run([*command, "--help"])
    printed = capsys.readouterr().out
    if "COMMAND [ARGS]" not in printed and command != ("serve",):  # a group; and a server prints its log
        assert "--json" in printed


@pytest.mark.parametrize("group", ["bucket", "stream", "snapshot"])
def test_a_group_alone_shows_its_help(group, capsys):
    assert run([group]) == 0
    assert "Commands:" in capsys.readouterr().out


def test_every_exit_code_has_a_meaning():
    assert list(MEANINGS) == list(Exit)


# --- what is loaded


LOADED = "import sys; from millstream.cli.main import run; run({}); print(*sys.modules, sep=chr(10), file=sys.stderr)"


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["stream", "--help"]], ids=" ".join)
def test_quick_commands_load_little(arguments):
    done = subprocess.run([sys.executable, "-c", LOADED.format(arguments)], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "millstream.cli.main" in loaded
    heavy = {"httpx", "rich.console", "rich.table", "asyncio", "millstream.client", "millstream.server.process"}
    assert not loaded & heavy, "please import these inside the functions that need them"


def test_without_arguments_the_help_is_shown(capsys):
    assert run([]) == 0
    assert "serve" in capsys.readouterr().out


# --- errors


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["frobnicate"], "frobnicate"),
        (["serve", "--frobnicate"], "--frobnicate"),
        (["serve", "--listen", "nowhere"], "HOST:PORT"),
        (["serve", "--listen", "0.0.0.0:4437"], "--insecure"),
        (["serve", "--config", "missing.toml"], "missing.toml"),
        (["serve", "--set", "long_poll_ms"], "--set long_poll_ms=500"),
        (["serve", "--set", "=5"], "--set long_poll_ms=500"),
        (["serve", "--set", "long_pol_ms=5"], "did you mean long_poll_ms?"),
        (["serve", "--set", "long_poll_ms=5", "--set", "long_poll_ms=6"], "given twice"),
        (["serve", "--listen", "[::1]:1", "--set", "listen=[::1]:2"], "given twice"),
        (["doctor", "--data-dir", "no-such-folder"], "no-such-folder"),
    ],
)
def test_an_error_is_one_sentence_on_stderr(arguments, expected, capsys):
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("millstream: ")
    assert expected in printed.err


def test_brackets_survive_in_errors(capsys):
    run(["serve", "--listen", "[::]:4437"])
    assert "[::]:4437" in capsys.readouterr().err


# --- version and settings


def test_version(capsys):
    assert run(["version"]) == 0
    assert capsys.readouterr().out == f"millstream {millstream.__version__}\n"


def test_version_as_json(capsys):
    assert run(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["millstream"] == millstream.__version__


def test_settings_lists_every_key(capsys):
    assert run(["settings"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in KEYS)


def test_settings_as_json(capsys):
    assert run(["settings", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed.keys() == KEYS.keys()
    assert listed["long_poll_ms"]["default"] == 3000
    assert listed["long_poll_ms"]["environment"] == "MILLSTREAM_LONG_POLL_MS"


# --- serve: the server itself is replaced, as only the hand-over is at stake here


@pytest.fixture
def handed_over(monkeypatch) -> list[Settings]:
    received: list[Settings] = []
    process = ModuleType("millstream.server.process")
    process.run = lambda settings: received.append(settings) or 0
    monkeypatch.setitem(sys.modules, "millstream.server.process", process)
    return received


def test_serve_hands_over_what_the_options_say(handed_over, tmp_path):
    options = [
        "--listen",
        "0.0.0.0:0",
        "--insecure",
        "--data-dir",
        str(tmp_path),
        "--set",
        "long_poll_ms=500",
    ]
    assert run(["serve", *options, "--set", "hot_bytes_max=1MiB"]) == 0
    (settings,) = handed_over
    assert settings == Settings(
        listen="0.0.0.0:0", insecure=True, data_dir=tmp_path, long_poll_ms=500, hot_bytes_max=1 << 20
    )


def test_serve_reads_file_and_environment(handed_over, tmp_path, monkeypatch):
    config = tmp_path / "millstream.toml"
    config.write_text('node_id = "from-file"\nlong_poll_ms = 1\ninsecure = true\n')
    monkeypatch.setenv("MILLSTREAM_LONG_POLL_MS", "2")
    assert run(["serve", "--config", str(config)]) == 0
    assert handed_over == [Settings(node_id="from-file", long_poll_ms=2, insecure=True)]


def test_serve_leaves_the_variables_of_other_commands_alone(handed_over, monkeypatch):
    monkeypatch.setenv("MILLSTREAM_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("MILLSTREAM_TOKEN", "secret")
    assert run(["serve"]) == 0
    assert handed_over == [Settings()]


def test_an_unexpected_failure_is_a_sentence_too(handed_over, monkeypatch, capsys):
    def fail(settings):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(sys.modules["millstream.server.process"], "run", fail)
    assert run(["serve"]) == 2
    assert "out of luck" in capsys.readouterr().err
    with pytest.raises(RuntimeError):
        run(["--traceback", "serve"])


# --- doctor: the examination is replaced in the same way


@dataclass(frozen=True)
class Finding:
    severity: str
    what: str
    advice: str


@dataclass(frozen=True)
class Report:
    healthy: bool
    findings: tuple[Finding, ...]


HEALTHY = Report(True, (Finding("ok", "journal: 3 files", ""),))
SICK = Report(False, (Finding("error", "journal: bad frame [at 7]", "restore a copy"),))


@pytest.fixture
def practice(monkeypatch) -> ModuleType:
    module = ModuleType("millstream.storage.doctor")
    module.examine = lambda data_dir: SICK
    module.cut = lambda data_dir: HEALTHY
    monkeypatch.setitem(sys.modules, "millstream.storage.doctor", module)
    return module


def test_doctor_prints_findings_with_advice(practice, tmp_path, capsys):
    assert run(["doctor", "--data-dir", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "journal: bad frame [at 7]" in printed
    assert "restore a copy" in printed


def test_doctor_cuts_only_when_asked(practice, tmp_path, capsys):
    assert run(["doctor", "--data-dir", str(tmp_path), "--cut"]) == 0
    assert "healthy" in capsys.readouterr().out


def test_doctor_as_json(practice, tmp_path, capsys):
    assert run(["doctor", "--data-dir", str(tmp_path), "--json"]) == 1
    finding = {"severity": "error", "what": "journal: bad frame [at 7]", "advice": "restore a copy"}
    assert json.loads(capsys.readouterr().out) == {"healthy": False, "findings": [finding]}


def test_doctor_gets_the_folder(practice, tmp_path):
    asked: list[Path] = []
    practice.examine = lambda data_dir: asked.append(data_dir) or HEALTHY
    assert run(["doctor", "--data-dir", str(tmp_path)]) == 0
    assert asked == [tmp_path]
