"""Time in our hands: a machine's clocks, which pass and can be set."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

START = 2_000_000_000_000
YEAR_S = 365 * 86_400


class Time:
    """In the place of the module `time`, for `node.clock`."""

    CLOCK_MONOTONIC = time.CLOCK_MONOTONIC

    def __init__(self) -> None:
        self.ms = START  # what the wall clock says
        self.running_ms = 5_000

    def pass_s(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)
        self.running_ms += int(seconds * 1000)

    def set_ahead_s(self, seconds: float) -> None:
        """Somebody sets the wall clock, ahead or back."""
        self.ms += int(seconds * 1000)

    def time_ns(self) -> int:
        return self.ms * 1_000_000

    def clock_gettime_ns(self, clock: int) -> int:
        return self.running_ms * 1_000_000


@contextmanager
def time_in_hand() -> Iterator[Time]:
    clocks = Time()
    with patch("millstream.node.clock.time", clocks):
        yield clocks
