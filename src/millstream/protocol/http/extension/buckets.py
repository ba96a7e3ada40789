"""Bucket settings and listings as JSON."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ....model.errors import BadRequest
from ....model.facts import BucketSettings
from ....model.media import DEFAULT_CONTENT_TYPE, is_media_type
from ....model.names import split_key
from ....model.records import BucketRecord, StreamRecord
from ..requests import parameters

_T = TypeVar("_T")
LIST_LIMIT = 1000
_SECONDS_MAX = 10**12


class _SettingsBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of PUT and PATCH; what is absent stays, null takes a setting back."""

    content_type: str | msgspec.UnsetType | None = msgspec.UNSET
    ttl_seconds: int | msgspec.UnsetType | None = msgspec.UNSET
    retention_seconds: int | msgspec.UnsetType | None = msgspec.UNSET
    retention_bytes: int | msgspec.UnsetType | None = msgspec.UNSET
    caching: str | msgspec.UnsetType = msgspec.UNSET


def parse_settings(body: bytes, present: BucketSettings) -> BucketSettings:
    """The bucket's settings after this request."""
    if not body.strip():
        return present
    try:
        asked = msgspec.json.decode(body, type=_SettingsBody)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"The bucket's settings cannot be used: {error}.", code="bad_settings") from None
    settings = BucketSettings(
        _given(asked.content_type, present.content_type),
        _given(asked.ttl_seconds, present.ttl_s),
        _given(asked.retention_seconds, present.retention_s),
        _given(asked.retention_bytes, present.retention_bytes),
        present.caching if isinstance(asked.caching, msgspec.UnsetType) else asked.caching,
    )
    _check(settings)
    return settings


def _given(asked: _T | msgspec.UnsetType, present: _T) -> _T:
    return present if isinstance(asked, msgspec.UnsetType) else asked


def _check(settings: BucketSettings) -> None:
    content_type = settings.content_type
    is_plain = content_type is None or (content_type.isascii() and content_type.isprintable())
    if not is_plain or not is_media_type(content_type or DEFAULT_CONTENT_TYPE):
        raise BadRequest("content_type must be a media type such as text/plain.", code="bad_settings")
    for name in ("ttl_s", "retention_s", "retention_bytes"):
        value = getattr(settings, name)
        if value is not None and not 0 <= value <= _SECONDS_MAX:
            raise BadRequest(f"{name.replace('_s', '_seconds')} must be from 0 to 10^12.", code="bad_settings")
    if settings.caching not in ("public", "private"):
        raise BadRequest("caching must be 'public' or 'private'.", code="bad_settings")


def refuse_reading(query: bytes) -> None:
    """A client that takes a bucket for a stream would read it for ever."""
    if query and not {"offset", "live"}.isdisjoint(parameters(query)):
        raise BadRequest(
            "This is a bucket, and only streams can be read. Their URLs are /v1/stream/{path} and /{bucket}/{stream}.",
            code="bad_query",
        )


def bucket_body(bucket: BucketRecord) -> bytes:
    settings = bucket.settings
    return msgspec.json.encode(
        {
            "bucket_id": bucket.name,
            "streams": bucket.streams,
            "created_at_ms": bucket.created_ms,
            "settings": {
                "content_type": settings.content_type,
                "ttl_seconds": settings.ttl_s,
                "retention_seconds": settings.retention_s,
                "retention_bytes": settings.retention_bytes,
                "caching": settings.caching,
            },
        }
    )


class ListQuery(msgspec.Struct, frozen=True):
    prefix: str = ""
    after: str = ""
    limit: int = LIST_LIMIT


def parse_listing(query: bytes) -> ListQuery:
    values = parameters(query) if query else {}
    limit = values.get("limit", str(LIST_LIMIT))
    if not (limit.isascii() and limit.isdigit()) or len(limit) > 9 or not 1 <= int(limit) <= LIST_LIMIT:
        raise BadRequest(f"limit must be from 1 to {LIST_LIMIT}.", code="bad_limit")
    return ListQuery(values.get("prefix", ""), values.get("after", ""), int(limit))


def listing_body(bucket: str, query: ListQuery, streams: list[StreamRecord], has_more: bool) -> bytes:
    entries = [
        {
            "stream_id": split_key(stream.key)[1],
            "status": "closed" if stream.closed else "open",
            "content_type": stream.content_type,
            "tail_offset": stream.tail,
            "earliest_offset": stream.earliest,
            "snapshot_offset": None if stream.snapshot is None else stream.snapshot.offset,
            "created_at_ms": stream.created_ms,
            "last_write_at_ms": stream.written_ms,
        }
        for stream in streams
    ]
    return msgspec.json.encode(
        {
            "bucket_id": bucket,
            "prefix": query.prefix,
            "stream_count": len(entries),
            "streams": entries,
            "next_cursor": entries[-1]["stream_id"] if entries else None,
            "has_more": has_more,
        }
    )
