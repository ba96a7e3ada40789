"""`millstream snapshot`: publish, find, fetch and delete a stream's snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.connection import DEFAULT_URL, JsonOption, StreamArgument, UrlOption, YesOption, confirm, connected
from millstream.cli.exits import Exit
from millstream.cli.intake import opened, read_whole
from millstream.cli.outfiles import whole_file
from millstream.cli.output import (
    CommandError,
    flush,
    for_people,
    print_done,
    print_json,
    size_text,
    visible,
    write_bytes,
)
from millstream.cli.printing import content
from millstream.cli.progress import Meter
from millstream.model.media import is_text

app = typer.Typer(help="Snapshots: what a stream's past adds up to.", rich_markup_mode=None)

OffsetArgument = Annotated[
    str, typer.Argument(metavar="OFFSET", help="Where the snapshot stands: it covers everything before.")
]


@app.command(epilog="Example: millstream snapshot publish docs/page-1 00000000000000000042 page.json")
def publish(
    name: StreamArgument,
    offset: OffsetArgument,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Where from; - or nothing is stdin.")] = None,
    content_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Content type; the stream's own by default.")
    ] = None,
    keep_history: Annotated[
        bool, typer.Option("--keep-history", help="Let what is before the snapshot be read on.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Publish a snapshot of a stream. What it covers is trimmed from the stream, unless --keep-history."""
    with connected(url) as link, opened(file) as descriptor:
        stream = link.stream(name)
        kind = content_type or stream.content_type()
        data = read_whole(descriptor)
        with Meter("publishing", len(data)), link.interrupts.held():
            stream.publish_snapshot(offset, data, content_type=kind, trim=not keep_history)
        if as_json:
            outcome = {"stream": name, "offset": offset, "bytes": len(data), "content_type": kind}
            print_json({**outcome, "trimmed": not keep_history})
        else:
            print_done(f"{name} at {offset} ({size_text(len(data))})", "published")
        link.interrupts.check()


@app.command(epilog="Example: millstream snapshot get docs/page-1 --output page.json")
def get(
    name: StreamArgument,
    at: Annotated[str | None, typer.Option("--at", metavar="OFFSET", help="Which one; the latest by default.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file.")] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Fetch a snapshot: its bytes as they are, or with --json an object with its offset and type."""
    with connected(url) as link:
        with Meter("fetching", prints=output is None):
            found = link.stream(name).read_snapshot(at)
        if found is None:
            raise missing(name, at)
        if output is not None:
            with whole_file(output) as file:
                file.write(found.data)
        if as_json:
            import msgspec

            head = {"stream": name, "offset": found.offset, "next_offset": found.next_offset}
            body = {"file": str(output)} if output is not None else content(found.data, found.content_type)
            described = {**head, "content_type": found.content_type, "bytes": len(found.data), **body}
            write_bytes(msgspec.json.format(msgspec.json.encode(described), indent=2) + b"\n")
        elif output is not None:
            print_done(f"{output} ({size_text(len(found.data))}); go on at {found.next_offset}", "written")
        else:
            show(found.data, found.content_type)
        flush()


def show(data: bytes, content_type: str) -> None:
    if not for_people():
        write_bytes(data)
    elif is_text(content_type):
        print(visible(data.decode(errors="replace")))
    else:
        raise CommandError(
            f"the snapshot is {content_type}, which a terminal cannot show; add --output FILE, or send it into a pipe"
        )


@app.command(epilog="Example: millstream snapshot latest docs/page-1")
def latest(name: StreamArgument, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Print the offset of the latest snapshot; exit 4 if there is none."""
    with connected(url) as link:
        found = link.stream(name).latest_snapshot()
    if found is None:
        raise missing(name, None)
    if as_json:
        print_json({"stream": name, "offset": found})
    else:
        print(found)


@app.command(epilog="Example: millstream snapshot delete docs/page-1 00000000000000000042 --yes")
def delete(
    name: StreamArgument,
    offset: OffsetArgument,
    yes: YesOption = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Delete a snapshot that is not the latest one."""
    with connected(url) as link:
        stream = link.stream(name)
        confirm(f"Delete the snapshot of {name} at {offset}?", yes)
        with link.interrupts.held():
            stream.delete_snapshot(offset)
        if as_json:
            print_json({"stream": name, "offset": offset, "deleted": True})
        else:
            print_done(f"{name} at {offset}", "deleted")
        link.interrupts.check()


def missing(name: str, at: str | None) -> CommandError:
    which = "no snapshot" if at is None else f"no snapshot at {at}"
    return CommandError(
        f"{name} has {which}; 'millstream snapshot publish' makes one",
        exit_code=Exit.NOT_FOUND,
        code="no_such_snapshot",
    )
