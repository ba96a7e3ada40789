"""A change as readers of a bucket's feed see it."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One entry of a feed; `messages` only where they were asked for."""

    sequence: int
    at_ms: int
    stream: str
    kind: str  # created, appended, closed, snapshot, trimmed, deleted, expired; gap for data that is gone
    first_offset: int
    next_offset: int
    content_type: str
    messages: list[bytes] | None = None

    @property
    def size(self) -> int:
        return sum(map(len, self.messages)) if self.messages else 0
