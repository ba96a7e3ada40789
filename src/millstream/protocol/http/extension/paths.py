"""The bucketed URLs: ``/ds/{bucket}/...`` and ``/{bucket}/...``, taken apart before anything is decoded."""

from __future__ import annotations

import re
from typing import NamedTuple

from ....model.errors import BadRequest, NotFound
from ....model.names import decoded, fault_in_name, fault_in_new_name, is_reserved

_PREFIX = b"/ds/"
_BUCKET = re.compile(r"[a-z0-9_-]{4,64}", re.ASCII)
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
    is_prefixed = path.startswith(_PREFIX)
    bucket, *others = map(decoded, path[len(_PREFIX) if is_prefixed else 1 :].split(b"/"))
    if not bucket or (is_reserved(bucket) and not is_prefixed):
        raise NotFound("Nothing is here. Streams live under /{bucket}/{stream}.", code="unknown_route")
    if is_reserved(bucket):
        raise BadRequest(f"The bucket name '{bucket}' is reserved for the server.", code="bad_bucket")
    if not others:
        return BucketedPath(bucket, None, ())
    return BucketedPath(bucket, others[0], tuple(others[1:]))


def is_ordinary(bucket: str) -> bool:
    """Whether a bucket of this name may be created; implicit ones of the flat surface may be shorter or odder."""
    return _BUCKET.fullmatch(bucket) is not None


def bad_bucket() -> BadRequest:
    return BadRequest("A bucket name has 4 to 64 characters out of a-z, 0-9, '_' and '-'.", code="bad_bucket")


def check_stream(path: BucketedPath, is_new: bool) -> None:
    """Whether a stream of this name can exist, or be created on the bucketed surface."""
    name = path.stream or ""
    fault = fault_in_new_name(path.bucket, name) if is_new else fault_in_name(name)
    if fault is not None:
        raise BadRequest(fault, code="bad_name")
