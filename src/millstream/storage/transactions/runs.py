"""What the decoders of staged rows share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...model.errors import BadRequest
from ...model.json_text import first_fault

RUN_BYTES = 8 << 20  # a run is sorted in memory, where it needs about three times this
RUN_ROWS = 200_000
STREAM_BYTES_MAX = 1024


def bad_part(why: str) -> BadRequest:
    return BadRequest(f"The part cannot be used: {why}.", code="bad_part")


def bad_row(row: int, why: str) -> BadRequest:
    return bad_part(f"row {row}: {why}")


def json_fault(messages: Sequence[bytes], row_of: Callable[[int], int]) -> str | None:
    """Where and why a message of a group is no JSON; whether that matters is decided with the commit."""
    found = first_fault(messages)
    return None if found is None else f"row {row_of(found[0])}: {found[1]}"
