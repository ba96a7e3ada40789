"""`millstream settings`: the table of every setting, from the place where they are declared."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from millstream.cli.output import console, print_json
from millstream.server.setting_kinds import Key
from millstream.server.settings import KEYS


def settings(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List every setting with its default and what it does.

    Each can be a key of the TOML file, a variable such as MILLSTREAM_LONG_POLL_MS, or --set KEY=VALUE.
    """
    if as_json:
        print_json([_as_value(key) for key in KEYS.values()])
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("what it does")
    for key in KEYS.values():
        table.add_row(key.name, key.shown(key.default) or "-", key.description)
    console().print(table)


def _as_value(key: Key) -> dict[str, Any]:
    return {
        "name": key.name,
        "environment": key.environment_name,
        "default": key.default if isinstance(key.default, int | float | tuple) else str(key.default),
        "kind": key.kind.value,
        "allowed": key.allowed(),
        "description": key.description,
    }
