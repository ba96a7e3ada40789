"""What every live read has in common: patience, failures in a row, and when nothing new for a while is enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from .errors import ClientError
from .operations import Target
from .steps import Flow, Sleep

Live: TypeAlias = Literal[False, True, "sse", "long-poll"]

LONG_POLL_S = 20.0
LONG_POLL_GRACE_S = 40.0  # servers that know no timeout_ms wait as long as they like; 30 s is usual
SSE_SILENCE_S = 20.0  # longer than the heartbeat of 15 s
SHORT_CONNECTION_S = 1.0
# What a server or a proxy without SSE answers to live=sse.
NO_SSE = frozenset({400, 405, 406, 415, 501})


def live_of(value: object) -> Live:
    for allowed in (False, True, "sse", "long-poll"):
        if value is allowed or (isinstance(value, str) and value == allowed):
            return allowed
    raise ValueError(f"live is False, True, 'sse' or 'long-poll', not {value!r}.")


class Following:
    """A read that may be live. Failures count in a row: anything that comes through starts them anew."""

    def __init__(self, target: Target, now: Callable[[], float], idle_s: float | None, long_poll_s: float) -> None:
        self._target = target
        self._now = now
        self._idle_s = idle_s
        self._long_poll_s = long_poll_s
        self._failures = 0
        self._last_news_s = now()

    def _is_idle(self) -> bool:
        return self._idle_s is not None and self._now() - self._last_news_s >= self._idle_s

    def _patience_s(self, usual_s: float) -> float:
        """How long to wait for something, given that the read may be over before."""
        if self._idle_s is None:
            return usual_s
        return min(usual_s, max(0.05, self._last_news_s + self._idle_s - self._now()))

    def _long_poll_params(self) -> tuple[dict[str, str], float]:
        """Of a long-poll: its parameters, and how long to wait for the answer."""
        wait_s = self._patience_s(self._long_poll_s)
        grace_s = LONG_POLL_GRACE_S if self._idle_s is None else 1.0
        return {"live": "long-poll", "timeout_ms": str(int(wait_s * 1000))}, wait_s + grace_s

    def _failed(self, fault: ClientError, retry_after: str | None = None) -> Flow[None]:
        """Wait before the next attempt, or give up with this error."""
        self._failures += 1
        retry = self._target.retry
        if not retry.allows(self._failures):
            raise fault
        yield Sleep(self._patience_s(retry.wait_s(self._failures, retry_after)))
