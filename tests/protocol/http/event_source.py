"""A browser's side of Server-Sent Events: the parser of the WHATWG HTML standard, section 9.2.6, and nothing else."""

from __future__ import annotations

import re
from typing import NamedTuple


class Event(NamedTuple):
    type: str
    data: str
    id: str


def parse_events(stream: bytes) -> list[Event]:
    """The events a browser dispatches; an unfinished one at the end is dropped."""
    text = stream.decode("utf-8", errors="replace").removeprefix("\ufeff")
    events: list[Event] = []
    kind, last_id = "", ""
    data: list[str] = []
    for line in re.split(r"\r\n|\n|\r", text)[:-1]:
        if not line:
            if data:
                events.append(Event(kind or "message", "\n".join(data), last_id))
            kind, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            kind = value
        elif field == "data":
            data.append(value)
        elif field == "id" and "\0" not in value:
            last_id = value
    return events
