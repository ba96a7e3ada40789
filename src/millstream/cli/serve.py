"""`millstream serve`: gather the settings, then hand over to the server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.output import CommandError
from millstream.server.settings import load_settings


def serve(
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address to serve; 127.0.0.1:4437 by default.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for everything stored; ./data by default.")
    ] = None,
    s3p_listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address to serve S3P; 127.0.0.1:7500 by default, none for off."),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML file with settings.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve other machines although there is no authentication.")
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting; may be repeated."),
    ] = None,
) -> int:
    """Serve streams over HTTP and S3P until interrupted.

    Settings come from defaults, then the file, then the environment (MILLSTREAM_LONG_POLL_MS=500), then
    these options; the later one wins. 'millstream settings' lists them all.
    """
    flags: dict[str, object] = {
        "listen": listen,
        "data_dir": data_dir,
        "s3p.listen": s3p_listen,
        "insecure": insecure or None,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    settings = load_settings(config, os.environ, with_assignments(given, assignments or ()))
    # Imported here so that `millstream version` and `--help` do not load the whole server.
    from millstream.server.process import run

    return run(settings)


def with_assignments(flags: dict[str, object], assignments: Sequence[str]) -> dict[str, object]:
    """Add what `--set` says. A key given twice is refused, as one of the two would be lost unseen."""
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.strip()
        if not equals or not name:
            raise CommandError(f'--set {assignment} lacks a key or "="; write --set long_poll_ms=500')
        if name in flags:
            raise CommandError(f"{name} is given twice on the command line; give it once")
        flags[name] = value
    return flags
