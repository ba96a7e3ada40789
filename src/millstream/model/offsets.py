"""Offsets: byte positions in a stream, as text that sorts the way the numbers do.

Inside the system an offset is an ``int``. On the wire it is a 20-digit decimal; the sentinels ``-1`` (the
beginning) and ``now`` (the tail) belong to requests only.
"""

from __future__ import annotations

import re

from .errors import BadRequest

BEGINNING = -1
NOW = -2

_DECIMAL = re.compile(r"[0-9]{1,20}", re.ASCII)
# The reference server's form; official clients and tests hold literals of it, so it is understood on input.
_PAIR = re.compile(r"([0-9]{16})_([0-9]{16})", re.ASCII)


def format_offset(offset: int) -> str:
    return f"{offset:020d}"


def parse_offset(text: str) -> int:
    """The offset that ``text`` names, or `BEGINNING` or `NOW`."""
    if text == "-1":
        return BEGINNING
    if text == "now":
        return NOW
    if _DECIMAL.fullmatch(text):
        return int(text)
    pair = _PAIR.fullmatch(text)
    if pair:
        return int(pair[1]) * 10**16 + int(pair[2])
    raise BadRequest(
        "The offset is malformed. Use a Stream-Next-Offset value as it was returned, '-1' for the beginning, "
        "or 'now' for the tail.",
        code="bad_offset",
    )
