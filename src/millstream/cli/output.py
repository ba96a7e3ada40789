"""What every command shares when it prints: errors as one sentence, tables and fields for people, JSON and plain
lines for programs. rich is imported only where something is printed with it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from millstream.cli.exits import Exit

if TYPE_CHECKING:
    from rich.console import Console

PAGE_ROWS = 500
_UNITS = ("KiB", "MiB", "GiB", "TiB")


class CommandError(Exception):
    """A command cannot do what was asked. The text is one sentence that says what to do about it."""

    def __init__(self, sentence: str, *, exit_code: Exit = Exit.USAGE, code: str = "usage") -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
        self.code = code


def print_error(sentence: str) -> None:
    # Not through rich: it would take "[::1]" for markup and break long lines.
    print(f"millstream: {' '.join(sentence.split())}", file=sys.stderr)


def print_error_json(sentence: str, code: str, exit_code: int) -> None:
    problem = {"code": code, "message": " ".join(sentence.split()), "exit_code": exit_code}
    print(json.dumps({"error": problem}), file=sys.stderr)


def print_note(sentence: str) -> None:
    """Something worth knowing that is no part of the output."""
    print_error(sentence)


def print_stop(sentence: str) -> None:
    """What had been done when Ctrl-C came; a terminal shows ^C on the line it stands in."""
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print_note(sentence)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def print_json_line(value: Any) -> None:
    """One of many: each on a line of its own."""
    print(json.dumps(value, ensure_ascii=False))


def console() -> Console:
    """A console on the present stdout. Markup is off because what is printed contains brackets."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False)


def for_people() -> bool:
    """Whether stdout is a terminal; otherwise some program reads it."""
    return sys.stdout.isatty()


# --- tables and fields


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on a terminal; else lines with tabs and no heading, for cut, awk and the like. Rows are printed page by
    page, so that a million of them take no more memory than a page."""
    if not for_people():
        for row in rows:
            print("\t".join(row))
        return
    page: list[Sequence[str]] = []
    first = True
    for row in rows:
        page.append(row)
        if len(page) == PAGE_ROWS:
            _print_table(columns, page, heading=first)
            page, first = [], False
    if page or first:
        _print_table(columns, page, heading=first)


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, heading: bool) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=heading)
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", style="cyan" if index == 0 else "")
    for row in rows:
        table.add_row(*map(visible, row))
    console().print(table)


def print_fields(fields: Mapping[str, str]) -> None:
    """What is known of one thing, a line for each."""
    if not for_people():
        for name, value in fields.items():
            print(f"{name}\t{value}")
        return
    from rich.text import Text

    width = max(map(len, fields))
    screen = console()
    for name, value in fields.items():
        screen.print(Text.assemble((f"{name:<{width}}  ", "dim"), visible(value)), soft_wrap=True)


def print_done(sentence: str, mark: str = "done") -> None:
    """What a command did, for people; the mark is green on a terminal."""
    from rich.text import Text

    console().print(Text.assemble((f"{mark}  ", "green"), visible(sentence)), soft_wrap=True)


# --- bytes


def write_bytes(data: bytes) -> None:
    """To stdout as they are. What was printed as text goes first."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def flush() -> None:
    sys.stdout.flush()
    sys.stdout.buffer.flush()


def drop_output() -> None:
    """Nobody reads stdout any more: let the interpreter's own flush at exit go nowhere instead of failing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def visible(text: str) -> str:
    """Text that may hold anything, safe for a terminal: control characters other than line ends and tabs are shown,
    not obeyed."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" or not _controls(char) else f"\\x{ord(char):02x}" for char in text
    )


def _controls(char: str) -> bool:
    return ord(char) < 32 or 127 <= ord(char) < 160


# --- numbers and times for people


def size_text(count: int) -> str:
    """4096 as 4.0 KiB."""
    if count < 1024:
        return f"{count} B"
    amount = float(count)
    for unit in _UNITS:
        amount /= 1024
        if amount < 1024 or unit == _UNITS[-1]:
            break
    return f"{amount:.1f} {unit}"


def count_text(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def time_text(ms: int) -> str:
    """A time on the wall, in UTC; empty for none."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if ms else ""
