"""`millstream stream`: create, append, read, tail, head, close, delete and list streams."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.appending import Stored, Wishes, append_messages, append_whole, nothing_sent
from millstream.cli.connection import (
    DEFAULT_URL,
    FOLLOWER_RETRIES_MAX,
    WRITER_RETRIES_MAX,
    Connection,
    JsonOption,
    StreamArgument,
    UrlOption,
    YesOption,
    confirm,
    connected,
)
from millstream.cli.intake import MESSAGE_BYTES_MAX, Cut, Messages, opened, read_whole, size_of
from millstream.cli.moments import FromOption, Start, start_of
from millstream.cli.outfiles import whole_file
from millstream.cli.output import (
    CommandError,
    count_text,
    flush,
    for_people,
    print_done,
    print_fields,
    print_json,
    print_json_line,
    print_rows,
    print_stop,
    size_text,
    time_text,
)
from millstream.cli.printing import Show, batch_line, plain_bytes, printer
from millstream.cli.progress import Meter
from millstream.model.media import is_json
from millstream.model.names import DEFAULT_BUCKET
from millstream.server.setting_kinds import parse_size

if TYPE_CHECKING:
    from millstream.client import Head, Reader, Stream, StreamInfo

app = typer.Typer(help="Streams: create, append, read, follow, list.", rich_markup_mode=None)

TypeOption = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Content type, such as text/plain.")]
FileArgument = Annotated[Path | None, typer.Argument(metavar="FILE", help="Where from; - or nothing is stdin.")]
OutputOption = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file.")]


@app.command(epilog="Example: millstream stream create chat/room-1 --type application/json")
def create(
    name: StreamArgument,
    content_type: TypeOption = None,
    ttl: Annotated[int | None, typer.Option(metavar="SECONDS", help="Expire so long after the last use.")] = None,
    expires_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Expire at this time, such as 2027-01-01T00:00:00Z.")
    ] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="TEXT", help="First content.")] = None,
    closed: Annotated[bool, typer.Option("--closed", help="Close it at once, with the first content in it.")] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Create a stream. One that exists with the same settings is left as it is."""
    with connected(url) as link:
        body = None if message is None else message.encode()
        stream = link.stream(name)
        with link.interrupts.held():
            done = stream.create(content_type, ttl_s=ttl, expires_at=expires_at, closed=closed, body=body)
        if as_json:
            print_json({"stream": name, **asdict(done)})
        else:
            print_done(f"{name} ({done.content_type})", "created" if done.created else "exists")
        link.interrupts.check()


