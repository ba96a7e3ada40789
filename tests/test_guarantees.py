"""No promise without a test: every test that docs/guarantees.md names is there, and every promise names one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def promises() -> list[tuple[str, str]]:
    """The rows of the tables: what is promised, and what shows it."""
    rows = re.findall(r"^\| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    return [row for row in rows if row[0] != "promise"]


def functions_in(path: Path) -> dict[str, ast.AST]:
    tree = ast.parse(path.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: node for node in tree.body if isinstance(node, functions) and node.name.startswith("test_")}


def test_every_promise_names_a_test():
    found = promises()
    assert len(found) > 35
    silent = [promise for promise, shown_by in found if not NAMED.search(shown_by)]
    assert not silent, "\n".join(("These promises name no test:", *silent))


def test_everything_that_is_served_is_spoken_of():
    told = " ".join(promise.lower() for promise, _ in promises())
    served = ("append", "batch", "producer", "snapshot", "transaction", "feed", "bulk read", "lease", "s3p", "ttl")
    assert not [word for word in served if word not in told]


def test_every_named_test_is_there():
    missing = [
        f"{path}::{name}"
        for path, name in NAMED.findall(PAGE)
        if not (ROOT / path).exists() or name not in functions_in(ROOT / path)
    ]
    assert not missing, "\n".join(("docs/guarantees.md names tests that are not there:", *missing))


def test_what_is_called_long_has_a_long_form():
    for path, name in re.findall(NAMED.pattern + r" \(\*long\*", PAGE):
        marked = [
            function
            for function in functions_in(ROOT / path).values()
            if any("mark.torture" in ast.unparse(decorator) for decorator in function.decorator_list)
        ]
        assert marked, f"{path} has no test for `make torture`, yet {name} is called long"
