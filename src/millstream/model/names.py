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
_RESERVED_BUCKET = "__ds"  # upstream's control routes
# Flat paths as most are: letters, digits, '_', '-', not too long, and nothing that could be reserved.
PLAIN_PATH = rb"(?!__ds|streams\b)[A-Za-z0-9_-]{1,512}(?:/(?!__ds|streams\b)[A-Za-z0-9_-]{1,512})?"
_PLAIN = re.compile(PLAIN_PATH)


def split_key(key: str) -> tuple[str, str]:
    """The bucket and the stream name of a key."""
    bucket, _, name = key.partition("/")
    return bucket, name


def key_of_flat_path(path: bytes) -> str:
    """The key behind ``/v1/stream/{path}``; split before decoding, so ``%2F`` never parts a bucket."""
    if _PLAIN.fullmatch(path):
        return key_of_plain_path(path)
    raw_bucket, slash, raw_name = path.partition(b"/")
    if not slash:
        raw_bucket, raw_name = DEFAULT_BUCKET.encode(), path
    bucket = _text(unquote_to_bytes(raw_bucket))
    name = _checked_name(_text(unquote_to_bytes(raw_name)))
    return f"{_checked_bucket(bucket)}/{name}"


def key_of_plain_path(path: bytes) -> str:
    """The same for what matches `PLAIN_PATH`, which needs no decoding and no checks."""
    return path.decode() if b"/" in path else f"{DEFAULT_BUCKET}/{path.decode()}"


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadRequest("A stream's path must be UTF-8 once percent-decoded.", code="bad_name") from None


def _checked_bucket(bucket: str) -> str:
    if not bucket or "/" in bucket or "\0" in bucket or ".." in bucket:
        raise BadRequest("A bucket name must not be empty or hold '/', NUL or '..'.", code="bad_name")
    if bucket == _RESERVED_BUCKET:
        raise BadRequest(f"The prefix '{_RESERVED_BUCKET}' is reserved.", code="bad_name")
    if len(bucket.encode()) > NAME_BYTES_MAX:
        raise BadRequest(f"A bucket name takes at most {NAME_BYTES_MAX} bytes.", code="bad_name")
    return bucket


def _checked_name(name: str) -> str:
    if not name:
        raise BadRequest("A stream needs a name: PUT /v1/stream/{name}.", code="bad_name")
    if "\0" in name or ".." in name:
        raise BadRequest("A stream name must not hold NUL or '..'.", code="bad_name")
    if name == _RESERVED_BUCKET:
        raise BadRequest(f"The name '{_RESERVED_BUCKET}' is reserved.", code="bad_name")
    if name == _RESERVED_STREAM:
        raise BadRequest(f"The stream name '{_RESERVED_STREAM}' is reserved for listings.", code="bad_name")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise BadRequest(f"A stream name takes at most {NAME_BYTES_MAX} bytes.", code="bad_name")
    return name


def fault_in_new_name(bucket: str, name: str) -> str | None:
    """Why a stream of this name may not be created in a bucket that has URLs of its own; None if it may."""
    if not name or "\0" in name or ".." in name:
        return "A stream name must not be empty or hold NUL or '..'."
    if "/" in name:
        return "A stream name must not hold '/' here. Use /v1/stream/{path} for paths."
    if name == _RESERVED_STREAM:
        return f"The stream name '{_RESERVED_STREAM}' is reserved."
    if len(f"{bucket}/{name}".encode()) > BUCKETED_KEY_BYTES_MAX:
        return f"Bucket and stream name take {BUCKETED_KEY_BYTES_MAX} bytes together at most."
    return None
