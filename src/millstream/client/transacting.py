"""Transactions: parts are staged, then appended to many streams of a bucket at once. An extension; see
docs/protocol.md."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from .buckets import decoded
from .bulk import import_pyarrow
from .operations import Target, succeed
from .steps import Flow, call
from .values import encode_json
from .wire import CONTENT_TYPE, JSON, Request

COMMIT_TIMEOUT_S = 300.0


class Staged(msgspec.Struct, frozen=True):
    """A part that is staged. `duplicate`: its version is committed already, and nothing was stored."""

    app: str
    version: int
    part: str
    messages: int = 0
    bytes: int = 0
    etag: str | None = None
    duplicate: bool = False
    staged_at_ms: int | None = None


class Committed(msgspec.Struct, frozen=True):
    """A committed version, or of an application that has none yet, `version` None."""

    app: str
    version: int | None
    duplicate: bool = False
    messages: int = 0
    bytes: int = 0
    streams: int = 0
    created: int = 0
    committed_at_ms: int | None = None


class StagedPart(msgspec.Struct, frozen=True):
    part: str
    messages: int
    bytes: int
    etag: str
    staged_at_ms: int


class TransactionState(msgspec.Struct, frozen=True):
    """``staged``, ``committed`` or ``fenced``, and up to 1000 of its parts."""

    state: str
    parts: list[StagedPart] = []
    has_more: bool = False


Rows = Iterable[Mapping[str, Any]]


def encode_rows(rows: Rows) -> bytes:
    """Rows as NDJSON: ``stream``, ``value`` (bytes, or a str for its UTF-8) or ``json``, and perhaps ``order``."""
    return b"".join(encode_json(_line(row)) + b"\n" for row in rows)


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    line = dict(row)
    if isinstance(line.get("value"), str):
        line["value"] = line["value"].encode()  # bytes become base64
    return line


def encode_arrow(table: Any) -> bytes:
    """A pyarrow Table, RecordBatch or list of RecordBatches as an Arrow stream."""
    arrow = import_pyarrow()
    if isinstance(table, arrow.RecordBatch):
        table = [table]
    if not isinstance(table, arrow.Table):
        table = arrow.Table.from_batches(table)
    out = io.BytesIO()
    with arrow.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def stage(target: Target, app: str, version: int, part: str, body: bytes, content_type: str) -> Flow[Staged]:
    """The same part again replaces it, so it may be repeated."""
    url = f"{_url(target, app, version)}/{quote(part, safe='')}"
    request = Request("PUT", url, headers={CONTENT_TYPE: content_type}, body=body, read_timeout_s=COMMIT_TIMEOUT_S)
    return decoded(succeed((yield from call(request, target.retry)), request), Staged)


def commit(
    target: Target,
    app: str,
    version: int,
    parts: Sequence[str | Staged],
    create: bool,
    content_type: str | None,
) -> Flow[Committed]:
    """A version is committed once, so it may be repeated."""
    listed = [part if isinstance(part, str) else {"part": part.part, "etag": part.etag} for part in parts]
    body: dict[str, Any] = {"parts": listed, "create": create}
    if content_type is not None:
        body["content_type"] = content_type
    request = Request(
        "POST",
        _url(target, app, version),
        headers={CONTENT_TYPE: JSON},
        body=encode_json(body),
        read_timeout_s=COMMIT_TIMEOUT_S,
    )
    return decoded(succeed((yield from call(request, target.retry)), request), Committed)


def state(target: Target, app: str, version: int) -> Flow[TransactionState]:
    request = Request("GET", _url(target, app, version))
    return decoded(succeed((yield from call(request, target.retry)), request), TransactionState)


def drop(target: Target, app: str, version: int | None) -> Flow[None]:
    request = Request("DELETE", _url(target, app, version))
    succeed((yield from call(request, target.retry)), request)


def last(target: Target, app: str) -> Flow[Committed]:
    request = Request("GET", _url(target, app, None))
    return decoded(succeed((yield from call(request, target.retry)), request), Committed)


def _url(target: Target, app: str, version: int | None) -> str:
    base = f"{target.url}/streams/transactions/{quote(app, safe='')}"
    return base if version is None else f"{base}/{version}"
