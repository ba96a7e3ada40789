"""What clients were told, stream by stream: the oracle that a restarted server is measured against."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum

from .messages import Label

THINNING_S = 1.0  # renewals of a TTL are journaled that often; after a restart a deadline may be so much later
SWEEP_S = 5.0  # how late a loaded machine may be


class Known(Enum):
    """What a client may rely on. MAYBE: it asked and never heard; the next check settles it for good."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


@dataclass(slots=True)
class Attempt:
    """One append, of one or more messages that stand or fall together."""

    labels: tuple[Label, ...]
    closes: bool = False
    happened: Known = Known.NO
    end: int | None = None  # the offset after it, once somebody was told or saw it

    def acknowledge(self, end: int) -> None:
        assert self.end in (None, end), f"{self.labels[0]} ended at {self.end}, now at {end}"
        self.happened, self.end = Known.YES, end


@dataclass(slots=True)
class Account:
    """Everything that was said about one URL. Deleting starts a new page, so this is about one incarnation."""

    path: str
    json: bool = False
    exists: Known = Known.NO
    closed: Known = Known.NO
    stream_id: str | None = None
    attempts: dict[tuple[str, int], Attempt] = field(default_factory=dict)  # by the first message
    seen: bytearray = field(default_factory=bytearray)  # what a reader was given, from the beginning on
    checks: int = 0  # that it has passed
    ttl_s: int | None = None
    used_after_s: float = 0.0  # it was written to at this time or later, and somebody was told so
    used_before_s: float = 0.0  # nobody has used it later than this
    snapshots: dict[int, bytes] = field(default_factory=dict)  # that were asked for, by offset
    published: int = 0  # the offset of the newest that somebody was told of; what lies before is not kept

    @property
    def content_type(self) -> str:
        return "application/json" if self.json else "application/octet-stream"

    def note(self, attempt: Attempt) -> None:
        first = attempt.labels[0]
        self.attempts[first.author, first.number] = attempt

    def created(self, stream_id: str) -> None:
        if self.ttl_s is not None and self.exists is Known.MAYBE and self.stream_id != stream_id:
            self.forget()  # the one before has expired for good
        assert self.stream_id in (None, stream_id), f"{self.path} became another stream by itself"
        self.exists, self.stream_id = Known.YES, stream_id

    def forget_before(self, offset: int) -> None:
        """A snapshot took the place of what lies before."""
        self.published = max(self.published, offset)
        kept = {key: one for key, one in self.attempts.items() if one.end is None or one.end > offset}
        self.attempts = kept

    def may_be_over(self) -> bool:
        return self.ttl_s is not None and time.monotonic() >= self.used_after_s + self.ttl_s

    def must_be_over(self) -> bool:
        if self.ttl_s is None:
            return False
        return time.monotonic() > self.used_before_s + self.ttl_s + THINNING_S + SWEEP_S

    def expire(self) -> None:
        """Its time was up. Until that is durable, a kill may bring it back for a moment, with all that it held."""
        assert self.may_be_over(), f"{self.path} is gone before its time"
        if self.must_be_over():
            self.forget()
        else:
            self.exists = Known.MAYBE

    def forget(self) -> None:
        """It is not there, nor what was never heard of: whatever comes under this URL is another stream."""
        for attempt in self.attempts.values():
            if attempt.happened is Known.MAYBE:
                attempt.happened = Known.NO
        self.exists = self.closed = Known.NO
        self.stream_id = None
        self.used_after_s = 0.0
        self.attempts = {}
        self.seen = bytearray()
        self.snapshots = {}
        self.published = 0

    def saw(self, start: int, data: bytes) -> None:
        """A reader was given these bytes; they must never change or go away."""
        overlap = self.seen[start : start + len(data)]
        assert data.startswith(bytes(overlap)), f"{self.path}: a second read at {start} gave other bytes"
        assert start <= len(self.seen), f"{self.path}: a reader skipped to {start}"
        self.seen += data[len(overlap) :]


class Ledger:
    """All accounts of a run."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}

    def open(self, name: str, json: bool = False) -> Account:
        path = name if name.startswith("/") else f"/v1/stream/{name}"
        return self.accounts.setdefault(path, Account(path, json))

    def acknowledged(self) -> int:
        """Appends that must be there."""
        return sum(
            attempt.happened is Known.YES for account in self.accounts.values() for attempt in account.attempts.values()
        )
