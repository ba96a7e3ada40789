"""Where a read starts, as people write it: now, beginning, an offset, a bookmark, a time, or how long ago."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from millstream.cli.output import CommandError

BEGINNING = "-1"
NOW = "now"
_OFFSET = re.compile(r"[0-9]{1,20}|[0-9]{16}_[0-9]{16}")
_AGO = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}.*")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

FromOption = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="beginning, now, an offset, a time such as 2026-11-15T06:00:00Z, or how long ago, such as 10m.",
    ),
]


@dataclass(frozen=True, slots=True)
class Start:
    """What the client is told: an offset (with the stream's id if it came with one), or a time."""

    offset: str = BEGINNING
    stream_id: str | None = None
    timestamp: datetime | None = None


def start_of(place: str, now: datetime | None = None) -> Start:
    if place in ("beginning", BEGINNING):
        return Start()
    if place == NOW:
        return Start(NOW)
    offset, at, stream_id = place.partition("@")
    if _OFFSET.fullmatch(offset) and bool(at) == bool(stream_id):
        return Start(offset, stream_id or None)
    return Start(timestamp=moment_of(place, now or datetime.now(UTC)))


def moment_of(text: str, now: datetime) -> datetime:
    """A time; one without a zone is this machine's."""
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        if _DATE.fullmatch(text) is None:  # fromisoformat also takes rows of digits, which here are offsets
            raise ValueError(text)
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise CommandError(
            f"--from {text} is no place in a stream; write beginning, now, an offset, a time such as "
            "2026-11-15T06:00:00Z, or how long ago, such as 10m"
        ) from None
