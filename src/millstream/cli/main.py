"""The entry point: collects the commands and turns whatever goes wrong into one sentence and an exit code.

Exit codes: 0 done, 1 the command ran and found something wrong, 2 it could not run, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from millstream.cli import pipeline
from millstream.cli.doctor import doctor
from millstream.cli.output import CommandError, print_error
from millstream.cli.serve import serve
from millstream.cli.settings import settings
from millstream.cli.version import version
from millstream.server.settings import SettingsError

app = typer.Typer(
    name="millstream",
    help="Durable streams over plain HTTP: one URL is one append-only timeline.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.command(epilog="Example: millstream serve --listen 127.0.0.1:4437 --data-dir ./data")(serve)
app.command(epilog="Example: millstream doctor --data-dir ./data")(doctor)
app.command(epilog="Example: millstream settings --json")(settings)
app.command(epilog="Example: millstream version --json")(version)
app.add_typer(pipeline.app, name="pipeline", epilog="Example: millstream pipeline report --bucket agents")


@app.callback(epilog="Example: millstream serve --data-dir ./data")
def options(
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an unexpected error arose.")] = False,
) -> None:
    """Options of every command. `run` looks for --traceback itself, as errors reach it past this function."""


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    try:
        outcome = app(args=list(arguments) or ["--help"], prog_name="millstream", standalone_mode=False)
    except typer.TyperException as error:
        return _refuse(f"{error.format_message().rstrip('.')}; add --help to see what is there")
    except (CommandError, SettingsError) as error:
        return _refuse(str(error))
    except typer.Abort:
        return 130
    except Exception as error:
        if "--traceback" in arguments:
            raise
        return _refuse(_unexpected(error))
    return outcome if isinstance(outcome, int) else 0


def _refuse(sentence: str) -> int:
    print_error(sentence)
    return 2


def _unexpected(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        place = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{place}"
    return f"unexpected {type(error).__name__}: {error}; 'millstream --traceback ...' shows where it arose"
