"""`millstream bootstrap`: a stream's latest snapshot and everything after it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.connection import DEFAULT_URL, JsonOption, StreamArgument, UrlOption, connected
from millstream.cli.exits import Exit
from millstream.cli.outfiles import whole_folder
from millstream.cli.output import (
    CommandError,
    count_text,
    flush,
    for_people,
    print_done,
    print_json,
    print_json_line,
    print_note,
    write_bytes,
)
from millstream.cli.printing import content, printer
from millstream.cli.progress import Meter
from millstream.model.media import media_type

if TYPE_CHECKING:
    from millstream.client import Batch, Stream

SUFFIXES = {"application/json": ".json", "text/plain": ".txt"}


def bootstrap(
    name: StreamArgument,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="Write each part into this new folder.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Fetch a stream's latest snapshot and each message after it.

    Printed one after another, or with --into written to a folder: snapshot.json (or .txt, .bin), update-000001.json
    and so on, and bootstrap.json, which says where to go on. The folder is there when it is complete, not before.
    """
    with connected(url) as link:
        stream = link.stream(name)
        if into is not None:
            summary = write_parts(stream, name, into)
            if as_json:
                print_json(summary)
            else:
                counted = count_text(int(str(summary["updates"])), "update", "updates")
                print_done(f"{into}: a snapshot and {counted}; go on at {summary['next']}", "written")
        else:
            print_parts(stream, as_json)


def write_parts(stream: Stream, name: str, into: Path) -> dict[str, object]:
    with whole_folder(into) as folder, Meter("bootstrapping") as meter:
        updates = 0
        reader = stream.bootstrap()
        for batch in reader.batches(empty=True):
            if batch.kind == "snapshot":  # a second one: the connection broke, and it all comes again
                for left in folder.iterdir():
                    left.unlink()
                updates = 0
                meter.restart()
                (folder / f"snapshot{suffix(batch)}").write_bytes(batch.data)
            elif batch.kind == "update":
                updates += 1
                (folder / f"update-{updates:06d}{suffix(batch)}").write_bytes(batch.data)
            meter.advance(len(batch.data))
        summary = {"stream": name, "updates": updates, "next": str(reader.bookmark)}
        (folder / "bootstrap.json").write_bytes(encoded(summary))
    return summary


def encoded(summary: dict[str, object]) -> bytes:
    import json

    return json.dumps(summary, indent=2).encode() + b"\n"


def suffix(batch: Batch) -> str:
    return SUFFIXES.get(media_type(batch.content_type), ".bin")


def print_parts(stream: Stream, as_json: bool) -> None:
    terminal = for_people()
    started = False
    reader = stream.bootstrap()
    with Meter("bootstrapping", prints=True) as meter:
        for batch in reader:
            if batch.kind == "snapshot" and started:
                raise CommandError(
                    "the connection broke in the middle, so what was printed is not whole; try again, or use --into",
                    exit_code=Exit.UNREACHABLE,
                    code="connection_lost",
                )
            started = True
            if as_json:
                write_bytes(part_line(batch))
            elif batch.data:
                printer(batch.content_type, as_json=False, terminal=terminal)(batch)
            meter.advance(len(batch.data))
    if as_json:
        print_json_line({"kind": "end", "next": str(reader.bookmark)})
    flush()
    if not as_json:
        print_note(f"go on with --from {reader.bookmark}")


def part_line(batch: Batch) -> bytes:
    """A part has no offset of its own: only the whole bootstrap leads somewhere."""
    import msgspec

    head = {"kind": batch.kind, "content_type": batch.content_type}
    return msgspec.json.encode({**head, **content(batch.data, batch.content_type)}) + b"\n"
