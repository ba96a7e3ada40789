"""Snapshots of a stream: publish, find, read, delete. An extension; see docs/protocol.md."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from .errors import NotSupported, ProtocolError
from .operations import Target, head, succeed
from .steps import Flow, call
from .wire import (
    CONTENT_TYPE,
    LOCATION,
    STREAM_NEXT_OFFSET,
    STREAM_SNAPSHOT_OFFSET,
    STREAM_UP_TO_DATE,
    Request,
    extension_url,
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A stream's content up to `offset`, folded; go on reading at `next_offset`."""

    data: bytes
    content_type: str
    offset: str
    next_offset: str
    up_to_date: bool


def publish(target: Target, offset: str, data: bytes, content_type: str, trim: bool) -> Flow[None]:
    """Publishing the same bytes again changes nothing, so it may be repeated."""
    params = {} if trim else {"trim": "false"}
    request = Request("PUT", _url(target, offset), params, {CONTENT_TYPE: content_type}, data)
    answer = succeed((yield from call(request, target.retry)), request)
    if answer.status != 204:
        raise NotSupported(
            f"{target.url}: the server took the snapshot for a new stream, so it has no snapshots. "
            f"Delete {request.url} there.",
            url=request.url,
        )


def latest(target: Target) -> Flow[str | None]:
    """The server answers with a redirect, whose URL ends in the offset."""
    request = Request("GET", f"{extension_url(target.url)}/snapshot")
    answer = yield from call(request, target.retry, follow=False)
    location = answer.header(LOCATION)
    if answer.status == 307 and location is not None:
        return unquote(urlsplit(location).path.rpartition("/")[2])
    if answer.status in (400, 404, 405):
        yield from head(target, {})  # raises NotFound if the stream itself is missing
        return None
    succeed(answer, request)
    raise ProtocolError(f"{request.url} answered {answer.status} where a redirect was due.", url=request.url)


def read(target: Target, offset: str | None) -> Flow[Snapshot | None]:
    url = f"{extension_url(target.url)}/snapshot" if offset is None else _url(target, offset)
    request = Request("GET", url)
    answer = yield from call(request, target.retry)
    if answer.status == 404:
        return None
    succeed(answer, request)
    at = answer.header(STREAM_SNAPSHOT_OFFSET)
    if at is None:
        raise NotSupported(f"{target.url}: the server has no snapshots.", url=url)
    return Snapshot(
        data=answer.body,
        content_type=answer.content_type,
        offset=at,
        next_offset=answer.header(STREAM_NEXT_OFFSET) or at,
        up_to_date=answer.says(STREAM_UP_TO_DATE),
    )


def delete(target: Target, offset: str) -> Flow[None]:
    request = Request("DELETE", _url(target, offset))
    succeed((yield from call(request, target.retry)), request)


def _url(target: Target, offset: str) -> str:
    return f"{extension_url(target.url)}/snapshot/{quote(offset, safe='')}"
