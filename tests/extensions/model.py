"""What a server should answer, as plain dictionaries: the other half of the state machine."""

from __future__ import annotations

from dataclasses import dataclass, field

TEXT, JSON = "text/plain", "application/json"
DEFAULTS = {
    "content_type": None,
    "ttl_seconds": None,
    "retention_seconds": None,
    "retention_bytes": None,
    "caching": "public",
}


@dataclass
class ModelStream:
    content_type: str
    messages: list[tuple[int, bytes]] = field(default_factory=list)  # (offset, bytes), also those trimmed since
    earliest: int = 0
    closed: bool = False
    closed_by: tuple[str, int, int] | None = None
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    stream_seq: str | None = None
    snapshot: tuple[int, str, bytes] | None = None
    stream_id: str | None = None  # as the server gave it
    ttl_s: int | None = None

    @property
    def tail(self) -> int:
        return 0 if not self.messages else self.messages[-1][0] + len(self.messages[-1][1])

    @property
    def boundaries(self) -> set[int]:
        return {0, self.tail, *(offset for offset, _ in self.messages)}

    def kept(self, start: int) -> list[bytes]:
        return [message for offset, message in self.messages if offset >= start]

    def add(self, messages: list[bytes]) -> None:
        for message in messages:
            self.messages.append((self.tail, message))


@dataclass(frozen=True)
class Event:
    """An entry of the feed: stream, kind, first and next offset."""

    stream: str
    kind: str
    first: int
    next: int


@dataclass(frozen=True)
class Row:
    """A row of a bulk read. Whether it is a gap by now is looked up when it is compared."""

    stream: ModelStream
    name: str
    kind: str
    offset: int
    value: bytes
    content_type: str

    def shown(self, is_alive: bool) -> tuple[str, int, int, str, bytes | None]:
        end = self.offset + len(self.value) if self.kind == "message" else self.offset
        is_lost = not is_alive or (end <= self.stream.earliest and self.kind == "message" and self.value != b"")
        if self.kind == "snapshot":
            is_lost = not is_alive or self.offset < self.stream.earliest
            return (self.name, self.offset, end, "snapshot", None if is_lost else self.value)
        return (self.name, self.offset, end, "gap" if is_lost else "message", None if is_lost else self.value)


@dataclass
class ModelBucket:
    streams: dict[str, ModelStream] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)  # of transactions, by application
    settings: dict[str, str | int | None] = field(default_factory=lambda: dict(DEFAULTS))
    lapsed: dict[str, ModelStream] = field(default_factory=dict)  # gone, and the feed may say so at any time

    def made_again(self) -> ModelBucket:
        """Deleted and created: what happened under this name stays in its feed, and nothing else."""
        return ModelBucket(events=self.events, rows=self.rows)

    def happened(self, name: str, kind: str, first: int, following: int) -> None:
        self.events.append(Event(name, kind, first, following))

    def create(self, name: str, content_type: str, messages: list[bytes], closed: bool) -> ModelStream:
        if name in self.lapsed:
            self.expired(name)
        stream = self.streams[name] = ModelStream(content_type, ttl_s=self.settings["ttl_seconds"])
        self.happened(name, "created", 0, 0)
        self.append(name, messages)
        if closed:
            self.close(name)
        return stream

    def append(self, name: str, messages: list[bytes]) -> None:
        stream = self.streams[name]
        if not messages:
            return
        first = stream.tail
        for message in messages:
            self.rows.append(Row(stream, name, "message", stream.tail, message, stream.content_type))
            stream.add([message])
        self.happened(name, "appended", first, stream.tail)

    def close(self, name: str) -> None:
        stream = self.streams[name]
        stream.closed = True
        self.happened(name, "closed", stream.tail, stream.tail)

    def delete(self, name: str) -> None:
        stream = self.streams.pop(name)
        self.happened(name, "deleted", stream.tail, stream.tail)

    def lapse(self, name: str) -> None:
        """Its time is up: absent from now on, and said to be so once somebody comes by."""
        self.lapsed[name] = self.streams.pop(name)

    def expired(self, name: str) -> None:
        stream = self.lapsed.pop(name)
        self.happened(name, "expired", stream.tail, stream.tail)

    def trim(self, name: str, earliest: int) -> None:
        self.streams[name].earliest = earliest
        self.happened(name, "trimmed", 0, earliest)

    def publish(self, name: str, offset: int, content_type: str, value: bytes, trims: bool) -> None:
        stream = self.streams[name]
        stream.snapshot = (offset, content_type, value)
        if trims:
            stream.earliest = max(stream.earliest, offset)
        self.happened(name, "snapshot", offset, offset)
        self.rows.append(Row(stream, name, "snapshot", offset, value, content_type))

    def is_alive(self, stream: ModelStream) -> bool:
        return any(stream is known for known in self.streams.values())
