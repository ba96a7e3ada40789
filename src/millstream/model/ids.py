"""Message ids: ``<ms>-<seq>``, two unsigned 64-bit integers, strictly growing within a stream.

Every message of every stream has one, whatever protocol wrote it. The messages of one append have consecutive ones,
which differ in `seq` alone.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import BadRequest

U64_MAX = (1 << 64) - 1
_TEXT = re.compile(rb"([0-9]+)-([0-9]+)")


class MessageId(NamedTuple):
    ms: int
    seq: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    def before(self) -> MessageId | None:
        """The id right before this one; None before the first there is."""
        if self.seq:
            return MessageId(self.ms, self.seq - 1)
        return MessageId(self.ms - 1, U64_MAX) if self.ms else None


ZERO_ID = MessageId(0, 0)  # before every message: no message has it


def parse_id(text: bytes) -> MessageId:
    """Compared as integers, so leading zeros mean nothing."""
    matched = _TEXT.fullmatch(text)
    if matched is None or len(text) > 128:
        raise BadRequest("An id is <ms>-<seq>, two decimal numbers.", code="bad_id")
    found = MessageId(int(matched[1]), int(matched[2]))
    if max(found) > U64_MAX:
        raise BadRequest("Each number of an id takes 64 bits at most.", code="bad_id")
    return found
