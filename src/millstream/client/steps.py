"""Flows: the client's rules as generators that never wait themselves.

A flow yields what it wants done (a `Step`) and is sent what came of it; a driver does the waiting, once for threads
and once for asyncio. A flow that reads yields `Emit` for each value its caller should get.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from .errors import ClientError, ConnectionLost, OutcomeUnknown, ProtocolError
from .faults import error_of
from .retry import RETRYABLE, UNCHANGED, Retry
from .wire import LOCATION, RETRY_AFTER, Answer, Request, redirect_target

_T = TypeVar("_T")
REDIRECTS_MAX = 5
_REDIRECTS = frozenset({307, 308})


@dataclass(frozen=True, slots=True)
class Send:
    """Send and read the answer; with `stream`, leave the body of a success to `NextChunk`."""

    request: Request
    stream: bool = False


@dataclass(frozen=True, slots=True)
class NextChunk:
    """The next piece of the open answer's body; empty at its end."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Let go of the open answer."""


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Refresh:
    """Ask for new credentials, unless someone has since those of this issue were used."""

    issue: int


@dataclass(frozen=True, slots=True)
class Emit:
    value: object


Step: TypeAlias = Send | NextChunk | Finish | Sleep | Refresh | Emit
Reply: TypeAlias = Answer | bytes | bool | None
Flow: TypeAlias = Generator[Step, Reply, _T]


def send(request: Request, *, stream: bool = False, follow: bool = True) -> Flow[Answer]:
    """One attempt: follows redirects unless told otherwise, and refreshes credentials once when they are refused."""
    refreshed = False
    for _ in range(REDIRECTS_MAX + 2):
        answer = yield Send(request, stream)
        assert isinstance(answer, Answer)
        if answer.status == 401 and not refreshed:
            refreshed = True
            if (yield Refresh(answer.credentials)):
                continue
        location = answer.header(LOCATION)
        if follow and answer.status in _REDIRECTS and location is not None:
            request = replace(request, url=redirect_target(request.url, location), params={})
            continue
        return answer
    raise ProtocolError(f"The server redirects in a circle: {request.url}.", url=request.url)


def next_chunk() -> Flow[bytes]:
    chunk = yield NextChunk()
    assert isinstance(chunk, bytes)
    return chunk


class Attempts:
    """What became of earlier attempts: `unsure` when one may have been carried out although its answer is missing."""

    unsure = False


def call(
    request: Request,
    retry: Retry,
    *,
    repeatable: bool = True,
    stream: bool = False,
    follow: bool = True,
    attempts: Attempts | None = None,
) -> Flow[Answer]:
    """Attempts until there is an answer that another attempt would not change.

    What is not `repeatable` is tried again only where the server cannot have acted on it.
    """
    attempts = attempts or Attempts()
    failures = 0
    while True:
        retry_after = None
        fault: ClientError
        try:
            answer = yield from send(request, stream=stream, follow=follow)
        except ConnectionLost as lost:
            fault = lost
            unchanged = not lost.sent
        else:
            if answer.status not in RETRYABLE:
                return answer
            fault = error_of(answer, request)
            unchanged = answer.status in UNCHANGED and fault.code != OutcomeUnknown.code
            retry_after = answer.header(RETRY_AFTER)
        attempts.unsure = attempts.unsure or not unchanged
        if not (repeatable or unchanged):
            raise OutcomeUnknown(
                f"{fault.message} The append may or may not be there: read before you send it again, or use a "
                "producer, which can repeat itself safely.",
                status=fault.status,
                url=request.url,
            ) from fault
        failures += 1
        if not retry.allows(failures):
            raise fault
        yield Sleep(retry.wait_s(failures, retry_after))
