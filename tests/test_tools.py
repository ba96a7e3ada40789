"""Which Python the venv is made with: builds of one version differ by half in speed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "fastest_python.sh"


class Machine:
    """A PATH with pretended Pythons, and with the few commands that the script needs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders: list[Path] = []
        tools = root / "tools"
        tools.mkdir()
        for command in ("awk", "readlink"):
            found = shutil.which(command)
            assert found is not None, f"install {command}"
            (tools / command).symlink_to(found)

    def add(self, folder: str, name: str, says: str) -> str:
        """A Python that says this version and so many seconds; without words it is a shim for nothing."""
        if self.root / folder not in self.folders:
            self.folders.append(self.root / folder)
        file = self.root / folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\necho '{says}' '{file}'\n" if says else "#!/bin/sh\necho no >&2; exit 127\n")
        file.chmod(0o755)
        return str(file)

    def chosen(self) -> str:
        path = os.pathsep.join(map(str, [*self.folders, self.root / "tools"]))
        shell = shutil.which("sh")
        assert shell is not None
        found = subprocess.run(
            [shell, SCRIPT], env={"PATH": path}, capture_output=True, text=True, check=True, timeout=60
        )
        return found.stdout.rstrip("\n")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_fastest_build_is_chosen(machine):
    machine.add("shims", "python3.11", "3.11 0.0090")
    fast = machine.add("usr bin", "python3.11", "3.11 0.0060")
    machine.add("local", "python3.11", "3.11 0.0061")
    assert machine.chosen() == fast


def test_a_build_that_is_hardly_faster_does_not_displace_the_first(machine):
    first = machine.add("first", "python3.11", "3.11 0.0100")
    machine.add("second", "python3.11", "3.11 0.0095")
    assert machine.chosen() == first


def test_another_version_is_not_chosen_for_its_speed(machine):
    wanted = machine.add("first", "python3.11", "3.11 0.0100")
    machine.add("second", "python3.12", "3.12 0.0010")
    assert machine.chosen() == wanted


def test_shims_for_nothing_are_passed_over(machine):
    machine.add("shims", "python3.11", "")
    newer = machine.add("shims", "python3.13", "3.13 0.0100")
    assert machine.chosen() == newer


def test_a_machine_without_python_is_told_nothing(machine):
    assert machine.chosen() == ""


def test_the_python_chosen_here_can_make_a_venv():
    found = subprocess.run(["sh", SCRIPT], capture_output=True, text=True, check=True, timeout=60).stdout.rstrip("\n")
    probe = "import ensurepip, sys, venv; print(sys.version_info >= (3, 11))"
    assert subprocess.run([found, "-c", probe], capture_output=True, check=True).stdout == b"True\n"


def make_venv(folder: Path, *python: str) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.with_name("make_venv.sh")
    return subprocess.run(["sh", script, folder, *python], capture_output=True, text=True, check=False, timeout=90)


def test_a_python_that_is_not_there_is_named(tmp_path):
    made = make_venv(tmp_path / "venv", "nosuch")
    assert (made.returncode, made.stderr) == (1, "PYTHON=nosuch: there is no such program on the PATH.\n")
    assert not (tmp_path / "venv").exists()


def test_a_half_made_venv_is_made_again(tmp_path):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text("half a file")
    made = make_venv(venv, sys.executable)
    assert made.returncode == 0, made.stderr
    assert subprocess.run([venv / "bin" / "pip", "--version"], capture_output=True, check=True, timeout=30).stdout
    assert (venv / ".stamp-venv").exists()


def test_a_venv_that_is_whole_is_left_alone(tmp_path):
    (tmp_path / ".stamp-venv").touch()
    made = make_venv(tmp_path, "nosuch")
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "")
