"""Every change that can be asked for, as plain values. `engine` decides about them.

Who has looked at a stream or bucket, and then had to wait before he asks, says by its number which one he saw: names
come back after a deletion, numbers do not.

A command carries a parse failure as a value (`fault`): whether it matters depends on the stream's state, and
the order of checks is the engine's business.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from .errors import BadRequest
from .facts import BucketSettings, Producer, Stored
from .ids import MessageId


class Body(msgspec.Struct, frozen=True, gc=False):
    """What to append: the messages' bytes in a row, or why they could not be had."""

    payload: bytes = b""
    lengths: list[int] | None = None  # of each message; None: the payload is one message
    fault: BadRequest | None = None
    upload: int | None = None  # the payload has been journaled as parts already, and is empty here


EMPTY_BODY = Body()


class Create(msgspec.Struct, frozen=True, gc=False):
    key: str
    content_type: str | None = None
    ttl_s: int | None = None
    expires_at_ms: int | None = None
    closed: bool = False
    body: Body = EMPTY_BODY
    producer: Producer | None = None
    stream_seq: str | None = None
    if_match: str | None = None
    needs_bucket: bool = False  # the bucketed surface: a missing bucket is not made on the way
    must_be_new: bool = False  # an existing stream is a conflict, whatever its configuration
    client_ids: bool = False  # every append names the id of its first message
    if_none_match: str | None = None
    stream_id: str | None = None  # only if the stream is this one


class Append(msgspec.Struct, frozen=True, gc=False):
    key: str
    content_type: str | None
    body: Body
    closes: bool = False
    producer: Producer | None = None
    stream_seq: str | None = None
    if_match: str | None = None
    first_id: MessageId | None = None  # given if, and only if, the stream takes its clients' ids
    if_none_match: str | None = None
    stream_id: str | None = None


class Delete(msgspec.Struct, frozen=True, gc=False):
    key: str
    if_match: str | None = None
    if_none_match: str | None = None
    stream_id: str | None = None


class Expire(msgspec.Struct, frozen=True, gc=False):
    """The sweeper's request: record that the stream's time is up, if it is."""

    key: str
    number: int


class Touch(msgspec.Struct, frozen=True, gc=False):
    """A read reached a stream with a sliding TTL."""

    key: str
    number: int


class Trim(msgspec.Struct, frozen=True, gc=False):
    """Stop keeping what lies before an offset, which must be a message's boundary."""

    key: str
    offset: int
    number: int | None = None  # only if the stream is still this one
    keeps_snapshot: bool = False  # retention: never past the latest snapshot


class PublishSnapshot(msgspec.Struct, frozen=True, gc=False):
    key: str
    offset: int
    content_type: str
    size: int
    digest: bytes
    payload: bytes = b""
    object: str | None = None
    trims: bool = True
    is_boundary: bool = True  # boundaries do not move: the reader has looked
    if_match: str | None = None  # of the snapshot at this very offset
    number: int | None = None  # of the stream that it was folded from

    def checked(self, number: int, is_boundary: bool) -> PublishSnapshot:
        return replace(self, number=number, is_boundary=is_boundary)


class CreateBucket(msgspec.Struct, frozen=True, gc=False):
    bucket: str
    settings: BucketSettings = BucketSettings()


class ChangeBucket(msgspec.Struct, frozen=True, gc=False):
    bucket: str
    settings: BucketSettings


class DeleteBucket(msgspec.Struct, frozen=True, gc=False):
    bucket: str
    number: int | None = None  # only if the bucket is still this one


class Slice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Messages of one stream that lie one after the other in a transaction's object."""

    stored: Stored
    lengths: list[int]


class Addition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a transaction adds to one stream."""

    stream: str  # its name inside the bucket
    slices: list[Slice]
    fault: str | None = None  # why a message is no JSON, which matters if the stream is


class CommitTransaction(msgspec.Struct, frozen=True, gc=False):
    bucket: str
    app: str
    version: int
    additions: list[Addition]
    messages: int = 0
    bytes: int = 0
    object: int | None = None
    create: bool = False
    content_type: str | None = None
    number: int | None = None  # of the bucket that its parts were staged in


class ForgetTransactions(msgspec.Struct, frozen=True, gc=False):
    bucket: str
    app: str


BucketCommand = CreateBucket | ChangeBucket | DeleteBucket
TransactionCommand = CommitTransaction | ForgetTransactions
Command = Create | Append | Delete | Expire | Touch | Trim | PublishSnapshot | BucketCommand | TransactionCommand
