"""What can be asked of one stream: how each request looks and what its answer means. No waiting here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ..model.media import DEFAULT_CONTENT_TYPE
from .errors import ProtocolError
from .faults import error_of
from .retry import Retry
from .steps import Attempts, Flow, call
from .values import Appended, Created, Head, rfc3339
from .wire import (
    CONTENT_TYPE,
    ETAG,
    IF_MATCH,
    STREAM_CLOSED,
    STREAM_EXPIRES_AT,
    STREAM_ID,
    STREAM_NEXT_OFFSET,
    STREAM_SEQ,
    STREAM_SNAPSHOT_OFFSET,
    STREAM_TTL,
    Answer,
    Request,
)


@dataclass(frozen=True, slots=True)
class Target:
    """A stream to talk to: its URL, and the policy for talking to it."""

    url: str
    retry: Retry


def succeed(answer: Answer, request: Request) -> Answer:
    """The answer itself if it is a success, else its error."""
    if not 200 <= answer.status < 300:
        raise error_of(answer, request)
    return answer


def create(
    target: Target,
    *,
    content_type: str | None,
    body: bytes | None,
    ttl_s: int | None,
    expires_at: datetime | str | None,
    closed: bool,
    headers: Mapping[str, str],
) -> Flow[Created]:
    """PUT changes nothing where the stream exists, so it may be repeated."""
    sent = dict(headers)
    if content_type is not None:
        sent[CONTENT_TYPE] = content_type
    if ttl_s is not None:
        sent[STREAM_TTL] = str(ttl_s)
    if expires_at is not None:
        sent[STREAM_EXPIRES_AT] = expires_at if isinstance(expires_at, str) else rfc3339(expires_at)
    if closed:
        sent[STREAM_CLOSED] = "true"
    request = Request("PUT", target.url, headers=sent, body=body)
    answer = succeed((yield from call(request, target.retry)), request)
    return Created(
        created=answer.status == 201,
        offset=answer.header(STREAM_NEXT_OFFSET) or "",
        content_type=answer.header(CONTENT_TYPE) or content_type or DEFAULT_CONTENT_TYPE,
        closed=closed or answer.says(STREAM_CLOSED),
        stream_id=answer.header(STREAM_ID),
        etag=answer.header(ETAG),
    )


def head(target: Target, headers: Mapping[str, str]) -> Flow[Head]:
    request = Request("HEAD", target.url, headers=headers)
    answer = succeed((yield from call(request, target.retry)), request)
    return Head(
        content_type=answer.content_type,
        offset=next_offset(answer),
        closed=answer.says(STREAM_CLOSED),
        ttl_s=answer.number(STREAM_TTL),
        expires_at=answer.header(STREAM_EXPIRES_AT),
        stream_id=answer.header(STREAM_ID),
        etag=answer.header(ETAG),
        snapshot_offset=answer.header(STREAM_SNAPSHOT_OFFSET),
    )


def exists(target: Target) -> Flow[bool]:
    request = Request("HEAD", target.url)
    answer = yield from call(request, target.retry)
    return answer.status != 404 and bool(succeed(answer, request))


def append(
    target: Target,
    body: bytes,
    content_type: str,
    *,
    seq: str | None = None,
    if_match: str | None = None,
    close: bool = False,
    at_least_once: bool = False,
    headers: Mapping[str, str],
) -> Flow[Appended]:
    """A plain append is sent again only where the first one cannot have arrived, unless twice is fine."""
    if not body and not close:
        raise ValueError("There is nothing to append: the body is empty.")
    sent = dict(headers)
    if body or content_type:
        sent[CONTENT_TYPE] = content_type
    if seq is not None:
        sent[STREAM_SEQ] = seq
    if if_match is not None:
        sent[IF_MATCH] = if_match
    if close:
        sent[STREAM_CLOSED] = "true"
    request = Request("POST", target.url, headers=sent, body=body)
    # Closing alone is the same however often it is done.
    repeatable = at_least_once or (close and not body)
    return appended(succeed((yield from call(request, target.retry, repeatable=repeatable)), request))


def appended(answer: Answer, *, duplicate: bool = False) -> Appended:
    return Appended(
        # Some servers do not say where the stream ends when they answer a duplicate.
        offset=(answer.header(STREAM_NEXT_OFFSET) or "") if duplicate else next_offset(answer),
        closed=answer.says(STREAM_CLOSED),
        duplicate=duplicate,
        stream_id=answer.header(STREAM_ID),
        etag=answer.header(ETAG),
    )


def delete(target: Target, headers: Mapping[str, str]) -> Flow[None]:
    """A stream that is gone when the delete is repeated was deleted by the first one, whose answer got lost."""
    request = Request("DELETE", target.url, headers=headers)
    attempts = Attempts()
    answer = yield from call(request, target.retry, attempts=attempts)
    if not (answer.status == 404 and attempts.unsure):
        succeed(answer, request)


def next_offset(answer: Answer) -> str:
    offset = answer.header(STREAM_NEXT_OFFSET)
    if offset is None:
        raise ProtocolError(f"The answer of {answer.url} lacks Stream-Next-Offset. Is this a Durable Streams server?")
    return offset
