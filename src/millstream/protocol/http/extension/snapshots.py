"""Snapshots and bootstrap over HTTP (extensions, sections 2 and 3)."""

from __future__ import annotations

import secrets

from ....model.commands import PublishSnapshot
from ....model.errors import BadRequest
from ....model.etags import snapshot_etag
from ....model.media import DEFAULT_CONTENT_TYPE
from ....model.offsets import BEGINNING, NOW, parse_offset
from ....model.records import Snapshot, StreamRecord
from .. import headers as h
from ..requests import Request, check_write, condition, content_type_of, encoded_path, parameters
from ..responses import NO_STORE, content_lines

SNAPSHOT = "snapshot"
BOOTSTRAP = "bootstrap"
_ALWAYS_ASK = b"Cache-Control: no-cache\r\n"  # the same offset may have another snapshot in the stream's next life


def parse_snapshot_offset(text: str) -> int:
    offset = parse_offset(text)
    if offset in (BEGINNING, NOW):
        raise BadRequest("A snapshot's offset is a Stream-Next-Offset value as it was returned.", code="bad_offset")
    return offset


def parse_trims(query: bytes) -> bool:
    value = (parameters(query) if query else {}).get("trim", "true")
    if value not in ("true", "false"):
        raise BadRequest("trim must be 'true' or 'false'.", code="bad_query")
    return value == "true"


def refuse_live(query: bytes) -> None:
    if query and "live" in parameters(query):
        raise BadRequest("The bootstrap comes once. Tail the stream itself from Stream-Next-Offset.", code="bad_live")


def publish_command(
    request: Request, key: str, offset: int, digest: bytes, payload: bytes, size: int, name: str | None
) -> PublishSnapshot:
    check_write(request.headers)
    content_type = content_type_of(request.headers) or DEFAULT_CONTENT_TYPE
    trims, if_match = parse_trims(request.query), condition(request.headers, h.IF_MATCH)
    return PublishSnapshot(key, offset, content_type, size, digest, payload, name, trims, if_match=if_match)


def snapshot_lines(stream: StreamRecord, snapshot: Snapshot, stream_id: str) -> bytes:
    return content_lines(snapshot.content_type) + b"%bStream-Id: %b\r\nETag: %b\r\n%b" % (
        _places(stream, snapshot.offset, snapshot.offset),
        stream_id.encode(),
        snapshot_etag(stream_id, snapshot).encode(),
        _ALWAYS_ASK,
    )


def latest_lines(path: bytes, stream: StreamRecord, offset: int) -> bytes:
    """The redirect to the latest snapshot; `path` is that of the request. Without scheme and host, which a proxy may
    have changed: RFC 9110 section 10.2.2."""
    base = encoded_path(path.rstrip(b"/"))
    return b"Location: %b/%020d\r\n%b%b" % (base, offset, _places(stream, offset, offset), NO_STORE)


def bootstrap_lines(stream: StreamRecord, stream_id: str, boundary: bytes, end: int) -> bytes:
    offset = None if stream.snapshot is None else stream.snapshot.offset
    lines = b"Content-Type: multipart/mixed; boundary=%b\r\n%bStream-Id: %b\r\n%b" % (
        boundary,
        _places(stream, offset, end),
        stream_id.encode(),
        NO_STORE,
    )
    # Without a snapshot over the cut, history before it is gone for good: the reader must know where this begins.
    return lines + b"Stream-Earliest-Offset: %020d\r\n" % stream.earliest if stream.earliest else lines


def _places(stream: StreamRecord, offset: int | None, end: int) -> bytes:
    lines = b"Stream-Snapshot-Offset: %b\r\nStream-Next-Offset: %020d\r\nStream-Up-To-Date: %b\r\n" % (
        b"-1" if offset is None else b"%020d" % offset,
        end,
        b"true" if end == stream.tail else b"false",
    )
    return lines + b"Stream-Closed: true\r\n" if stream.closed and end == stream.tail else lines


# --- multipart/mixed (RFC 2046)


def new_boundary() -> bytes:
    """A line that no data holds: its 160 random bits were never told to anybody who could have written them."""
    return b"millstream-" + secrets.token_hex(20).encode()


def part_start(boundary: bytes, content_type: str) -> bytes:
    """What stands between two parts. Before the first part its line end is left out."""
    return b"\r\n--%b\r\nContent-Type: %b\r\n\r\n" % (boundary, content_type.encode("latin-1"))


def multipart_end(boundary: bytes) -> bytes:
    return b"\r\n--%b--\r\n" % boundary
