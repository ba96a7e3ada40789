"""Cursors: what lets a cache collapse live readers without looping for ever (protocol section 8.1)."""

from __future__ import annotations

import random

_EPOCH_MS = 1_728_432_000_000  # 2024-10-09T00:00:00Z
_INTERVAL_S = 20
_JITTER_S_MAX = 3600


def interval(now_ms: int) -> int:
    """The interval a time lies in, counted from the protocol's epoch."""
    return (now_ms - _EPOCH_MS) // (_INTERVAL_S * 1000)


def next_cursor(now_ms: int, client_cursor: int | None) -> int:
    """The interval we are in, or something after what the client has: cursors never go back."""
    current = interval(now_ms)
    if client_cursor is None or client_cursor < current:
        return current
    jitter_s = random.randint(1, _JITTER_S_MAX)
    return client_cursor + max(1, jitter_s // _INTERVAL_S)
