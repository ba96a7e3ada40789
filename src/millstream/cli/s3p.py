"""`millstream s3p ...`: the commands of S3P, one each, for people and shell scripts."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple, cast

import typer

from millstream.cli.connection import JsonOption, YesOption, confirm
from millstream.cli.exits import Exit
from millstream.cli.interrupts import Interrupts
from millstream.cli.output import (
    CommandError,
    drop_output,
    flush,
    print_done,
    print_json,
    print_json_line,
    write_bytes,
)
from millstream.model.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.client.s3p import MessageId, Record, S3pClient

BATCH_RECORDS = 500
CHUNK_BYTES = 64 << 10
FOLLOW_MS = 10_000  # of one blocked READ: what servers take by default
DEFAULT_SERVER = "127.0.0.1:7500"
EXITS = {
    "ERR_UNKNOWN_STREAM": Exit.NOT_FOUND,
    "ERR_STREAM_EXISTS": Exit.CONFLICT,
    "ERR_CLOSED": Exit.CONFLICT,
    "ERR_UNAVAILABLE": Exit.UNREACHABLE,
    "connection_lost": Exit.UNREACHABLE,
    "not_s3p": Exit.NOT_SUPPORTED,
}

app = typer.Typer(
    help="Streams over S3P: create, append, read, trim and delete.", rich_markup_mode=None, no_args_is_help=False
)

ServerOption = Annotated[
    str,
    typer.Option("--server", metavar="HOST:PORT", envvar="MILLSTREAM_S3P_SERVER", help="Where S3P is served."),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The stream's name.")]


@app.command("create", epilog="Example: millstream s3p create orders")
def create_stream(
    name: NameArgument,
    client_ids: Annotated[bool, typer.Option("--client-ids", help="Every append names its own id.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Create a stream."""
    with _connected(server) as link, link.interrupts.held():
        link.client.create(name, client_ids=client_ids)
        _say({"stream": name, "client_ids": client_ids}, name, "created", as_json)


@app.command("append", epilog="Example: millstream s3p append orders 'first record' 'second record'")
def append_records(
    name: NameArgument,
    records: Annotated[list[str] | None, typer.Argument(metavar="RECORD", help="One record each.")] = None,
    first_id: Annotated[
        str | None, typer.Option("--id", metavar="MS-SEQ", help="Id of the first record, where clients give them.")
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Append records and print the id of the last one. Without RECORD, every line of standard input is one."""
    if not records and first_id is not None:
        raise CommandError("--id goes with records on the command line; leave it out for standard input")
    with _connected(server) as link:
        if not records:
            _append_lines(link, name, sys.stdin.buffer, as_json)
            return
        with link.interrupts.held():
            _say_id(link.client.append(name, [record.encode() for record in records], first_id), as_json)
        link.interrupts.check()


@app.command("read", epilog="Example: millstream s3p read orders --after 1700000001234-0 --follow")
def read_records(
    name: NameArgument,
    after: Annotated[str | None, typer.Option(metavar="MS-SEQ", help="Only records behind this id.")] = None,
    count: Annotated[int | None, typer.Option(metavar="N", help="At most so many records, in one answer.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is appended, until interrupted.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Print records, each with its id in front; with --json an object on a line for each."""
    if follow and count is not None:
        raise CommandError("--follow does not go with --count; leave one of them out")
    with _connected(server) as link:
        if count is not None:
            _show(link.client.read(name, after=after, count=count), as_json)
            return
        for records in _answers(link.client, name, after, follow):
            _show(records, as_json)


@app.command("trim", epilog="Example: millstream s3p trim orders --until 1700000001235-0")
def trim_stream(
    name: NameArgument,
    until: Annotated[str, typer.Option(metavar="MS-SEQ", help="Records before this id go.")],
    server: ServerOption = DEFAULT_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Let older records go."""
    with _connected(server) as link, link.interrupts.held():
        link.client.trim(name, until)
        _say({"stream": name, "until": until}, f"{name} until {until}", "trimmed", as_json)


@app.command("delete", epilog="Example: millstream s3p delete orders --yes")
def delete_stream(
    name: NameArgument, yes: YesOption = False, server: ServerOption = DEFAULT_SERVER, as_json: JsonOption = False
) -> None:
    """Delete a stream and all its records, for good."""
    with _connected(server) as link:
        confirm(f"Delete {name} and everything in it?", yes)
        with link.interrupts.held():
            link.client.delete(name)
            _say({"stream": name, "deleted": True}, name, "deleted", as_json)
        link.interrupts.check()


# --- the way to the server


class Link(NamedTuple):
    client: S3pClient
    interrupts: Interrupts


@contextmanager
def _connected(server: str) -> Iterator[Link]:
    """A client for one command. Whatever goes wrong on the way leaves here as a sentence with its exit code."""
    host, colon, port = server.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise CommandError(f"--server {server} is not HOST:PORT; write such as {DEFAULT_SERVER}")
    # Imported here so that the other commands do not load the clients.
    from millstream.client.s3p import S3pClient

    with Interrupts() as interrupts:
        try:
            with S3pClient(host.strip("[]"), int(port)) as client:
                yield Link(client, interrupts)
        except MillstreamError as error:
            code = EXITS.get(error.code, Exit.USAGE)
            raise CommandError(error.message.rstrip("."), exit_code=code, code=error.code) from error
        except KeyboardInterrupt:
            raise typer.Exit(interrupts.exit_code) from None
        except BrokenPipeError:
            drop_output()
            raise typer.Exit(Exit.OUTPUT_CLOSED) from None


# --- appending and reading


def _append_lines(link: Link, name: str, source: BinaryIO, as_json: bool) -> None:
    """What has arrived is appended at once, so that a slow source is not held up."""
    rest = b""
    while chunk := cast(io.BufferedReader, source).read1(CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        _append_batches(link, name, lines, as_json)
    _append_batches(link, name, [rest], as_json)


def _append_batches(link: Link, name: str, lines: Iterable[bytes], as_json: bool) -> None:
    records = [line.rstrip(b"\r") for line in lines if line.rstrip(b"\r")]  # S3P has no empty records
    for start in range(0, len(records), BATCH_RECORDS):
        with link.interrupts.held():
            _say_id(link.client.append(name, records[start : start + BATCH_RECORDS]), as_json)
        link.interrupts.check()


def _answers(client: S3pClient, name: str, after: str | None, follow: bool) -> Iterator[list[Record]]:
    """Answer by answer up to the end, or on and on."""
    last: MessageId | str | None = after
    while True:
        records = client.read(name, after=last, block_ms=FOLLOW_MS if follow else 0)
        if records:
            yield records
            last = records[-1].id
        elif not follow:
            return


# --- printing


def _say(value: dict[str, object], sentence: str, mark: str, as_json: bool) -> None:
    print_json(value) if as_json else print_done(sentence, mark)


def _say_id(last: MessageId, as_json: bool) -> None:
    print_json_line({"last_id": str(last)}) if as_json else print(last)
    flush()


def _show(records: Iterable[Record], as_json: bool) -> None:
    for record in records:
        if as_json:
            print_json_line(_as_value(record))
        else:
            write_bytes(b"%b %b\n" % (str(record.id).encode(), record.data))
    flush()


def _as_value(record: Record) -> dict[str, str]:
    try:
        return {"id": str(record.id), "data": record.data.decode()}
    except UnicodeDecodeError:
        return {"id": str(record.id), "base64": base64.b64encode(record.data).decode()}
