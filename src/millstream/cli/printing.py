"""What a read prints. Programs get bytes as they are (JSON streams: one message a line); terminals get the same with
colours and without control characters; --json gives one object for each piece, with its offset."""

from __future__ import annotations

import codecs
from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from millstream.cli.output import CommandError, console, visible, write_bytes
from millstream.model.media import is_json, is_text

if TYPE_CHECKING:
    from millstream.client import Batch

Show: TypeAlias = "Callable[[Batch], None]"


def printer(content_type: str, *, as_json: bool, terminal: bool) -> Show:
    """How batches of a stream of this type are shown on stdout."""
    if as_json:
        return lambda batch: write_bytes(batch_line(batch))
    if not terminal:
        return lambda batch: write_bytes(plain_bytes(batch))
    if is_json(content_type):
        return show_json
    if is_text(content_type):
        return text_shower()
    raise CommandError(
        f"this is {content_type}, which a terminal cannot show; add --output FILE, or send it into a pipe"
    )


def plain_bytes(batch: Batch) -> bytes:
    """The bytes of a batch; of a JSON stream each message on a line of its own."""
    if not batch.is_json:
        return batch.data
    if batch.kind != "data":
        return one_line(batch.data.strip()) + b"\n" if batch.data else b""
    return b"".join(one_line(message) + b"\n" for message in batch.raw_messages())


def one_line(message: bytes) -> bytes:
    """A JSON message without line ends. They can only stand between its parts, where a space means the same, so that
    no number or key has to be written anew."""
    return message.translate(_LINE_ENDS)


_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")


def show_json(batch: Batch) -> None:
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    screen, highlight = console(), JSONHighlighter()
    # Not splitlines: it also breaks at U+2028, which may stand inside a JSON string.
    for line in plain_bytes(batch).decode(errors="replace").split("\n")[:-1]:
        text = Text(visible(line))
        highlight.highlight(text)
        screen.print(text, soft_wrap=True)


def text_shower() -> Show:
    """A batch may cut a character in two, so the decoder remembers."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    return lambda batch: write_bytes(visible(decode(batch.data).replace("\r\n", "\n")).encode())


# --- JSON lines


def batch_line(batch: Batch) -> bytes:
    """One batch as a line of JSON. `offset` is where to go on after it."""
    import msgspec

    line: dict[str, object] = {
        "kind": batch.kind,
        "offset": batch.next_offset,
        "stream_id": batch.stream_id,
        "content_type": batch.content_type,
        "up_to_date": batch.up_to_date,
        "closed": batch.closed,
    }
    if batch.is_json and batch.kind == "data":
        line["messages"] = [msgspec.Raw(one_line(message)) for message in batch.raw_messages()]
    else:
        line.update(content(batch.data, batch.content_type))
    return msgspec.json.encode(line) + b"\n"


def content(data: bytes, content_type: str) -> dict[str, object]:
    """Bytes inside JSON: `json` or `text` if they are that, else `base64`."""
    import msgspec

    try:
        text = data.decode()
        if is_json(content_type) and data:
            msgspec.json.decode(data)
            return {"json": msgspec.Raw(one_line(data.strip()))}
    except (UnicodeDecodeError, msgspec.DecodeError):
        return {"base64": b64encode(data).decode()}
    return {"text": text} if is_text(content_type) or not data else {"base64": b64encode(data).decode()}
