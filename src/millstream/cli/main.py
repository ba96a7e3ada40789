"""The entry point: collects the commands and turns whatever goes wrong into one sentence and an exit code.

`exits` says what the codes mean.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated

import typer
from typer.core import TyperGroup

from millstream.cli import bucket, pipeline, snapshot, stream
from millstream.cli.bootstrap import bootstrap
from millstream.cli.doctor import doctor
from millstream.cli.exits import Exit
from millstream.cli.feed import feed
from millstream.cli.output import CommandError, print_error, print_error_json
from millstream.cli.s3p import app as s3p
from millstream.cli.serve import serve
from millstream.cli.settings import settings
from millstream.cli.version import version
from millstream.server.settings import SettingsError

app = typer.Typer(
    name="millstream",
    help="Durable streams over plain HTTP: one URL is one append-only timeline.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.command(epilog="Example: millstream serve --listen 127.0.0.1:4437 --data-dir ./data")(serve)
app.command(epilog="Example: millstream doctor --data-dir ./data")(doctor)
app.command(epilog="Example: millstream settings --json")(settings)
app.command(epilog="Example: millstream version --json")(version)
app.add_typer(bucket.app, name="bucket", epilog="Example: millstream bucket create chat")
app.add_typer(stream.app, name="stream", epilog="Example: millstream stream tail chat/room-1")
app.add_typer(snapshot.app, name="snapshot", epilog="Example: millstream snapshot get docs/page-1")
app.command(epilog="Example: millstream bootstrap docs/page-1 --into page-1")(bootstrap)
app.command(epilog="Example: millstream feed chat --follow")(feed)
app.add_typer(s3p, name="s3p", epilog="Example: millstream s3p read orders --follow")
app.add_typer(pipeline.app, name="pipeline", epilog="Example: millstream pipeline report --bucket agents")


@app.callback(epilog="Example: millstream serve --data-dir ./data")
def options(
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an unexpected error arose.")] = False,
) -> None:
    """Options of every command. `run` looks for --traceback itself, as errors reach it past this function."""


def main() -> None:
    _open_standard_streams()
    sys.exit(run(sys.argv[1:]))


def _open_standard_streams() -> None:
    """Started with one of them closed, the next file to be opened would get its number, and be written to as that."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            assert descriptor == number, f"{name} is closed and {descriptor} is the next free descriptor"
            setattr(sys, name, open(descriptor, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: SIM115 - for good


@cache
def commands() -> TyperGroup:
    """Everything registered above, ready to run. Making it takes a while, hence once."""
    made = typer.main.get_command(app)
    assert isinstance(made, TyperGroup)
    return made


def run(arguments: Sequence[str]) -> int:
    try:
        outcome = commands()(args=_or_help(arguments), prog_name="millstream", standalone_mode=False)
    except typer.TyperException as error:
        return _refuse(
            arguments, CommandError(f"{error.format_message().rstrip('.')}; add --help to see what is there")
        )
    except SettingsError as error:
        return _refuse(arguments, CommandError(str(error), code="settings"))
    except CommandError as error:
        return _refuse(arguments, error)
    except typer.Abort:
        return Exit.INTERRUPTED
    except Exception as error:
        if "--traceback" in arguments:
            raise
        return _refuse(arguments, CommandError(_unexpected(error), code="unexpected"))
    return outcome if isinstance(outcome, int) else Exit.DONE


def _or_help(arguments: Sequence[str]) -> list[str]:
    """Nothing, or a group of commands alone, asks for its help."""
    groups = [[group.name] for group in app.registered_groups]
    given = list(arguments)
    return [*given, "--help"] if not given or given in groups else given


def _refuse(arguments: Sequence[str], error: CommandError) -> int:
    if "--json" in arguments:
        print_error_json(str(error), error.code, error.exit_code)
    else:
        print_error(str(error))
    return error.exit_code


def _unexpected(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        place = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{place}"
    return f"unexpected {type(error).__name__}: {error}; 'millstream --traceback ...' shows where it arose"
