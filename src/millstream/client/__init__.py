"""The Python client of Durable Streams: `Client` for threads, `AsyncClient` for asyncio. See docs/client.md.

with Client("http://127.0.0.1:4437") as client:
    stream = client.stream("chat/room-1")
    stream.create("application/json")
    stream.append({"text": "hello"})
    for message in stream.read().json():
        print(message)
"""

from __future__ import annotations

from .aio.bucket import AsyncBucket
from .aio.client import AsyncClient
from .aio.feed import AsyncArrowReader, AsyncBulkReader, AsyncFeedReader
from .aio.producer import AsyncProducer
from .aio.reader import AsyncReader
from .aio.stream import AsyncStream
from .aio.transaction import AsyncTransaction
from .buckets import BucketInfo, StreamInfo
from .bulk import Lease, Plan, PlannedRange, PlannedStream, Row
from .errors import (
    AlreadyExists,
    BadRequest,
    ClientError,
    Conflict,
    ConnectionLost,
    Fenced,
    Gone,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    PositionGone,
    PreconditionFailed,
    ProtocolError,
    SequenceConflict,
    SequenceGap,
    StreamClosed,
    StreamRecreated,
    TooLarge,
    TransactionRefused,
    Trimmed,
    Unauthorized,
    Unavailable,
)
from .feeding import EARLIEST, FeedEntry, FeedPage
from .frames import FrameDecoder, encode_frame
from .producing import ProducerOptions
from .retry import Retry
from .snapshotting import Snapshot
from .sync.bucket import Bucket
from .sync.client import Client
from .sync.feed import ArrowReader, BulkReader, FeedReader
from .sync.producer import Producer
from .sync.reader import Reader
from .sync.stream import Stream
from .sync.transaction import Transaction
from .transacting import Committed, Staged, StagedPart, TransactionState
from .values import BEGINNING, NOW, Appended, Batch, Bookmark, Created, Head

__all__ = [
    "BEGINNING",
    "EARLIEST",
    "NOW",
    "AlreadyExists",
    "Appended",
    "ArrowReader",
    "AsyncArrowReader",
    "AsyncBucket",
    "AsyncBulkReader",
    "AsyncClient",
    "AsyncFeedReader",
    "AsyncProducer",
    "AsyncReader",
    "AsyncStream",
    "AsyncTransaction",
    "BadRequest",
    "Batch",
    "Bookmark",
    "Bucket",
    "BucketInfo",
    "BulkReader",
    "Client",
    "ClientError",
    "Committed",
    "Conflict",
    "ConnectionLost",
    "Created",
    "FeedEntry",
    "FeedPage",
    "FeedReader",
    "Fenced",
    "FrameDecoder",
    "Gone",
    "Head",
    "Lease",
    "NotFound",
    "NotSupported",
    "OutcomeUnknown",
    "Plan",
    "PlannedRange",
    "PlannedStream",
    "PositionGone",
    "PreconditionFailed",
    "Producer",
    "ProducerOptions",
    "ProtocolError",
    "Reader",
    "Retry",
    "Row",
    "SequenceConflict",
    "SequenceGap",
    "Snapshot",
    "Staged",
    "StagedPart",
    "Stream",
    "StreamClosed",
    "StreamInfo",
    "StreamRecreated",
    "TooLarge",
    "Transaction",
    "TransactionRefused",
    "TransactionState",
    "Trimmed",
    "Unauthorized",
    "Unavailable",
    "encode_frame",
]
