"""The shape of the source: which folder may import which, and what must not stand in any file."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "millstream"
SOURCES = sorted(PACKAGE.rglob("*.py"))
LINES_MAX = 500
MADE_BY_TOOLS = {".git", ".venv", "node_modules", "__pycache__", "data", "build", "dist"} | {
    f".{tool}" for tool in ("hypothesis", "mypy_cache", "pytest_cache", "ruff_cache")
}

# Imports point one way. Every folder may import itself and the values of `model`.
MAY_IMPORT = {
    "model": set(),
    "engine": set(),
    "protocol": set(),
    "storage": set(),
    "replication": {"storage"},
    "node": {"engine", "storage", "replication"},
    "server": {"node", "protocol", "storage", "replication"},
    "client": {"protocol"},
    "spark": {"client", "storage"},
    "cli": {"server", "client", "spark", "storage"},
    "__main__": {"cli"},
    "__init__": set(),
}

# Where a folder is open to another only in part: `millstream doctor` works on files without a server.
ONLY_PARTS = {
    ("spark", "storage"): {"archive", "files", "objects", "ports", "segments"},
    ("cli", "storage"): {"segments", "ports", "doctor"},
}

# The pure folders are given time, chance and bytes as values; the shell around them does the rest.
NEVER = {
    "engine": {"asyncio", "os", "pathlib", "random", "secrets", "socket", "threading", "time"},
    "protocol": {"asyncio", "select", "selectors", "socket", "socketserver", "ssl"},
}


def imported(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(line, dotted name in parts) of every import, also those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                yield node.lineno, (*module, alias.name)


def objection(folder: str, name: tuple[str, ...]) -> str | None:
    """Why a file of `folder` should not import `name`, or None."""
    if name[0] != "millstream":
        return f"`{folder}` stays free of {name[0]}" if name[0] in NEVER.get(folder, ()) else None
    target = name[1] if len(name) > 1 else "__init__"
    if target in (folder, "model", "__version__", "__init__"):
        return None
    if target not in MAY_IMPORT[folder]:
        return f"`{folder}` does not know `{target}`; perhaps the code belongs in a folder that knows both"
    parts = ONLY_PARTS.get((folder, target))
    if parts is not None and (len(name) < 3 or name[2] not in parts):
        return f"`{folder}` uses of `{target}` only {', '.join(sorted(parts))}"
    return None


def objections(path: Path, source: str) -> list[str]:
    inside = path.relative_to(PACKAGE)
    folder = inside.parts[0].removesuffix(".py")
    if folder not in MAY_IMPORT:
        return [f"{inside}: the folder is new; please add it to MAY_IMPORT in tests/test_tidy.py"]
    found = imported(ast.parse(source), ("millstream", *inside.parent.parts))
    return [f"{inside}:{line}: {why}" for line, name in found if (why := objection(folder, name))]


def text_files() -> Iterator[tuple[Path, str]]:
    for path in sorted(kept_files()):
        content = path.read_bytes() if path.is_file() else b"\0"
        if b"\0" not in content[:8192]:
            yield path, content.decode("utf-8", errors="replace")


def kept_files() -> list[Path]:
    """What git keeps or would keep; without git, everything outside folders that tools make."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.CalledProcessError):
        found = (path for path in ROOT.rglob("*") if path.is_file())
        return [path for path in found if MADE_BY_TOOLS.isdisjoint(path.relative_to(ROOT).parts)]
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def listed(sentence: str, places: list[str]) -> str:
    return "\n  ".join((sentence, *places))


def test_imports_point_one_way():
    found = [why for path in SOURCES for why in objections(path, path.read_text())]
    assert not found, listed("Some imports point the wrong way (STYLE: imports point one way):", found)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("engine/x.py", "import time"),
        ("engine/x.py", "from os import path"),
        ("engine/x.py", "def f():\n    import random"),
        ("engine/x.py", "from millstream.storage import ports"),
        ("engine/x.py", "from ..storage import ports"),
        ("protocol/http/x.py", "import socket"),
        ("protocol/http/x.py", "from ...node import clock"),
        ("storage/journal/x.py", "from millstream.engine.state import Stream"),
        ("client/x.py", "import millstream.server.settings"),
        ("cli/x.py", "from millstream.storage.journal import file"),
        ("elsewhere/x.py", ""),
    ],
)
def test_the_import_rule_sees_what_it_should(file, line):
    assert objections(PACKAGE / file, line)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("engine/x.py", "from millstream.model.offsets import Offset"),
        ("engine/x.py", "from .state import Stream"),
        ("server/x.py", "from millstream.node.node import Node"),
        ("server/x.py", "from millstream import __version__"),
        ("cli/x.py", "from millstream.storage.doctor import examine"),
        ("node/x.py", "import time"),
    ],
)
def test_the_import_rule_leaves_the_rest_alone(file, line):
    assert objections(PACKAGE / file, line) == []


def test_the_engine_never_waits():
    waiting = ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        if "engine" in path.relative_to(PACKAGE).parts[:1]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, waiting)
    ]
    assert not found, listed("The engine decides and never waits; please move this into `node`:", found)


def test_the_time_is_read_in_one_place():
    """Clients and tools aside: they have no log whose clock could be another."""
    reading = re.compile(r"\btime\.(time|time_ns|clock_gettime_ns|clock_gettime)\(|datetime\.now\(")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        if path.relative_to(PACKAGE).parts[0] in ("engine", "node", "protocol", "server", "storage")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if reading.search(line) and path != PACKAGE / "node" / "clock.py"
    ]
    assert not found, listed("Which clock is it to be? Please ask `node.clock`:", found)


def test_files_stay_short_enough_to_hold_one_idea():
    sizes = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in SOURCES}
    found = [f"{path}: {lines} lines" for path, lines in sizes.items() if lines > LINES_MAX]
    assert not found, listed(f"Over {LINES_MAX} lines; which second idea could have its own file?", found)


def test_no_path_of_one_machine():
    personal = re.compile(r"(?<![\w.:/~}-])/(?:home|root|work|Users)/[\w.]")
    found = lines_with(personal)
    assert not found, listed("These lines name a folder of one machine; a relative path works anywhere:", found)


def test_no_package_registry():
    # In pieces, or this file would be the first finding.
    domains = ("pypi org", "pythonhosted org", "npmjs org", "npmjs com", "yarnpkg com", "npmmirror com")
    hosts = re.compile("|".join(re.escape(domain.replace(" ", ".")) for domain in domains))
    found = lines_with(hosts)
    assert not found, listed("These lines name a package registry; which one is used is not ours to say:", found)
