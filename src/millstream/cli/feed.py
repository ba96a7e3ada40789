"""`millstream feed`: what happens in all streams of a bucket, in commit order."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.connection import DEFAULT_URL, FOLLOWER_RETRIES_MAX, RETRIES_MAX, JsonOption, UrlOption, connected
from millstream.cli.moments import moment_of
from millstream.cli.output import console, flush, for_people, print_stop, time_text, visible, write_bytes

if TYPE_CHECKING:
    from millstream.client import FeedEntry

_POSITION = re.compile(r"[0-9a-f]{1,32}\.[0-9]{1,20}")
_COLOURS = {
    "created": "green",
    "appended": "cyan",
    "closed": "yellow",
    "deleted": "red",
    "expired": "red",
    "trimmed": "magenta",
    "gap": "bold red",
}


def feed(
    place: Annotated[
        str, typer.Argument(metavar="BUCKET[/PREFIX]", help="A bucket, and how the names begin that are wanted.")
    ],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="beginning, now, a position, a time such as 2026-11-15T06:00:00Z, or how long ago, such as 10m.",
        ),
    ] = "beginning",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    data: Annotated[bool, typer.Option("--data", help="With the messages that were appended.")] = False,
    idle: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Stop following when nothing came for so long.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Show what happened in all streams of a bucket, in the order in which it was committed.

    One line for each change: when, what, which stream, from and to which offset, and the position to go on from.
    """
    after = position_of(start)
    bucket, _, prefix = place.partition("/")
    with connected(url) as link:
        link.bucket(bucket).get()  # a bucket that is missing should not be waited for
        following = link.bucket(bucket, retries_max=FOLLOWER_RETRIES_MAX if follow else RETRIES_MAX).feed(
            after, prefix=prefix, data=data, live=follow, idle_s=idle
        )
        show = show_json if as_json else show_person if for_people() else show_plain
        shown, showing = after, False
        try:
            for page in following.pages():
                showing = True
                for entry in page.entries:
                    show(entry)
                flush()
                shown, showing = page.next_position, False
        except KeyboardInterrupt:
            # A page that is shown in part only will be shown again.
            print_stop(f"stopped; go on with --from {shown if showing else following.position}")
            raise
        finally:
            following.close()


def position_of(place: str) -> str:
    """What the server takes for `after`."""
    if place in ("beginning", "earliest"):
        return "earliest"
    if place == "now" or _POSITION.fullmatch(place):
        return place
    moment = moment_of(place, datetime.now(UTC))
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def show_json(entry: FeedEntry) -> None:
    import msgspec

    line = {name: value for name, value in msgspec.to_builtins(entry).items() if value is not None}
    write_bytes(msgspec.json.encode(line) + b"\n")


def show_plain(entry: FeedEntry) -> None:
    """Columns parted by tabs; with data, the last one is a JSON array of the messages."""
    import msgspec

    columns = [
        entry.position,
        time_text(entry.timestamp_ms),
        entry.kind,
        entry.stream,
        str(entry.first_offset),
        str(entry.next_offset),
    ]
    if entry.messages is not None:
        columns.append(msgspec.json.encode(entry.messages).decode())
    print("\t".join(columns))


def show_person(entry: FeedEntry) -> None:
    from rich.text import Text

    offsets = f"{entry.first_offset}..{entry.next_offset}" if entry.next_offset else ""
    text = Text.assemble(
        (f"{time_text(entry.timestamp_ms)}  ", "dim"),
        (f"{entry.kind:<9}", _COLOURS.get(entry.kind, "")),
        f"{visible(entry.stream)}  ",
        (f"{offsets}  {entry.position}", "dim"),
    )
    screen = console()
    screen.print(text, soft_wrap=True)
    for message in entry.values():
        screen.print(f"    {message_text(message)}", soft_wrap=True)


def message_text(message: object) -> str:
    import msgspec

    if isinstance(message, bytes):
        return visible(message.decode(errors="replace"))
    return visible(msgspec.json.encode(message).decode())
