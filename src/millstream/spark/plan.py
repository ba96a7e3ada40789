"""A read plan as the server answers it (docs/protocol.md, Read plans), checked against this shape when it arrives."""

from __future__ import annotations

import msgspec


class Lease(msgspec.Struct, frozen=True):
    """What keeps the plan's objects; renewed by a POST to its URL."""

    id: str
    expires_at_ms: int
    url: str


class Store(msgspec.Struct, frozen=True):
    """Where objects are: of kind `fs` the folder `root`."""

    kind: str
    root: str = ""


class NamedStream(msgspec.Struct, frozen=True):
    number: int
    stream: str
    content_type: str


class GoneStream(msgspec.Struct, frozen=True):
    """Messages of a stream before `earliest`, or all of them, are gone."""

    number: int
    earliest: int | None = None


class PlanRow(msgspec.Struct, frozen=True):
    """A row to be taken as it is; `value` is base64."""

    bucket: str
    stream: str
    offset: int
    next_offset: int
    position: str
    content_type: str
    kind: str
    timestamp: str | None = None
    id: str | None = None
    value: bytes | None = None


class SegmentRange(msgspec.Struct, frozen=True, tag_field="kind", tag="segment"):
    """One block of one stream."""

    object: str
    at: int
    size: int
    stream: int
    first_offset: int
    next_offset: int
    after: int
    until: int
    messages: int
    bytes: int


class ArchiveRange(msgspec.Struct, frozen=True, tag_field="kind", tag="archive"):
    """One chunk of the bucket's archive."""

    object: str
    at: int
    size: int
    after: int
    until: int
    messages: int
    bytes: int


class HotRange(msgspec.Struct, frozen=True, tag_field="kind", tag="hot"):
    """What no object holds yet."""

    after: str
    until: str


Range = SegmentRange | ArchiveRange | HotRange


class Plan(msgspec.Struct, frozen=True):
    after: str
    until: str
    up_to_date: bool
    incarnation: str
    messages: int
    bytes: int
    lease: Lease
    store: Store
    streams: list[NamedStream]
    gone: list[GoneStream]
    rows: list[PlanRow]
    ranges: list[Range]
    prefix: str = ""

    @property
    def hot_bytes(self) -> int:
        """What the hot ranges hold together."""
        return max(0, self.bytes - sum(part.bytes for part in self.ranges if not isinstance(part, HotRange)))


class FeedEntry(msgspec.Struct, frozen=True):
    position: str
    stream: str
    kind: str
    first_offset: int
    next_offset: int


class FeedPage(msgspec.Struct, frozen=True):
    entries: list[FeedEntry]
    next_position: str
    up_to_date: bool


class ListedStream(msgspec.Struct, frozen=True):
    stream_id: str
    snapshot_offset: int | None = None


class Listing(msgspec.Struct, frozen=True):
    streams: list[ListedStream]
    has_more: bool
    next_cursor: str | None = None


class StagedPart(msgspec.Struct, frozen=True):
    messages: int = 0
    bytes: int = 0
    etag: str | None = None
    duplicate: bool = False


class Committed(msgspec.Struct, frozen=True):
    version: int
    duplicate: bool
    messages: int
    bytes: int
    streams: int
    created: int


class LastCommitted(msgspec.Struct, frozen=True):
    """The last transaction of an application; no version if there is none."""

    version: int | None = None
    messages: int = 0
    bytes: int = 0


def sequence_of(position: str) -> int:
    """The sequence in a position of a server with one shard."""
    return int(position.rpartition(".")[2])


def beginning_of(position: str) -> str:
    """The very beginning of the log that a position is of."""
    incarnation, *sequences = position.split(".")
    return ".".join([incarnation, *("0" for _ in sequences)])


def position_before(position: str) -> str:
    """The position just before a change, of a server with one shard."""
    return f"{position.rpartition('.')[0]}.{sequence_of(position) - 1}"
