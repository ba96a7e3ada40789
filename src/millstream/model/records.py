"""What one stream and one bucket are remembered by, in memory and in the catalog alike.

`engine.applying` is the only code that changes a record, and only as a fact says.
"""

from __future__ import annotations

import msgspec

from .facts import BucketSettings, Producer

DEFAULT_BUCKET_SETTINGS = BucketSettings()


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How long a stream lives: a sliding window, or a fixed end."""

    ttl_s: int | None
    expires_at_ms: int | None  # by the wall clock
    renewed_ms: int  # in leases' time, see `model.timeline`
    sliding: bool = True

    def deadline_ms(self) -> int:
        if self.expires_at_ms is not None:
            return self.expires_at_ms
        assert self.ttl_s is not None
        return self.renewed_ms + self.ttl_s * 1000

    def promised_ms(self) -> int:
        """When somebody may have been told last that it was renewed, for who knows only what was journaled: after a
        reload the deadline may be later, never earlier than what readers were promised."""
        return self.renewed_ms + self.thinning_ms() if self.sliding and self.ttl_s is not None else 0

    def thinning_ms(self) -> int:
        """Reads renew in memory; at most one renewal per this time goes into the journal."""
        return max(1000, (self.ttl_s or 0) * 100)


class Writers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the next writer must respect."""

    stream_seq: str | None = None
    closed_by: Producer | None = None
    producer_count: int = 0


class Snapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The latest snapshot of a stream. Its bytes are a block among the segments, or an object of their own."""

    offset: int
    content_type: str
    size: int
    digest: bytes
    object: str | None = None


class StreamRecord(msgspec.Struct, array_like=True, gc=False):
    """One stream. Rare things are grouped behind an optional field: there may be a million of these."""

    number: int
    key: str
    content_type: str
    created_ms: int
    written_ms: int
    tail: int = 0
    earliest: int = 0
    id_ms: int = 0
    id_seq: int = 0
    closed: bool = False
    deleted: bool = False
    lease: Lease | None = None
    writers: Writers | None = None
    snapshot: Snapshot | None = None
    client_ids: bool = False
    takes_type: bool = False  # it was created without a content type

    def awaits_type(self) -> bool:
        """Whether the next append will say what the stream holds."""
        return self.takes_type and self.tail == 0


class Application(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last transaction an application has committed."""

    version: int
    messages: int
    bytes: int
    streams: int
    created: int
    at_ms: int


class BucketRecord(msgspec.Struct, array_like=True, gc=False):
    name: str
    created_ms: int
    implicit: bool = False
    deleted: bool = False
    streams: int = 0
    settings: BucketSettings = DEFAULT_BUCKET_SETTINGS
    apps: dict[str, Application] | None = None  # who writes transactions; never changed, only replaced
    number: int = 0  # the sequence of its creation: a later one of the same name has another


class Extent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which block holds which offsets of a stream. Extents do not belong to the stream that wrote them:
    several streams may come to share a block, and garbage is what no extent reaches.

    The small snapshot of stream n is the one block of the stream -n, which nobody else can name: checkpoints, merges
    and garbage treat it like any other."""

    stream: int
    first_offset: int
    next_offset: int
    segment: int
    at: int  # where in the segment the block starts
    size: int
    messages: int
    last_sequence: int
    last_ms: int
    last_id_ms: int = 0
    last_id_seq: int = 0
