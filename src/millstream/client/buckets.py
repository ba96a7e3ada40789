"""Buckets: create, settings, delete, and the listing of their streams. An extension; see docs/protocol.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

import msgspec

from .errors import NotSupported, ProtocolError
from .operations import Target, succeed
from .steps import Attempts, Emit, Flow, call
from .values import encode_json
from .wire import CONTENT_TYPE, JSON, STREAM_NEXT_OFFSET, Answer, Request

PAGE = 1000
_T = TypeVar("_T")


class BucketSettings(TypedDict, total=False):
    """Settings of a bucket; None takes one back."""

    content_type: str | None
    ttl_seconds: int | None
    retention_seconds: int | None
    retention_bytes: int | None
    caching: str


class BucketInfo(msgspec.Struct, frozen=True):
    """What is known of a bucket; `streams` is how many it has."""

    bucket_id: str
    streams: int
    created_at_ms: int = 0
    settings: dict[str, Any] = msgspec.field(default_factory=dict)


class StreamInfo(msgspec.Struct, frozen=True):
    """One line of a listing. `snapshot_offset` is None without a snapshot, or where a server does not say."""

    stream_id: str
    status: str
    content_type: str
    tail_offset: int
    created_at_ms: int
    last_write_at_ms: int
    earliest_offset: int = 0
    snapshot_offset: int | None = None

    @property
    def closed(self) -> bool:
        return self.status.lower() == "closed"


class _Page(msgspec.Struct):
    streams: list[StreamInfo]
    has_more: bool
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    prefix: str = ""
    after: str = ""
    limit: int | None = None


def create(target: Target, settings: Mapping[str, Any]) -> Flow[None]:
    """When a repeated create meets the bucket, the first one made it, and its answer got lost."""
    request = _with_settings("PUT", target, settings)
    attempts = Attempts()
    answer = yield from call(request, target.retry, attempts=attempts)
    if answer.status == 409 and attempts.unsure:
        return
    succeed(answer, request)
    if STREAM_NEXT_OFFSET in answer.headers:
        raise NotSupported(
            f"The server took the bucket for a stream, so it has no buckets. Delete {target.url} there.", url=target.url
        )


def get(target: Target) -> Flow[BucketInfo]:
    request = Request("GET", target.url)
    answer = succeed((yield from call(request, target.retry)), request)
    return decoded(answer, BucketInfo)


def change(target: Target, settings: Mapping[str, Any]) -> Flow[None]:
    request = _with_settings("PATCH", target, settings)
    succeed((yield from call(request, target.retry)), request)


def delete(target: Target) -> Flow[None]:
    request = Request("DELETE", target.url)
    attempts = Attempts()
    answer = yield from call(request, target.retry, attempts=attempts)
    if not (answer.status == 404 and attempts.unsure):
        succeed(answer, request)


def list_streams(target: Target, listing: Listing) -> Flow[None]:
    """Emits a `StreamInfo` for each stream, in the order of names; pages are fetched as they are needed."""
    after, left = listing.after, listing.limit
    while left is None or left > 0:
        params = {"limit": str(PAGE if left is None else min(left, PAGE))}
        if listing.prefix:
            params["prefix"] = listing.prefix
        if after:
            params["after"] = after
        request = Request("GET", f"{target.url}/streams", params)
        page = decoded(succeed((yield from call(request, target.retry)), request), _Page)
        for stream in page.streams:
            yield Emit(stream)
        if not page.has_more or not page.next_cursor:
            return
        after = page.next_cursor
        left = None if left is None else left - len(page.streams)


def decoded(answer: Answer, kind: type[_T]) -> _T:
    """An answer in JSON. One of another shape comes from a server without the extension."""
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.ValidationError as error:
        raise NotSupported(f"{answer.url} answered something else: {error}.", url=answer.url) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if STREAM_NEXT_OFFSET in answer.headers:
            raise NotSupported(f"The server has no such extension: {answer.url} is a stream.", url=answer.url) from None
        raise ProtocolError(f"{answer.url} answered JSON that cannot be read: {error}.", url=answer.url) from None


def _with_settings(method: str, target: Target, settings: Mapping[str, Any]) -> Request:
    if not settings:
        return Request(method, target.url)
    return Request(method, target.url, headers={CONTENT_TYPE: JSON}, body=encode_json(dict(settings)))
