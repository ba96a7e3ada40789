"""When to try again, and how long to wait before."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
# The server says that nothing was changed; any other failure leaves that open.
UNCHANGED = frozenset({408, 425, 429, 503})


@dataclass(frozen=True, slots=True)
class Retry:
    """Waits grow from `delay_s` by `multiplier` up to `delay_max_s`, each shortened by chance to between half and all
    of it, so that a thousand clients do not come back at once. A `Retry-After` of the server wins over a shorter wait.

    `retries_max` failures in a row end it with the last error; None goes on for ever.
    """

    retries_max: int | None = 8
    delay_s: float = 0.1
    delay_max_s: float = 5.0
    multiplier: float = 2.0
    retry_after_max_s: float = 60.0

    def __post_init__(self) -> None:
        if self.retries_max is not None and self.retries_max < 0:
            raise ValueError("retries_max must not be negative.")
        if self.delay_s <= 0:
            raise ValueError("delay_s must be more than 0.")
        if self.delay_max_s < self.delay_s:
            raise ValueError("delay_max_s must not be less than delay_s.")
        if self.multiplier < 1:
            raise ValueError("multiplier must be 1 or more.")

    def allows(self, failures: int) -> bool:
        """Whether to go on after so many failures in a row."""
        return self.retries_max is None or failures <= self.retries_max

    def wait_s(self, failures: int, retry_after: str | None = None) -> float:
        """How long to wait after the n-th failure in a row, counted from 1."""
        # The exponent is capped: a float overflows long before anyone has waited that often.
        grown = self.delay_s * self.multiplier ** min(failures - 1, 64)
        delay = min(grown, self.delay_max_s) * random.uniform(0.5, 1.0)
        return max(delay, min(retry_after_s(retry_after), self.retry_after_max_s))


def retry_after_s(value: str | None) -> float:
    """Seconds that a `Retry-After` asks for: a number, or a date. What cannot be understood asks for nothing."""
    if not value:
        return 0.0
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        due = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    if due.tzinfo is None:
        due = due.replace(tzinfo=UTC)
    return max(0.0, (due - datetime.now(UTC)).total_seconds())
