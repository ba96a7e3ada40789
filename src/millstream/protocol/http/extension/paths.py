"""The bucketed URLs: ``/ds/{bucket}/...`` and ``/{bucket}/...``, taken apart before anything is decoded."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from ....model.errors import BadRequest, NotFound
from ....model.names import BUCKETED_KEY_BYTES_MAX as _KEY_BYTES_MAX

_PREFIX = b"/ds/"
_BUCKET = re.compile(r"[a-z0-9_-]{4,64}", re.ASCII)
_RESERVED_FIRST = frozenset({"ds", "v1", "ui"})
_RESERVED_BUCKETS = frozenset({"healthz", "readyz", "metrics", "cluster"})
LISTING = "streams"


class BucketedPath(NamedTuple):
    """What a bucketed URL names: a bucket, something under its listing, or a stream and something under it."""

    bucket: str
    stream: str | None
    rest: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.bucket}/{self.stream}"


def parse_bucketed(path: bytes) -> BucketedPath:
    body = path[len(_PREFIX) :] if path.startswith(_PREFIX) else path[1:]
    segments = [_decoded(part) for part in body.split(b"/")]
    if len(segments) > 1 and segments[-1] == "":
        segments.pop()  # a slash at the end means nothing here
    bucket, *others = segments
    if not bucket or bucket in _RESERVED_FIRST:
        raise NotFound("Nothing is here. Streams live under /{bucket}/{stream}.", code="unknown_route")
    if not others:
        return BucketedPath(bucket, None, ())
    return BucketedPath(bucket, others[0], tuple(others[1:]))


def check_new_bucket(bucket: str) -> None:
    """Whether a bucket of this name may be created."""
    if bucket in _RESERVED_BUCKETS:
        raise BadRequest(f"The bucket name '{bucket}' is reserved.", code="bad_bucket")
    if not _BUCKET.fullmatch(bucket):
        raise BadRequest("A bucket name has 4 to 64 characters out of a-z, 0-9, '_' and '-'.", code="bad_bucket")


def check_bucket(bucket: str) -> None:
    """Whether a bucket of this name can exist: implicit ones of the flat surface may be shorter or odder."""
    if "/" in bucket or "\0" in bucket or ".." in bucket or len(bucket.encode()) > 1024:
        raise BadRequest("A bucket name has 4 to 64 characters out of a-z, 0-9, '_' and '-'.", code="bad_bucket")


def check_new_stream(path: BucketedPath) -> None:
    """Whether a stream of this name may be created on the bucketed surface."""
    check_stream(path)
    if "/" in path.key.removeprefix(path.bucket + "/"):
        raise BadRequest("A stream name must not hold '/' here. Use /v1/stream/{path} for paths.", code="bad_name")
    if len(path.key.encode()) > _KEY_BYTES_MAX:
        raise BadRequest(f"Bucket and stream name take {_KEY_BYTES_MAX} bytes together at most.", code="bad_name")


def check_stream(path: BucketedPath) -> None:
    """Whether a stream of this name can exist."""
    check_bucket(path.bucket)
    name = path.stream or ""
    if not name or "\0" in name or ".." in name:
        raise BadRequest("A stream name must not be empty or hold NUL or '..'.", code="bad_name")
    if len(name.encode()) > 1024:
        raise BadRequest("A stream name takes at most 1024 bytes.", code="bad_name")


def _decoded(part: bytes) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise BadRequest("A path must be UTF-8 once percent-decoded.", code="bad_name") from None
