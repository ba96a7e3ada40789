"""Where a feed or a bulk read starts and ends, as clients write it."""

from __future__ import annotations

import msgspec

from ....model.errors import BadRequest
from ....model.positions import Position
from ..requests import moment_of


class Place(msgspec.Struct, frozen=True):
    """A place in the log: a position, a time, the end, or, with none of these, the beginning."""

    position: Position | None = None
    since_ms: int | None = None
    is_now: bool = False


EARLIEST = Place()
NOW = Place(is_now=True)


def parse_place(text: str, name: str) -> Place:
    if text == "earliest":
        return EARLIEST
    if text == "now":
        return NOW
    if "." in text and ":" not in text:
        return Place(Position.from_token(text))
    since_ms = moment_of(text)
    if since_ms is None:
        raise BadRequest(
            f"{name} must be a position as it was returned, 'earliest', 'now', or a time: milliseconds since 1970 or "
            "RFC 3339 such as 2030-01-31T12:00:00Z (write '+' as %2B).",
            code="bad_position",
        )
    return Place(since_ms=since_ms)
