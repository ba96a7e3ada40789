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
from .aio.producer import AsyncProducer
from .aio.reader import AsyncReader
from .aio.stream import AsyncStream
from .buckets import BucketInfo, StreamInfo
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
    PreconditionFailed,
    ProtocolError,
    SequenceConflict,
    SequenceGap,
    StreamClosed,
    StreamRecreated,
    TooLarge,
    Trimmed,
    Unauthorized,
    Unavailable,
)
from .frames import FrameDecoder, encode_frame
from .producing import ProducerOptions
from .retry import Retry
from .snapshotting import Snapshot
from .sync.bucket import Bucket
from .sync.client import Client
from .sync.producer import Producer
from .sync.reader import Reader
from .sync.stream import Stream
from .values import BEGINNING, NOW, Appended, Batch, Bookmark, Created, Head

__all__ = [
    "BEGINNING",
    "NOW",
    "AlreadyExists",
    "Appended",
    "AsyncBucket",
    "AsyncClient",
    "AsyncProducer",
    "AsyncReader",
    "AsyncStream",
    "BadRequest",
    "Batch",
    "Bookmark",
    "Bucket",
    "BucketInfo",
    "Client",
    "ClientError",
    "Conflict",
    "ConnectionLost",
    "Created",
    "Fenced",
    "FrameDecoder",
    "Gone",
    "Head",
    "NotFound",
    "NotSupported",
    "OutcomeUnknown",
    "PreconditionFailed",
    "Producer",
    "ProducerOptions",
    "ProtocolError",
    "Reader",
    "Retry",
    "SequenceConflict",
    "SequenceGap",
    "Snapshot",
    "Stream",
    "StreamClosed",
    "StreamInfo",
    "StreamRecreated",
    "TooLarge",
    "Trimmed",
    "Unauthorized",
    "Unavailable",
    "encode_frame",
]