@app.command(epilog="Example: millstream stream append chat/room-1 messages.jsonl --json-lines")
def append(
    name: StreamArgument,
    file: FileArgument = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", metavar="TEXT", help="Append this text instead of a file.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line is a message.")] = False,
    json_lines: Annotated[bool, typer.Option("--json-lines", help="Each line is a message in JSON.")] = False,
    chunks: Annotated[
        str | None, typer.Option("--chunks", metavar="SIZE", help="Cut into messages of this size, such as 4MiB.")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Let lines of text that come together be one message: faster.")
    ] = False,
    close: Annotated[bool, typer.Option("--close", help="Close the stream with it.")] = False,
    if_match: Annotated[
        str | None, typer.Option("--if-match", metavar="ETAG", help="Only if the stream still is as head showed it.")
    ] = None,
    producer_id: Annotated[
        str | None, typer.Option("--producer-id", metavar="ID", help="Append as this producer, exactly once.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> int | None:
    """Append to a stream; returns when it is durable.

    The whole input is one message, sent once it has been read to its end. With --lines, --json-lines or --chunks it is
    many: a small input is still one request where the stream takes that (JSON), anything else goes out as it is read,
    exactly once and in order.
    """
    cut = chosen_cut(lines, json_lines, chunks)
    if message is not None and (file is not None or cut is not Cut.WHOLE):
        raise CommandError("--message takes no file and is one message; leave the others out")
    if producer_id is not None and cut is Cut.WHOLE:
        raise CommandError("--producer-id is for --lines, --json-lines or --chunks")
    if merge and cut is not Cut.LINES:
        raise CommandError("--merge is for --lines")
    wishes = Wishes(close, if_match, producer_id, merge)
    with connected(url) as link, ExitStack() as inputs:
        stream = link.stream(name, retries_max=WRITER_RETRIES_MAX)
        if message is not None:
            stored = append_whole(link, stream, some(message.encode()), wishes)
        else:
            descriptor = inputs.enter_context(opened(file))
            stored = append_input(link, stream, descriptor, cut, size_given(chunks), wishes)
        show_stored(name, stored, as_json)
        return link.interrupts.exit_code if stored.interrupted else None


def append_input(
    link: Connection, stream: Stream, descriptor: int, cut: Cut, chunk_bytes: int, wishes: Wishes
) -> Stored:
    json_stream = is_json(stream.content_type())  # asked first: a stream that is missing is no reason to wait for input
    if cut is Cut.WHOLE:
        with nothing_sent():
            body = some(read_whole(descriptor))
        return append_whole(link, stream, body, wishes)
    if cut is Cut.JSON_LINES and not json_stream:
        raise CommandError(f"--json-lines is for JSON streams, and this one is {stream.content_type()}; use --lines")
    if cut is Cut.CHUNKS and json_stream:
        raise CommandError("--chunks would cut JSON messages apart; use --json-lines")
    source = Messages(descriptor, cut, json_stream=json_stream, chunk_bytes=chunk_bytes)
    return append_messages(link, stream, source, wishes, json_stream=json_stream, total=size_of(descriptor))


def chosen_cut(lines: bool, json_lines: bool, chunks: str | None) -> Cut:
    chosen = [cut for cut, given in ((Cut.LINES, lines), (Cut.JSON_LINES, json_lines), (Cut.CHUNKS, chunks)) if given]
    if len(chosen) > 1:
        raise CommandError("--lines, --json-lines and --chunks exclude each other; give one")
    return chosen[0] if chosen else Cut.WHOLE


def size_given(text: str | None) -> int:
    if text is None:
        return 0
    try:
        size = parse_size(text)
    except ValueError:
        size = 0
    if not 0 < size <= MESSAGE_BYTES_MAX:
        raise CommandError(f"--chunks {text} is no size from 1 to {size_text(MESSAGE_BYTES_MAX)}; write 4MiB")
    return size


def some(body: bytes) -> bytes:
    if not body:
        raise CommandError("there is nothing to append: the input is empty")
    return body


def show_stored(name: str, stored: Stored, as_json: bool) -> None:
    if as_json:
        print_json({"stream": name, **asdict(stored)})
    elif stored.offset is not None:
        counted = count_text(stored.messages, "message", "messages")
        closing = ", which is closed now" if stored.closed else ""
        print_done(f"{counted} ({size_text(stored.bytes)}); {name}{closing} ends at {stored.offset}", "appended")


@app.command(epilog="Example: millstream stream read chat/room-1 --from 10m")
def read(
    name: StreamArgument,
    place: FromOption = "beginning",
    output: OutputOption = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Read a stream up to its present end.

    Bytes come as they were appended; of a JSON stream one message a line. With --json each piece is an object with the
    offset behind it. A file of --output is replaced when the read is complete, not before.
    """
    start = start_of(place)
    with connected(url) as link:
        stream = link.stream(name)
        head = stream.head()
        with ExitStack() as stack:
            meter = stack.enter_context(Meter("reading", bytes_from(start, head), prints=output is None))
            if output is None:
                show = printer(head.content_type, as_json=as_json, terminal=for_people())
            else:
                show = writing(stack, output, as_json)
            for batch in reader(stream, start):
                show(batch)
                meter.advance(len(batch.data))
        flush()


def reader(stream: Stream, start: Start, **settings: Any) -> Reader:
    return stream.read(start.offset, stream_id=start.stream_id, timestamp=start.timestamp, **settings)


def bytes_from(start: Start, head: Head) -> int | None:
    """How much there is to read, where offsets are numbers and a time does not hide where it starts."""
    if start.timestamp is not None or not head.offset.isdigit():
        return None
    begin = int(start.offset) if start.offset.isdigit() else 0
    return max(0, int(head.offset) - begin)


def writing(stack: ExitStack, path: Path, as_json: bool) -> Show:
    file = stack.enter_context(whole_file(path))
    shaped = batch_line if as_json else plain_bytes
    return lambda batch: void(file.write(shaped(batch)))


def void(_: object) -> None:
    """For the sake of the type."""


@app.command(epilog="Example: millstream stream tail chat/room-1 --from beginning")
def tail(
    name: StreamArgument,
    place: FromOption = "now",
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f/ ", help="Go on with what comes, or stop at the end.")
    ] = True,
    idle: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop when nothing new came for so long.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Follow a stream until it is closed, or until Ctrl-C.

    Connections that break are made anew, and nothing is lost or shown twice.
    """
    start = start_of(place)
    with connected(url) as link:
        head = link.stream(name).head()
        stream = link.stream(name, retries_max=FOLLOWER_RETRIES_MAX)
        show = printer(head.content_type, as_json=as_json, terminal=for_people())
        following = reader(stream, start, live=follow, idle_s=idle)
        shown = following.bookmark
        showing = False
        try:
            for batch in following:
                showing = True
                show(batch)
                flush()
                shown, showing = following.bookmark, False
        except KeyboardInterrupt:
            # A batch that is shown in part only will be shown again.
            print_stop(f"stopped; go on with --from {shown if showing else following.bookmark}")
            raise
        finally:
            following.close()


@app.command(epilog="Example: millstream stream head chat/room-1")
def head(name: StreamArgument, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show what is known of a stream: its type, its end, whether it is closed, its lifetime."""
    with connected(url) as link:
        found = link.stream(name).head()
    if as_json:
        print_json({"stream": name, **asdict(found)})
        return
    lifetime = "" if found.ttl_s is None else f"{found.ttl_s} s left"
    shown = {
        "stream": name,
        "content type": found.content_type,
        "status": "closed" if found.closed else "open",
        "end": found.offset + (f" ({size_text(int(found.offset))})" if found.offset.isdigit() else ""),
        "lifetime": lifetime or (f"until {found.expires_at}" if found.expires_at else "no end"),
        "snapshot": "none" if found.snapshot_offset in (None, "-1") else f"at {found.snapshot_offset}",
        "stream id": found.stream_id or "",
        "etag": found.etag or "",
    }
    print_fields(shown)


@app.command(epilog="Example: millstream stream close chat/room-1")
def close(
    name: StreamArgument,
    message: Annotated[
        str | None, typer.Option("--message", "-m", metavar="TEXT", help="A last message, in the same step.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Close a stream for ever. Its readers see the end; nothing can be appended any more."""
    with connected(url) as link:
        with link.interrupts.held():
            done = link.stream(name).close(None if message is None else some(message.encode()))
        if as_json:
            print_json({"stream": name, "offset": done.offset, "closed": True})
        else:
            print_done(f"{name} ends at {done.offset}", "closed")
        link.interrupts.check()


@app.command(epilog="Example: millstream stream delete chat/room-1 --yes")
def delete(
    name: StreamArgument, yes: YesOption = False, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False
) -> None:
    """Delete a stream and everything in it, for good."""
    with connected(url) as link:
        stream = link.stream(name)
        confirm(f"Delete {name} and everything in it?", yes)
        with link.interrupts.held():
            stream.delete()
        if as_json:
            print_json({"stream": name, "deleted": True})
        else:
            print_done(name, "deleted")
        link.interrupts.check()


@app.command(name="ls", epilog="Example: millstream stream ls chat/room- --limit 20")
def list_streams(
    place: Annotated[
        str, typer.Argument(metavar="BUCKET[/PREFIX]", help="A bucket, and how the names begin that are wanted.")
    ] = DEFAULT_BUCKET,
    after: Annotated[str, typer.Option(metavar="NAME", help="Only names behind this one.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, metavar="COUNT", help="So many at most.")] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """List the streams of a bucket in the order of their names.

    Without a bucket, those that have none. With --json each stream is a line.
    """
    bucket, _, prefix = place.partition("/")
    with connected(url) as link:
        found = link.bucket(bucket).streams(prefix, after=after, limit=limit)
        if as_json:
            for stream in found:
                print_json_line({"bucket": bucket, **listed(stream)})
        else:
            print_rows(("stream", "status", "written", "content type", "last write"), map(row, found))
        flush()


def listed(stream: StreamInfo) -> dict[str, object]:
    return {name: getattr(stream, name) for name in stream.__struct_fields__}


def row(stream: StreamInfo) -> tuple[str, ...]:
    size = size_text(stream.tail_offset) if for_people() else str(stream.tail_offset)
    return stream.stream_id, stream.status, size, stream.content_type, time_text(stream.last_write_at_ms)
