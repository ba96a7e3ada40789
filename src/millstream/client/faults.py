"""Which error an answer means, in one place. Status and headers decide; the body only explains."""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import (
    AlreadyExists,
    BadRequest,
    ClientError,
    Conflict,
    Fenced,
    Gone,
    NotFound,
    NotSupported,
    PositionGone,
    PreconditionFailed,
    ProtocolError,
    SequenceConflict,
    SequenceGap,
    StreamClosed,
    StreamRecreated,
    TooLarge,
    TransactionRefused,
    Trimmed,
    Unauthorized,
    Unavailable,
)
from .wire import (
    PRODUCER_EPOCH,
    PRODUCER_EXPECTED_SEQ,
    PRODUCER_RECEIVED_SEQ,
    STREAM_CLOSED,
    STREAM_EARLIEST_OFFSET,
    STREAM_EARLIEST_POSITION,
    STREAM_ID,
    STREAM_NEXT_OFFSET,
    STREAM_SEQ,
    Answer,
    Request,
)

_EXPLANATION_CHARS_MAX = 500


class _Problem(msgspec.Struct):
    code: str = ""
    message: str = ""
    reasons: list[dict[str, Any]] = []


class _ProblemBody(msgspec.Struct):
    error: _Problem


_problem_body = msgspec.json.Decoder(_ProblemBody)


def error_of(answer: Answer, request: Request) -> ClientError:
    """The error behind an answer that is no success."""
    problem = _problem(answer.body)
    code = problem.code or None
    kind = _kind(answer, request, problem.code)
    said = problem.message or f"The server answered {answer.status}."
    error = kind(f"{request.method} {request.url}: {said}", code=code, status=answer.status, url=request.url)
    _add_details(error, answer)
    if isinstance(error, TransactionRefused):
        error.reasons = problem.reasons
    return error


def _problem(body: bytes) -> _Problem:
    try:
        return _problem_body.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body[: 4 * _EXPLANATION_CHARS_MAX].decode(errors="replace").strip()
        is_page = text[:1] == "<"  # some proxy's error page tells nobody anything
        return _Problem(message="" if is_page else text[:_EXPLANATION_CHARS_MAX])


def _kind(answer: Answer, request: Request, code: str) -> type[ClientError]:
    status = answer.status
    if status == 401:
        return Unauthorized
    if status == 403:
        return Fenced if PRODUCER_EPOCH in answer.headers else Unauthorized
    if status == 404:
        return NotSupported if code == "unknown_route" else NotFound
    if status == 409:
        return _conflict(answer, request, code)
    if status == 410:
        return _gone(answer, request)
    if status == 412:
        return PreconditionFailed
    if status == 413:
        return TooLarge
    if status in (408, 425, 429) or status >= 500:
        return Unavailable
    return BadRequest if 400 <= status < 500 else ProtocolError


def _conflict(answer: Answer, request: Request, code: str) -> type[Conflict]:
    if code.startswith("transaction_"):
        return TransactionRefused
    if answer.says(STREAM_CLOSED):
        return StreamClosed
    if PRODUCER_EXPECTED_SEQ in answer.headers:
        return SequenceGap
    if request.method == "PUT":
        return AlreadyExists
    # Servers that do not say why: a conflict of an append with a sequence number is most likely about that.
    if STREAM_SEQ in request.headers and b"content_type" not in answer.body:
        return SequenceConflict
    return Conflict


def _gone(answer: Answer, request: Request) -> type[Gone]:
    if STREAM_EARLIEST_POSITION in answer.headers or "after" in request.params:
        return PositionGone
    if STREAM_EARLIEST_OFFSET in answer.headers or 'rel="bootstrap"' in (answer.header("link") or ""):
        return Trimmed
    return StreamRecreated if STREAM_ID in request.params else Trimmed


def _add_details(error: ClientError, answer: Answer) -> None:
    if isinstance(error, StreamClosed):
        error.offset = answer.header(STREAM_NEXT_OFFSET)
    elif isinstance(error, SequenceGap):
        error.expected = answer.number(PRODUCER_EXPECTED_SEQ)
        error.received = answer.number(PRODUCER_RECEIVED_SEQ)
    elif isinstance(error, Fenced):
        error.epoch = answer.number(PRODUCER_EPOCH)
    elif isinstance(error, PositionGone):
        error.earliest = answer.header(STREAM_EARLIEST_POSITION)
    elif isinstance(error, Trimmed):
        error.earliest = answer.header(STREAM_EARLIEST_OFFSET)
