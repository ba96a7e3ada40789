"""`millstream version`."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

import millstream
from millstream.cli.output import print_json


def version(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the version."""
    if as_json:
        print_json({"millstream": millstream.__version__, "python": platform.python_version()})
        return
    print(f"millstream {millstream.__version__}")
