"""Bucket and stream names, and what makes them valid.

A stream is known inside the system by one string, its *key*: ``bucket/name``. A bucket holds no slash, so the
first slash parts the two, and a flat path ``a/b/c`` is its own key.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from .errors import BadRequest

DEFAULT_BUCKET = "_default"
HAND_OFF_BUCKETS = frozenset({DEFAULT_BUCKET, "_s3p"})  # neither created nor deleted by hand
NAME_BYTES_MAX = 1024
BUCKETED_KEY_BYTES_MAX = 122  # of a stream that is created under /{bucket}/
_RESERVED_STREAM = "streams"  # the listing endpoint of a bucket
SERVERS_OWN = frozenset(
    {"ds", "v1", "ui", "healthz", "readyz", "metrics", "cluster"}
)  # what lies under / beside buckets
_RESERVED_START = "__"  # of upstream's control routes
# Flat paths as most are: letters, digits, '_', '-', not too long, and nothing that could be reserved.
_OWN = rb"(?:%b)(?![A-Za-z0-9_-])" % "|".join(sorted(SERVERS_OWN)).encode()
PLAIN_PATH = rb"(?!__|streams\b|%b)[A-Za-z0-9_-]{1,512}(?:/(?!streams\b)[A-Za-z0-9_-]{1,512})?" % _OWN
_PLAIN = re.compile(PLAIN_PATH)
_ENCODED = re.compile(rb"(?:[^%#]|%[0-9A-Fa-f]{2})*", re.DOTALL)


def split_key(key: str) -> tuple[str, str]:
    """The bucket and the stream name of a key."""
    bucket, _, name = key.partition("/")
    return bucket, name


def key_of_flat_path(path: bytes) -> str:
    """The key behind ``/v1/stream/{path}``; split before decoding, so ``%2F`` never parts a bucket."""
    if _PLAIN.fullmatch(path):
        return key_of_plain_path(path)
    raw_first, slash, raw_rest = path.partition(b"/")
    first = decoded(raw_first)
    if is_reserved(first):
        raise BadRequest(f"Paths that begin with '{first}' are reserved for the server.", code="bad_name")
    bucket, name = (first, decoded(raw_rest)) if slash else (DEFAULT_BUCKET, first)
    return f"{_checked_bucket(bucket)}/{_checked_name(name)}"


def is_reserved(first: str) -> bool:
    """Whether no stream's path begins with this segment, under any prefix: the server has or will have routes there."""
    return first in SERVERS_OWN or first.startswith(_RESERVED_START)


def key_of_plain_path(path: bytes) -> str:
    """The same for what matches `PLAIN_PATH`, which needs no decoding and no checks."""
    return path.decode() if b"/" in path else f"{DEFAULT_BUCKET}/{path.decode()}"


def decoded(raw: bytes) -> str:
    """A piece of a path without its percent-encoding."""
    if not _ENCODED.fullmatch(raw):
        raise BadRequest("In a path '%' is written %25 and '#' is written %23.", code="bad_name")
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise BadRequest("A path must be UTF-8 once percent-decoded.", code="bad_name") from None


def _checked_bucket(bucket: str) -> str:
    if bucket in ("", ".") or "/" in bucket or "\0" in bucket or ".." in bucket:
        raise BadRequest("A bucket name must not be empty or '.', or hold '/', NUL or '..'.", code="bad_name")
    if len(bucket.encode()) > NAME_BYTES_MAX:
        raise BadRequest(f"A bucket name takes at most {NAME_BYTES_MAX} bytes.", code="bad_name")
    return bucket


def _checked_name(name: str) -> str:
    fault = fault_in_name(name)
    if fault is not None:
        raise BadRequest(fault, code="bad_name")
    return name


def fault_in_name(name: str) -> str | None:
    """Why no stream has this name; None if one may."""
    if not name:
        return "A stream needs a name: its path must not be empty, or end with the bucket."
    if "\0" in name or ("." in name and (".." in name or "." in name.split("/"))):
        return "A stream name must not hold NUL or '..', nor '.' between slashes: clients leave it out of URLs."
    if name == _RESERVED_STREAM:
        return f"The stream name '{_RESERVED_STREAM}' is reserved for listings."
    if len(name.encode()) > NAME_BYTES_MAX:
        return f"A stream name takes at most {NAME_BYTES_MAX} bytes."
    return None


def fault_in_new_name(bucket: str, name: str) -> str | None:
    """Why a stream of this name may not be created in a bucket that has URLs of its own; None if it may."""
    fault = fault_in_name(name)
    if fault is not None:
        return fault
    if "/" in name:
        return "A stream name must not hold '/' here. Use /v1/stream/{path} for paths."
    if len(f"{bucket}/{name}".encode()) > BUCKETED_KEY_BYTES_MAX:
        return f"Bucket, '/' and stream name take {BUCKETED_KEY_BYTES_MAX} bytes together at most."
    return None
