"""Bulk reads and read plans over HTTP: their queries, NDJSON, and the plan's JSON."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from ....model.errors import NotAcceptable
from ..requests import bounded, parameters
from ..responses import format_time
from .positions import EARLIEST, NOW, Place, parse_place

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
_ANY = ("*/*", "application/*", NDJSON)


class BulkQuery(msgspec.Struct, frozen=True):
    after: Place = EARLIEST
    until: Place = NOW
    prefix: str = ""
    max_bytes: int | None = None
    max_messages: int | None = None


def parse_bulk(query: bytes) -> BulkQuery:
    values = parameters(query) if query else {}
    return BulkQuery(
        parse_place(values["after"], "after") if "after" in values else EARLIEST,
        parse_place(values["until"], "until") if "until" in values else NOW,
        values.get("prefix", ""),
        bounded(values, "max_bytes", 1),
        bounded(values, "max_messages", 1),
    )


def wanted_format(accept: bytes | None) -> str:
    """The format of the rows: whichever of the two is named first."""
    if accept is None:
        return NDJSON
    for part in accept.decode("latin-1").split(","):
        kind, _, quality = part.partition(";")
        kind = kind.strip().lower()
        if quality.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            continue
        if kind == ARROW:
            return ARROW
        if kind in _ANY:
            return NDJSON
    raise NotAcceptable(f"Rows come as {ARROW} or as {NDJSON}. Name one of them in Accept.")


class RowBody(msgspec.Struct):
    """One row in NDJSON; msgspec writes bytes as base64."""

    bucket: str
    stream: str
    offset: int
    next_offset: int
    position: str
    id: str | None
    timestamp: str | None
    content_type: str
    kind: str
    value: bytes | memoryview | None


_encode_lines = msgspec.json.Encoder().encode_lines
_format_time = lru_cache(maxsize=1024)(format_time)  # rows that follow each other often share a millisecond


def row_body(
    bucket: str,
    incarnation: int,
    row: tuple[str, int, int, int, str | None, int | None, str, str, bytes | memoryview | None],
) -> RowBody:
    """A row out of stream, offset, next offset, sequence, id, time, content type, kind and value."""
    stream, offset, following, sequence, id_, at_ms, content_type, kind, value = row
    timestamp = None if at_ms is None else _format_time(at_ms)
    position = f"{incarnation:016x}.{sequence}"
    return RowBody(bucket, stream, offset, following, position, id_, timestamp, content_type, kind, value)


def ndjson(rows: Iterable[RowBody]) -> bytes:
    return _encode_lines(rows)


class LeaseBody(msgspec.Struct):
    id: str
    expires_at_ms: int
    url: str


class PlanBody(msgspec.Struct):
    bucket_id: str
    prefix: str
    after: str
    until: str
    up_to_date: bool
    incarnation: str
    messages: int
    bytes: int
    lease: LeaseBody
    store: dict[str, str]
    streams: list[dict[str, Any]]
    gone: list[dict[str, Any]]
    rows: list[RowBody]
    ranges: list[dict[str, Any]]


def json_body(value: PlanBody | LeaseBody) -> bytes:
    return msgspec.json.encode(value)


def lease_url(bucket: str, lease_id: str) -> str:
    return f"/ds/{bucket}/streams/leases/{lease_id}"
