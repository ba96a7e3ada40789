"""`millstream pipeline`: load, export, fold and report, on Spark. The functions are in `millstream.spark.pipeline`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.cli.connection import DEFAULT_URL, TOKEN_VARIABLE, JsonOption, UrlOption, explained
from millstream.cli.exits import Exit
from millstream.cli.output import CommandError, console, print_error, print_json, size_text
from millstream.model.errors import MillstreamError

app = typer.Typer(help="The data pipeline on Spark: load, export, fold, report.", rich_markup_mode=None)

FAILURES_SHOWN = 10

BucketOption = Annotated[str, typer.Option("--bucket", metavar="BUCKET", help="The bucket.")]
PrefixOption = Annotated[
    str, typer.Option("--prefix", metavar="TEXT", help="Only streams whose names start with this.")
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="MASTER", help="Where Spark runs, such as spark://host:7077; local[*] by default."
    ),
]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's; may be repeated.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


@app.command(epilog="Example: millstream pipeline load 'runs/*.jsonl' --bucket agents --stream-column run")
def load(
    files: Annotated[list[str], typer.Argument(metavar="FILES", help="Files, folders or globs: JSONL, CSV, Parquet.")],
    bucket: BucketOption,
    stream_column: Annotated[
        str, typer.Option("--stream-column", metavar="COLUMN", help="The column that names each row's stream.")
    ],
    value_column: Annotated[
        str | None,
        typer.Option(
            "--value-column", metavar="COLUMN", help="The column that is the message; the whole row if absent."
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="jsonl, csv or parquet; by the file's name if absent."),
    ] = None,
    content_type: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Content type of streams that are created.")
    ] = "application/json",
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the load; made from the files if absent.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    master: MasterOption = None,
    conf: ConfOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Append the rows of files to streams, exactly once.

    The same load again goes on where it was interrupted, and appends nothing twice.
    """
    with plain_errors():
        from millstream.spark.pipeline import load as run

        done = run(
            url,
            bucket,
            files,
            stream_column,
            value_column=value_column,
            format=format_,
            content_type=content_type,
            name=name,
            token=os.environ.get(TOKEN_VARIABLE),
            master=master,
            conf=pairs("--conf", conf),
            dry_run=dry_run,
            show_progress=shows_progress(),
        )
    if as_json:
        print_json(asdict(done))
    elif dry_run:
        left = done.transactions - done.skipped
        say(
            f"Would load {done.files:,} files ({size_text(done.file_bytes)}) into {bucket}, "
            f"in {left} of {done.transactions} transactions."
        )
    else:
        say(f"Loaded {done.messages:,} messages ({size_text(done.bytes)}) into {bucket}.")
        if done.skipped:
            say(f"{done.skipped} of {done.transactions} transactions had been committed before.")


