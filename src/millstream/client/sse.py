"""Server-Sent Events, as the protocol uses them: feed bytes as they come, get the events that are complete."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ProtocolError

# A JSON message comes whole in one event, and binary data is a third longer in base64.
EVENT_BYTES_MAX = 192 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Event:
    kind: str
    data: bytes


class SseDecoder:
    def __init__(self) -> None:
        self._partial: list[bytes] = []  # pieces of a line whose end has not come yet
        self._held = 0  # bytes kept in all
        self._skip_line_feed = False
        self._kind = ""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[Event]:
        if self._skip_line_feed and chunk:
            self._skip_line_feed = False
            if chunk[:1] == b"\n":
                chunk = chunk[1:]
        if b"\n" not in chunk and b"\r" not in chunk:
            self._hold(chunk)
            return []
        text = b"".join((*self._partial, chunk))
        lines = text.splitlines()
        self._skip_line_feed = text.endswith(b"\r")
        self._partial = [] if text.endswith((b"\n", b"\r")) else [lines.pop()]
        events = [event for line in lines if (event := self._line(line)) is not None]
        self._held = sum(map(len, self._partial)) + sum(map(len, self._data))
        return events

    def _hold(self, chunk: bytes) -> None:
        self._partial.append(chunk)
        self._held += len(chunk)
        if self._held > EVENT_BYTES_MAX:
            raise ProtocolError(f"An event of the server is longer than {EVENT_BYTES_MAX} bytes.")

    def _line(self, line: bytes) -> Event | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._kind = value.decode(errors="replace")
        return None  # a comment, or a field this protocol does not use

    def _dispatch(self) -> Event | None:
        kind, data = self._kind, self._data
        self._kind, self._data = "", []
        if not kind and not data:
            return None
        return Event(kind or "message", b"\n".join(data))
