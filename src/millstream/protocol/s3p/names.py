"""S3P names are any bytes; keys are text. The way from one to the other, and back.

A name lives in the bucket `_s3p` under its percent-encoded form. Where `buckets` is on, a name with a slash is
`bucket/stream` and reaches any bucket, as the flat HTTP path does.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote_from_bytes, unquote_to_bytes

from ...model.errors import BadRequest
from ...model.names import key_of_flat_path

BUCKET = "_s3p"
NAME_BYTES_MAX = 340  # encoded, each byte may take three of a key's 1,024
_PREFIX = f"{BUCKET}/"
_RESERVED = frozenset({"streams", "__ds", "."})  # taken by routes, or lost on the way by whoever tidies URLs


@lru_cache(maxsize=16_384)
def key_of_name(name: bytes, buckets: bool = False) -> str:
    if buckets and b"/" in name:
        return _key_in_bucket(name)
    text = quote_from_bytes(name, safe="")
    if text in _RESERVED:
        text = f"%{name[0]:02X}{text[1:]}"
    elif ".." in text:
        text = text.replace(".", "%2E")
    return _PREFIX + text


def name_of_key(key: str) -> bytes:
    """The S3P name of a stream, from which `key_of_name` with `buckets` leads back to it."""
    if key.startswith(_PREFIX):
        name = unquote_to_bytes(key.removeprefix(_PREFIX))
        if b"/" not in name:
            return name
    return key.encode()


def _key_in_bucket(name: bytes) -> str:
    try:
        return key_of_flat_path(quote_from_bytes(name, safe="/").encode())
    except BadRequest as error:
        raise BadRequest(f"bad stream name: {error.message}") from None
