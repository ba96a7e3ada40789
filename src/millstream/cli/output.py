"""What every command shares when it prints: errors as one sentence, tables, JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console


class CommandError(Exception):
    """A command cannot do what was asked. The text is one sentence that says what to do about it."""


def print_error(sentence: str) -> None:
    # Not through rich: it would take "[::1]" for markup and break long lines.
    print(f"millstream: {' '.join(sentence.split())}", file=sys.stderr)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def console() -> Console:
    """A console on the present stdout. Markup is off because what is printed contains brackets."""
    return Console(markup=False, highlight=False, emoji=False)
