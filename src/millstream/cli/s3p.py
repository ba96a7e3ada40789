"""`millstream s3p ...`: the commands of S3P, one each, for people and shell scripts."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO, TypeVar, cast

import typer

from millstream.cli.output import CommandError, print_json
from millstream.model.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.client.s3p import MessageId, Record, S3pClient

T = TypeVar("T")
BATCH_RECORDS = 500
CHUNK_BYTES = 64 << 10
FOLLOW_MS = 10_000  # of one blocked READ: what servers take by default

app = typer.Typer(help="Talk to a server over S3P: create, append, read, trim and delete streams.")

Server = Annotated[str, typer.Option("--server", metavar="HOST:PORT", help="Where the server listens for S3P.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The stream's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")]
DEFAULT_SERVER = "127.0.0.1:7500"


@app.command("create", epilog="Example: millstream s3p create orders")
def create_stream(
    name: Name,
    client_ids: Annotated[bool, typer.Option("--client-ids", help="Every append names its own id.")] = False,
    as_json: AsJson = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Create a stream."""
    _ask(server, lambda client: client.create(name, client_ids=client_ids))
    if as_json:
        print_json({"name": name, "created": True})


@app.command("append", epilog="Example: millstream s3p append orders 'first record' 'second record'")
def append_records(
    name: Name,
    records: Annotated[list[str] | None, typer.Argument(metavar="RECORD", help="One record each.")] = None,
    first_id: Annotated[
        str | None, typer.Option("--id", metavar="MS-SEQ", help="Id of the first record, where clients give them.")
    ] = None,
    as_json: AsJson = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Append records and print the id of the last one. Without RECORD, every line of standard input is one."""
    if records:
        data = [record.encode() for record in records]
        _show_id(_ask(server, lambda client: client.append(name, data, first_id)), as_json)
        return
    if first_id is not None:
        raise CommandError("--id goes with records on the command line; leave it out for standard input")
    _ask(server, lambda client: _append_lines(client, name, sys.stdin.buffer, as_json))


@app.command("read", epilog="Example: millstream s3p read orders --after 1700000001234-0 --follow")
def read_records(
    name: Name,
    after: Annotated[str | None, typer.Option(metavar="MS-SEQ", help="Only records behind this id.")] = None,
    count: Annotated[int | None, typer.Option(metavar="N", help="At most so many records, in one answer.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is appended, until interrupted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Print records, each with its id in front."""
    if follow and (as_json or count is not None):
        raise CommandError("--follow goes neither with --json nor with --count; leave one of them out")
    if count is not None:
        _show(_ask(server, lambda client: client.read(name, after=after, count=count)), as_json)
    else:
        _ask(server, lambda client: _read_all(client, name, after, follow, as_json))


@app.command("trim", epilog="Example: millstream s3p trim orders --until 1700000001235-0")
def trim_stream(
    name: Name,
    until: Annotated[str, typer.Option(metavar="MS-SEQ", help="Records before this id go.")],
    as_json: AsJson = False,
    server: Server = DEFAULT_SERVER,
) -> None:
    """Let older records go."""
    _ask(server, lambda client: client.trim(name, until))
    if as_json:
        print_json({"name": name, "trimmed_until": until})


@app.command("delete", epilog="Example: millstream s3p delete orders")
def delete_stream(name: Name, as_json: AsJson = False, server: Server = DEFAULT_SERVER) -> None:
    """Delete a stream and all its records."""
    _ask(server, lambda client: client.delete(name))
    if as_json:
        print_json({"name": name, "deleted": True})


def _append_lines(client: S3pClient, name: str, source: BinaryIO, as_json: bool) -> None:
    """What has arrived is appended at once, so that a slow source is not held up."""
    rest = b""
    while chunk := cast(io.BufferedReader, source).read1(CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        _append_batches(client, name, lines, as_json)
    _append_batches(client, name, [rest], as_json)


def _append_batches(client: S3pClient, name: str, lines: Iterable[bytes], as_json: bool) -> None:
    records = [line.rstrip(b"\r") for line in lines if line.rstrip(b"\r")]  # S3P has no empty records
    for start in range(0, len(records), BATCH_RECORDS):
        _show_id(client.append(name, records[start : start + BATCH_RECORDS]), as_json)


def _show_id(last: MessageId, as_json: bool) -> None:
    print(f'{{"last_id": "{last}"}}' if as_json else last, flush=True)


def _read_all(client: S3pClient, name: str, after: str | None, follow: bool, as_json: bool) -> None:
    if as_json:
        _show([record for records in _until_empty(client, name, after, 0) for record in records], as_json=True)
        return
    last: MessageId | str | None = after
    while True:
        for records in _until_empty(client, name, last, FOLLOW_MS if follow else 0):
            last = records[-1].id
            _show(records, as_json=False)
        if not follow:
            return


def _until_empty(client: S3pClient, name: str, after: MessageId | str | None, block_ms: int) -> Iterator[list[Record]]:
    while records := client.read(name, after=after, block_ms=block_ms):
        yield records
        after = records[-1].id


def _show(records: Iterable[Record], as_json: bool) -> None:
    if as_json:
        print_json([_as_value(record) for record in records])
        return
    for record in records:
        sys.stdout.buffer.write(b"%b %b\n" % (str(record.id).encode(), record.data))
    sys.stdout.buffer.flush()


def _as_value(record: Record) -> dict[str, str]:
    try:
        return {"id": str(record.id), "data": record.data.decode()}
    except UnicodeDecodeError:
        return {"id": str(record.id), "base64": base64.b64encode(record.data).decode()}


def _ask(server: str, call: Callable[[S3pClient], T]) -> T:
    try:
        with _connected(server) as client:
            return call(client)
    except MillstreamError as error:
        raise CommandError(error.message.rstrip(".")) from None
    except KeyboardInterrupt:
        raise typer.Abort from None


def _connected(server: str) -> S3pClient:
    host, colon, port = server.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise CommandError(f"--server {server} is not HOST:PORT; write such as {DEFAULT_SERVER}")
    # Imported here so that the other commands do not load the clients.
    from millstream.client.s3p import S3pClient

    return S3pClient(host.strip("[]"), int(port))
