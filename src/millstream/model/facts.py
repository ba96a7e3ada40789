"""Every decided fact that goes into the journal, and nothing else.

Facts are outcomes, not requests: replay and followers apply them and never judge again. A fact's time and
sequence belong to the batch that carries it (`codec`). Fields are only ever added at the end, with a default:
that is what keeps old journals readable.
"""

from __future__ import annotations

import msgspec


class Producer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who appended, for exactly-once writes (protocol section 5.2.1)."""

    id: str
    epoch: int
    seq: int
    is_new: bool = False  # first contact with the stream: what the stream counts against its cap


class BucketSettings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a bucket says about its streams."""

    content_type: str | None = None  # of a stream that is created without one
    ttl_s: int | None = None  # of a stream that is created without TTL or expiry
    retention_s: int | None = None  # messages older than this may go
    retention_bytes: int | None = None  # what a stream holds beyond this may go, oldest first
    caching: str = "public"  # or "private": for whom reads may be cached


class Stored(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a payload lies that is not in the journal: in the object of a transaction."""

    object: int
    at: int
    crc: int


class BucketCreated(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    bucket: str
    implicit: bool = False
    settings: BucketSettings | None = None


class BucketDeleted(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    bucket: str


class StreamCreated(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """A new stream; its number is the sequence of this very fact."""

    key: str
    content_type: str
    ttl_s: int | None = None
    expires_at_ms: int | None = None
    sliding: bool = True  # reads and writes renew the TTL
    client_ids: bool = False  # appends bring their ids; the server gives none
    takes_type: bool = False  # nobody has said what it will hold: its first append does


class Appended(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """Messages, who sent them, and whether they were the last: one atomic fact.

    `offset` and the id of the first message are spelled out although they could be derived, so that a journal
    file can be read alone and both sides can check that they agree.
    """

    stream: int
    offset: int
    id_ms: int
    id_seq: int
    payload: bytes
    lengths: list[int] | None = None  # of each message; None: the payload is one message
    closes: bool = False
    producer: Producer | None = None
    stream_seq: str | None = None
    upload: int | None = None  # the payload lies in an earlier upload's parts; `lengths` is given then
    stored: Stored | None = None  # the payload lies in a transaction's object; `lengths` is given then


class Closed(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    stream: int
    producer: Producer | None = None
    is_repeated: bool = False  # it closed with a sequence that was used before, which changes nothing about it


class StreamDeleted(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    stream: int


class StreamExpired(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    stream: int


class Touched(msgspec.Struct, frozen=True, array_like=True, tag=8, gc=False):
    """A read renewed a sliding TTL."""

    stream: int


class PartStored(msgspec.Struct, frozen=True, array_like=True, tag=9, gc=False):
    """A piece of a large body; it becomes visible with the `Appended` that names the upload.

    An upload is named by the sequence of its first part, which itself says 0.
    """

    upload: int
    payload: bytes


class PartsDropped(msgspec.Struct, frozen=True, array_like=True, tag=10, gc=False):
    """An upload was refused or abandoned; its parts are garbage."""

    upload: int


class BucketChanged(msgspec.Struct, frozen=True, array_like=True, tag=11, gc=False):
    bucket: str
    settings: BucketSettings


class Trimmed(msgspec.Struct, frozen=True, array_like=True, tag=12, gc=False):
    """What lies before `offset` is no longer kept. A snapshot older than that goes with it."""

    stream: int
    offset: int


class SnapshotPublished(msgspec.Struct, frozen=True, array_like=True, tag=13, gc=False):
    """The state of a stream at an offset, as somebody folded it; it replaces the one before."""

    stream: int
    offset: int
    content_type: str
    size: int
    digest: bytes  # blake2b-128 of the bytes: who sends the same again changes nothing
    payload: bytes = b""  # of a small one
    object: str | None = None  # of a large one, which lies in the object store
    trims: bool = True  # what lies before `offset` is no longer kept


class TransactionCommitted(msgspec.Struct, frozen=True, array_like=True, tag=15, gc=False):
    """An application's transaction, with the facts before it in the same batch: they stand or fall together."""

    bucket: str
    app: str
    version: int
    messages: int = 0
    bytes: int = 0
    streams: int = 0
    created: int = 0  # of these streams
    object: int | None = None  # where the payloads lie; None for a transaction without messages


class TransactionsForgotten(msgspec.Struct, frozen=True, array_like=True, tag=16, gc=False):
    """An application's last version is not remembered any more."""

    bucket: str
    app: str


class ClockRead(msgspec.Struct, frozen=True, array_like=True, tag=17, gc=False):
    """The machine's clock was set: how leases' time lies to the wall clock, and to the time of the batch that this fact
    is the first of."""

    wall_ms: int
    lease_ms: int


class ContentTypeTaken(msgspec.Struct, frozen=True, array_like=True, tag=18, gc=False):
    """A stream that was created without a content type has that of its first append, which follows in the batch."""

    stream: int
    content_type: str


BucketFact = BucketCreated | BucketDeleted | BucketChanged | TransactionCommitted | TransactionsForgotten
StreamFact = (
    Appended | Closed | StreamDeleted | StreamExpired | Touched | Trimmed | SnapshotPublished | ContentTypeTaken
)
UploadFact = PartStored | PartsDropped
Fact = BucketFact | StreamCreated | StreamFact | UploadFact | ClockRead


def size_of(fact: Appended) -> int:
    """How many bytes the fact adds to its stream."""
    return len(fact.payload) if fact.upload is None and fact.stored is None else sum(fact.lengths or ())


def message_count(fact: Appended) -> int:
    return 1 if fact.lengths is None else len(fact.lengths)
