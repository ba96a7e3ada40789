"""What the client takes and gives: results, batches, bookmarks, and how values become bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from ..model.media import is_json
from ..protocol.http.json_mode import split_body
from .errors import ProtocolError

BEGINNING = "-1"
NOW = "now"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Bookmark(NamedTuple):
    """A place in one incarnation of a stream. Keep it as text: ``str(bookmark)``, and `Bookmark.parse` to go on."""

    offset: str
    stream_id: str | None = None

    def __str__(self) -> str:
        return self.offset if self.stream_id is None else f"{self.offset}@{self.stream_id}"

    @classmethod
    def parse(cls, text: str) -> Bookmark:
        offset, _, stream_id = text.partition("@")
        return cls(offset, stream_id or None)


@dataclass(frozen=True, slots=True)
class Created:
    """The answer to a create. `created` is False when the stream was there already, with the same settings."""

    created: bool
    offset: str
    content_type: str
    closed: bool
    stream_id: str | None
    etag: str | None


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer to an append or a close: where the stream ends now."""

    offset: str
    closed: bool = False
    duplicate: bool = False
    stream_id: str | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """A stream's metadata."""

    content_type: str
    offset: str
    closed: bool
    ttl_s: int | None
    expires_at: str | None
    stream_id: str | None
    etag: str | None
    snapshot_offset: str | None


@dataclass(frozen=True, slots=True)
class Batch:
    """A piece of a stream as one answer or event brought it. `next_offset` is where to go on after it.

    `kind` is ``data``, or ``snapshot`` where a read went over trimmed history by a bootstrap.
    """

    data: bytes
    next_offset: str
    content_type: str
    up_to_date: bool
    closed: bool
    stream_id: str | None = None
    cursor: str | None = None
    kind: str = "data"

    def __bool__(self) -> bool:
        """Whether it holds data; a batch without only tells how things stand."""
        return bool(self.data) and not (self.data == b"[]" and self.is_json)

    @property
    def is_json(self) -> bool:
        return is_json(self.content_type)

    @property
    def bookmark(self) -> Bookmark:
        return Bookmark(self.next_offset, self.stream_id)

    def text(self) -> str:
        """The data as UTF-8. A batch may cut a character in two: `Reader.text` puts them together again."""
        return self.data.decode()

    def json(self) -> list[Any]:
        """The messages of a JSON stream."""
        if self.kind != "data":
            return [decode_json(self.data)]
        items = decode_json(self.data) if self.data else []
        if not isinstance(items, list):
            raise ProtocolError("The server sent JSON that is no array of messages.")
        return items

    def raw_messages(self) -> list[bytes]:
        """The messages of a JSON stream, byte for byte as they were appended."""
        return split_json_array(self.data)


# --- values and bytes


def encode_json(value: object) -> bytes:
    """One JSON value as bytes. What msgspec knows (dataclasses, datetimes, Structs) works too."""
    return _encode(value)


def decode_json(data: bytes) -> Any:
    try:
        return _decode(data)
    except msgspec.DecodeError as error:
        # RFC 8259 allows halves of surrogate pairs, which msgspec does not; the standard library does.
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise ProtocolError(f"The server sent JSON that cannot be read: {error}.") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"The server sent JSON that cannot be read: {error}.") from None


def split_json_array(data: bytes) -> list[bytes]:
    if not data:
        return []
    body = split_body(data, is_bounded=False)
    if body.fault is not None or data.lstrip()[:1] != b"[":
        raise ProtocolError("The server sent JSON that is cut off or no array of messages.")
    if body.lengths is None:
        return [body.payload] if body.payload else []
    messages, at = [], 0
    for length in body.lengths:
        messages.append(body.payload[at : at + length])
        at += length
    return messages


def encode_message(data: object, content_type: str) -> bytes:
    """One message as a body. Bytes go as they are. On a JSON stream anything else becomes JSON, and a list stays one
    message (the protocol takes an array for several); on other streams a str becomes UTF-8."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if is_json(content_type):
        return b"[" + _encode(data) + b"]" if isinstance(data, list | tuple) else _encode(data)
    if isinstance(data, str):
        return data.encode()
    raise TypeError(
        f"A stream of {content_type or 'unknown type'} takes bytes or str, not {type(data).__name__}. "
        "Create it with content_type='application/json' to append values."
    )


def encode_messages(messages: Iterable[object]) -> bytes:
    """Several JSON messages as one body, all or nothing."""
    return join_json([bytes(m) if isinstance(m, bytes | bytearray | memoryview) else _encode(m) for m in messages])


def join_json(messages: list[bytes]) -> bytes:
    return b"[" + b",".join(messages) + b"]"


# --- where a read starts


def start_of(start: str | Bookmark, stream_id: str | None) -> Bookmark:
    if isinstance(start, Bookmark):
        return start if stream_id is None else Bookmark(start.offset, stream_id)
    if not start:
        raise ValueError("An offset must not be empty: use '-1' for the beginning or 'now' for the tail.")
    return Bookmark(start, stream_id)


def moment_text(moment: datetime | str | int) -> str:
    """A time as the server takes it: milliseconds, RFC 3339, or a datetime."""
    return rfc3339(moment) if isinstance(moment, datetime) else str(moment)


def rfc3339(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise ValueError("A time needs a time zone, such as datetime.now(UTC).")
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def message_encoder(content_type: str) -> Callable[[object], bytes]:
    """The shortest way from a value to one message of this type, for those who append many."""
    if is_json(content_type):
        return _json_message
    return lambda data: encode_message(data, content_type)


def _json_message(data: object) -> bytes:
    return data if type(data) is bytes else _encode(data)
