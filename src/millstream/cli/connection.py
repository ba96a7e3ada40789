"""The way to the server: the options every command of it has, a client made from them, and which exit code each of
the client's errors is. The client (and httpx with it) is imported only when a command talks to a server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.exits import Exit
from millstream.cli.interrupts import Interrupts
from millstream.cli.output import CommandError, drop_output

if TYPE_CHECKING:
    from millstream.client import Bucket, Client, ClientError, Stream

DEFAULT_URL = "http://127.0.0.1:4437"
URL_VARIABLE = "MILLSTREAM_URL"
TOKEN_VARIABLE = "MILLSTREAM_TOKEN"

RETRIES_MAX = 3  # whoever waits at a terminal wants to know soon
WRITER_RETRIES_MAX = 8  # about a quarter of a minute: a large append outlives a restart of the server
FOLLOWER_RETRIES_MAX = 60  # about four minutes
COMPLETIONS_MAX = 50
COMPLETION_TIMEOUT_S = 1.0

UrlOption = Annotated[
    str, typer.Option("--url", metavar="URL", envvar=URL_VARIABLE, help="The server.", show_default=True)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True, slots=True)
class Connection:
    client: Client
    interrupts: Interrupts

    def stream(self, name: str, *, retries_max: int = RETRIES_MAX) -> Stream:
        """`bucket/stream`, a name of the default bucket, or a full URL."""
        from millstream.client import Retry

        try:
            return self.client.stream(name, retry=Retry(retries_max=retries_max))
        except ValueError as error:
            raise CommandError(str(error)) from None

    def bucket(self, name: str, *, retries_max: int = RETRIES_MAX) -> Bucket:
        from millstream.client import Retry

        try:
            return self.client.bucket(name, retry=Retry(retries_max=retries_max))
        except ValueError as error:
            raise CommandError(str(error)) from None


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """A client for one command. Whatever goes wrong on the way leaves here as a sentence with its exit code."""
    from millstream.client import ClientError

    with Interrupts() as interrupts:
        try:
            with open_client(url) as client:
                yield Connection(client, interrupts)
        except ClientError as error:
            raise explained(error) from error
        except KeyboardInterrupt:
            raise typer.Exit(interrupts.exit_code) from None
        except BrokenPipeError:
            drop_output()
            raise typer.Exit(Exit.OUTPUT_CLOSED) from None


def open_client(url: str, *, retries_max: int = RETRIES_MAX, timeout_s: float = 30.0) -> Client:
    from millstream.client import Client, Retry

    token = os.environ.get(TOKEN_VARIABLE)
    credentials = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        return Client(url, retry=Retry(retries_max=retries_max), timeout_s=timeout_s, credentials=lambda: credentials)
    except ValueError as error:
        raise CommandError(f"--url: {error}") from None


def explained(error: ClientError) -> CommandError:
    return CommandError(_advised(error), exit_code=exit_code_of(error), code=error.code)


def exit_code_of(error: ClientError) -> Exit:
    """The first kind that fits decides."""
    from millstream import client

    for kind, code in (
        (client.ConnectionLost, Exit.UNREACHABLE),
        (client.Unavailable, Exit.UNREACHABLE),
        (client.NotFound, Exit.NOT_FOUND),
        (client.Conflict, Exit.CONFLICT),
        (client.Fenced, Exit.CONFLICT),
        (client.PreconditionFailed, Exit.CONFLICT),
        (client.Gone, Exit.GONE),
        (client.Unauthorized, Exit.UNAUTHORIZED),
        (client.NotSupported, Exit.NOT_SUPPORTED),
        (client.ProtocolError, Exit.NOT_SUPPORTED),
        (client.OutcomeUnknown, Exit.OUTCOME_UNKNOWN),
    ):
        if isinstance(error, kind):
            return code
    return Exit.USAGE  # BadRequest and its like: the request is at fault


def _advised(error: ClientError) -> str:
    """The client's own words, and what they mean for somebody at a shell."""
    from millstream import client

    said = error.message.rstrip()
    if isinstance(error, client.ConnectionLost) and not error.sent:
        return f"{said} Start it with 'millstream serve', or name another with --url or {URL_VARIABLE}."
    if isinstance(error, client.NotFound):
        what = f"There is nothing at {error.url}." if error.code == client.NotFound.code else said
        return f"{what} Check the name; 'millstream bucket create' and 'millstream stream create' make what is missing."
    if isinstance(error, client.TooLarge):
        return f"{said} 'millstream stream append' cuts with --lines, --json-lines or --chunks 4MiB."
    if isinstance(error, client.Unauthorized):
        return f"{said} Put a token into {TOKEN_VARIABLE}."
    if isinstance(error, client.Trimmed):
        return f"{said} 'millstream bootstrap' gives the snapshot and everything after it."
    return said


def confirm(question: str, yes: bool) -> None:
    """Ask before something is lost for good, where there is somebody to ask."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was changed", exit_code=Exit.WRONG, code="declined")


def complete_stream(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names for the shell to offer behind `bucket/`. A server that does not answer offers none."""
    bucket, slash, prefix = incomplete.partition("/")
    if not slash or not bucket or "://" in incomplete:
        return []
    from millstream.client import ClientError

    url = ctx.params.get("url") or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    try:
        with open_client(url, retries_max=0, timeout_s=COMPLETION_TIMEOUT_S) as client:
            found = client.bucket(bucket).streams(prefix, limit=COMPLETIONS_MAX)
            return [f"{bucket}/{stream.stream_id}" for stream in found]
    except (ClientError, CommandError):
        return []


StreamArgument = Annotated[
    str,
    typer.Argument(
        metavar="STREAM", help="bucket/stream, or the full URL of a stream.", autocompletion=complete_stream
    ),
]
