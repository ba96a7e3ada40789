"""Positions: places in the commit order.

A *shard* is one log. Its facts are numbered 1, 2, 3, ... for as long as the log lives; a log that is restored
from a backup starts a new *incarnation*, so that an old position is never mistaken for a new one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import BadRequest

SINGLE_SHARD = 0
_TOKEN = re.compile(r"([0-9a-f]{16})((?:\.[0-9]{1,20})+)", re.ASCII)


class Position(NamedTuple):
    """How far a reader has come: the last sequence it has seen in each shard."""

    incarnation: int
    sequences: tuple[int, ...]

    def token(self) -> str:
        """The opaque text that clients keep."""
        return f"{self.incarnation:016x}" + "".join(f".{sequence}" for sequence in self.sequences)

    @classmethod
    def from_token(cls, token: str) -> Position:
        match = _TOKEN.fullmatch(token)
        if not match:
            raise BadRequest("The position is malformed. Use a token as it was returned.", code="bad_position")
        return cls(int(match[1], 16), tuple(int(part) for part in match[2][1:].split(".")))


def format_stream_id(incarnation: int, number: int) -> str:
    """The identity of one incarnation of a stream: unchanged over its life, new after delete and create."""
    return "%08x-%x" % (incarnation & 0xFFFFFFFF, number)  # noqa: UP031 - half the time of an f-string; it is hot
