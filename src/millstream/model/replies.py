"""Every answer to a command that was not refused."""

from __future__ import annotations

from enum import Enum

import msgspec


class Outcome(Enum):
    CREATED = "created"
    EXISTED = "existed"
    APPENDED = "appended"
    DUPLICATE = "duplicate"
    CLOSED = "closed"
    DELETED = "deleted"
    EXPIRED = "expired"
    TOUCHED = "touched"
    CHANGED = "changed"
    COMMITTED = "committed"
    TRIMMED = "trimmed"
    PUBLISHED = "published"
    NOTHING = "nothing"


APPENDED = Outcome.APPENDED  # for the hot ways: looking a member up takes as long as making a receipt


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What became of a command, and the stream's state after it."""

    outcome: Outcome
    number: int
    tail: int
    closed: bool
    content_type: str
    producer_epoch: int | None = None
    producer_seq: int | None = None
    last_id: tuple[int, int] | None = None  # of an append: the id of its last message; plain, as it is hot
