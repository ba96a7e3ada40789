"""`millstream doctor`: say how a data folder is, and on request cut what cannot be read."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.output import CommandError, console, print_json

if TYPE_CHECKING:
    from rich.text import Text

    from millstream.storage.doctor import Finding, Report

MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "error": ("ERROR", "bold red")}


def doctor(
    data_dir: Annotated[Path, typer.Option(metavar="DIR", help="The server's data folder.")] = Path("data"),
    cut: Annotated[
        bool, typer.Option("--cut", help="Cut the journal where it stops being readable. This loses data.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Examine a data folder while its server is stopped; exit 0 if healthy, 1 if not.

    Nothing is changed without --cut.
    """
    if not data_dir.is_dir():
        raise CommandError(f"there is no folder {data_dir}; name the server's data folder with --data-dir")
    # Imported here so that the other commands do not load the storage code.
    from millstream.storage.doctor import cut as cut_journal
    from millstream.storage.doctor import examine

    report = cut_journal(data_dir) if cut else examine(data_dir)
    if as_json:
        print_json(asdict(report))
    else:
        show(report)
    return 0 if report.healthy else 1


def show(report: Report) -> None:
    screen = console()
    for finding in report.findings:
        screen.print(described(finding), soft_wrap=True)
    screen.print("The data folder is healthy." if report.healthy else "The data folder needs attention.")


def described(finding: Finding) -> Text:
    from rich.text import Text

    mark, style = MARKS[finding.severity]
    text = Text.assemble((f"{mark:<8}", style), finding.what)
    if finding.advice:
        text.append(f"\n{'':8}-> {finding.advice}", style="dim")
    return text