@app.command(epilog="Example: millstream pipeline export --bucket agents --to tables/agents --format delta")
def export(
    bucket: BucketOption,
    to: Annotated[Path, typer.Option("--to", metavar="PATH", help="The table's folder.")],
    format_: Annotated[str, typer.Option("--format", metavar="FORMAT", help="parquet, delta or iceberg.")] = "parquet",
    prefix: PrefixOption = "",
    snapshots: Annotated[bool, typer.Option("--snapshots", help="Export snapshots as rows, too.")] = False,
    continuous: Annotated[bool, typer.Option("--continuous", help="Go on until interrupted.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, help="How often to look for news, if continuous.")
    ] = 10.0,
    url: UrlOption = DEFAULT_URL,
    master: MasterOption = None,
    conf: ConfOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Append what is new in a bucket to a table, partitioned by bucket and date.

    The table remembers how far it has come: interrupt and repeat it as you like, every message is there once.
    """
    with plain_errors():
        from millstream.spark.pipeline import export as run

        done = run(
            url,
            bucket,
            to,
            format=format_,
            prefix=prefix,
            include_snapshots=snapshots,
            continuous=continuous,
            every_s=every,
            token=os.environ.get(TOKEN_VARIABLE),
            master=master,
            conf=pairs("--conf", conf),
            dry_run=dry_run,
            show_progress=shows_progress(),
            on_batch=(lambda sums: say(f"{sums.rows:,} rows in {to}")) if continuous else None,
        )
    if as_json:
        print_json(asdict(done))
    elif dry_run:
        say(f"Would export {done.rows:,} messages ({size_text(done.bytes)}) of {bucket} to {to}.")
    else:
        say(f"Exported {done.rows:,} rows of {bucket} to {to}, in {done.files:,} files ({size_text(done.bytes)}).")


@app.command(epilog="Example: millstream pipeline fold --bucket documents --with merge-patch")
def fold(
    bucket: BucketOption,
    function: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="FOLD",
            help="last-value, merge-patch, counters, concatenation, or your own as module:function.",
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Option("--arg", metavar="NAME=VALUE", help="An argument for the fold, such as key=id; may be repeated."),
    ] = None,
    prefix: PrefixOption = "",
    keep_history: Annotated[
        bool, typer.Option("--keep-history", help="Keep what the snapshots make superfluous.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    master: MasterOption = None,
    conf: ConfOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> int:
    """Compute each stream's state from its last snapshot and what came since, and publish it as the next snapshot.

    Streams without news are skipped. Exit code 1 if some stream could not be folded; the others are done all the same.
    """
    sys.path.insert(0, "")  # where `python -m` would look for the user's module, too
    with plain_errors():
        from millstream.spark.pipeline import fold as run

        done = run(
            url,
            bucket,
            function,
            arguments=pairs("--arg", arguments),
            prefix=prefix,
            keep_history=keep_history,
            token=os.environ.get(TOKEN_VARIABLE),
            master=master,
            conf=pairs("--conf", conf),
            dry_run=dry_run,
            show_progress=shows_progress(),
        )
    if as_json:
        print_json(asdict(done))
    elif dry_run:
        say(f"Would fold {done.with_news:,} of {done.streams:,} streams, {size_text(done.bytes)} of news.")
    else:
        say(
            f"Folded {done.folded:,} of {done.streams:,} streams, {done.messages:,} messages ({size_text(done.bytes)})."
        )
        if done.superseded:
            say(f"{done.superseded:,} streams had a newer snapshot by then, and keep it.")
    for failure in done.failures[:FAILURES_SHOWN]:
        print_error(f"stream {failure.stream} was not folded: {failure.error}")
    if done.failed > FAILURES_SHOWN:
        print_error(f"{done.failed - FAILURES_SHOWN:,} more streams were not folded; --json lists up to a hundred")
    return Exit.WRONG if done.failed else Exit.DONE


@app.command(epilog="Example: millstream pipeline report --bucket agents --to report")
def report(
    bucket: BucketOption,
    to: Annotated[Path, typer.Option("--to", metavar="PATH", help="The report's folder.")] = Path("report"),
    prefix: PrefixOption = "",
    silent_after: Annotated[
        float,
        typer.Option(
            "--silent-after", metavar="SECONDS", min=0, help="Open streams not written for so long are silent."
        ),
    ] = 3600.0,
    time_member: Annotated[
        str | None,
        typer.Option("--time-member", metavar="NAME", help="The member of JSON messages that has their time."),
    ] = None,
    url: UrlOption = DEFAULT_URL,
    master: MasterOption = None,
    conf: ConfOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Report volumes, rates, sizes, the hottest and the silent streams, as Parquet and as a page of HTML."""
    with plain_errors():
        from millstream.spark.pipeline import report as run

        done = run(
            url,
            bucket,
            to,
            prefix=prefix,
            silent_after_s=silent_after,
            time_member=time_member,
            token=os.environ.get(TOKEN_VARIABLE),
            master=master,
            conf=pairs("--conf", conf),
            dry_run=dry_run,
            show_progress=shows_progress(),
        )
    if as_json:
        print_json({"messages": done.messages, "bytes": done.bytes, "page": str(done.page) if done.page else None})
    elif dry_run:
        say(f"Would read {done.messages:,} messages ({size_text(done.bytes)}) of {bucket} and write a report to {to}.")
    else:
        say(f"Read {done.messages:,} messages ({size_text(done.bytes)}) of {bucket}; the report is {done.page}.")


# --- what the commands share


def say(sentence: str) -> None:
    console().print(sentence, soft_wrap=True)


def shows_progress() -> bool:
    return sys.stderr.isatty()


def pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise CommandError(f'{option} {text} lacks a name or "="; write {option} name=value')
        found[name] = value
    return found


@contextmanager
def plain_errors() -> Iterator[None]:
    """Whatever goes wrong, here or in an executor, as one sentence."""
    from millstream.client import ClientError

    try:
        yield
    except ClientError as error:
        raise explained(error) from error
    except MillstreamError as error:
        raise CommandError(error.message, code=error.code) from error
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("pyspark", "pyarrow", "pandas", "py4j"):
            raise CommandError(f"{error.name} is missing: pip install 'millstream[spark]'") from error
        raise
    except KeyboardInterrupt:
        raise typer.Abort from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise CommandError(spark_reason(error), code="spark") from error


def spark_reason(error: Any) -> str:
    """What one of ours said in an executor, out of the Java trace around it; else Spark's first line."""
    text = str(error)
    ours = re.findall(r"^(?:\S*\.)?millstream\.[\w.]+: (.+)$", text, re.M)
    return str(ours[-1]) if ours else f"Spark: {text.strip().partition(chr(10))[0]}"
