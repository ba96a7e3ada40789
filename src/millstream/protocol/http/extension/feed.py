"""The bucket feed over HTTP: its query, its pages, its events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ....model.changes import Entry
from ....model.errors import BadRequest
from ....model.media import is_json
from ..requests import LIVE_MODES, bounded, parameters
from ..sse import data_event
from .positions import EARLIEST, Place, parse_place

PAGE_MAX = 1000


class FeedQuery(msgspec.Struct, frozen=True):
    after: Place = EARLIEST
    prefix: str = ""
    with_data: bool = False
    limit: int = PAGE_MAX
    live: str | None = None
    timeout_ms: int | None = None


def parse_feed(query: bytes, last_event_id: str | None) -> FeedQuery:
    """`last_event_id` counts on SSE requests, where it wins over `after`."""
    values = parameters(query) if query else {}
    live = values.get("live")
    if live is not None and live not in LIVE_MODES:
        raise BadRequest(f"live must be one of {', '.join(LIVE_MODES)}.", code="bad_live")
    after = values.get("after")
    if live == "sse" and last_event_id:
        after = last_event_id
    if live is not None and after is None:
        raise BadRequest(f"live={live} needs after: a position, 'earliest', 'now' or a time.", code="after_missing")
    limit = bounded(values, "limit", 1)
    if limit is not None and limit > PAGE_MAX:
        raise BadRequest(f"limit must be from 1 to {PAGE_MAX}.", code="bad_limit")
    return FeedQuery(
        EARLIEST if after is None else parse_place(after, "after"),
        values.get("prefix", ""),
        _switch(values, "data"),
        limit or PAGE_MAX,
        live,
        bounded(values, "timeout_ms", 0),
    )


def _switch(values: dict[str, str], name: str) -> bool:
    value = values.get(name, "false")
    if value not in ("true", "false"):
        raise BadRequest(f"{name} must be true or false.", code=f"bad_{name}")
    return value == "true"


class _Entry(msgspec.Struct, omit_defaults=True):
    position: str
    stream: str
    kind: str
    first_offset: int
    next_offset: int
    timestamp_ms: int
    content_type: str
    encoding: str | None = None
    messages: Sequence[msgspec.Raw] | Sequence[bytes] | None = None


class _Page(msgspec.Struct):
    bucket_id: str
    entries: msgspec.Raw
    next_position: str
    up_to_date: bool


def entries_body(entries: Sequence[Entry], token: Callable[[int], str]) -> bytes:
    """Entries as a JSON array; `token` gives the position of a sequence."""
    return msgspec.json.encode([_shown(entry, token(entry.sequence)) for entry in entries])


def _shown(entry: Entry, position: str) -> _Entry:
    _, at_ms, stream, kind, first, following, content_type, messages = entry
    if messages is None:
        return _Entry(position, stream, kind, first, following, at_ms, content_type)
    if is_json(content_type):
        raw = [msgspec.Raw(message) for message in messages]
        return _Entry(position, stream, kind, first, following, at_ms, content_type, "json", raw)
    # msgspec writes bytes as base64.
    return _Entry(position, stream, kind, first, following, at_ms, content_type, "base64", messages)


def page_body(bucket: str, entries: bytes, next_position: str, up_to_date: bool) -> bytes:
    return msgspec.json.encode(_Page(bucket, msgspec.Raw(entries), next_position, up_to_date))


def page_lines(next_position: str, up_to_date: bool) -> bytes:
    lines = b"Stream-Next-Position: %b\r\n" % next_position.encode()
    return lines + b"Stream-Up-To-Date: true\r\n" if up_to_date else lines


def feed_event(entries: bytes, next_position: str, up_to_date: bool) -> bytes:
    """Entries, and where to go on, in one piece."""
    return data_event([entries], json=False, text=True) + feed_control(next_position, up_to_date)


def feed_control(next_position: str, up_to_date: bool) -> bytes:
    token = next_position.encode()
    state = b',"upToDate":true' if up_to_date else b""
    return b'event: control\ndata:{"nextPosition":"%b"%b}\nid: %b\n\n' % (token, state, token)
