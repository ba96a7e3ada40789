"""The only reader of time. Commit times never go back within a log, whatever the wall clock does."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int: ...


class WallClock:
    def __init__(self) -> None:
        self._last = 0

    def now_ms(self) -> int:
        now = time.time_ns() // 1_000_000
        if now > self._last:
            self._last = now
        return self._last

    def not_before(self, at_ms: int) -> None:
        """The log has a fact of this time: nothing later may be earlier."""
        self._last = max(self._last, at_ms)
