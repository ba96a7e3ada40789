"""Every header name of the protocol, spelled once. Request names are lower-case, as they are looked up."""

from __future__ import annotations

ACCEPT = b"accept"
ACCEPT_ENCODING = b"accept-encoding"
CONTENT_ENCODING = b"content-encoding"
CONTENT_LENGTH = b"content-length"
CONTENT_TYPE = b"content-type"
EXPECT = b"expect"
HOST = b"host"
IF_MATCH = b"if-match"
IF_NONE_MATCH = b"if-none-match"
LAST_EVENT_ID = b"last-event-id"
ORIGIN = b"origin"
PRODUCER_EPOCH = b"producer-epoch"
PRODUCER_ID = b"producer-id"
PRODUCER_SEQ = b"producer-seq"
STREAM_CLOSED = b"stream-closed"
STREAM_EXPIRES_AT = b"stream-expires-at"
STREAM_FORK_OFFSET = b"stream-fork-offset"
STREAM_FORK_SUB_OFFSET = b"stream-fork-sub-offset"
STREAM_FORKED_FROM = b"stream-forked-from"
STREAM_RECORD_MATCH = b"stream-record-match"
STREAM_SEQ = b"stream-seq"
STREAM_TTL = b"stream-ttl"
TRANSFER_ENCODING = b"transfer-encoding"
UPGRADE = b"upgrade"

# A second line of one of these would change what the request means; lists such as Accept may repeat.
SINGLE = frozenset(
    {
        CONTENT_TYPE,
        EXPECT,
        HOST,
        LAST_EVENT_ID,
        ORIGIN,
        PRODUCER_EPOCH,
        PRODUCER_ID,
        PRODUCER_SEQ,
        STREAM_CLOSED,
        STREAM_EXPIRES_AT,
        STREAM_FORK_OFFSET,
        STREAM_FORK_SUB_OFFSET,
        STREAM_FORKED_FROM,
        STREAM_RECORD_MATCH,
        STREAM_SEQ,
        STREAM_TTL,
    }
)

ALLOWED_BY_CORS = (
    b"authorization, content-type, if-match, if-none-match, last-event-id, producer-epoch, producer-id, producer-seq, "
    b"stream-closed, stream-expires-at, stream-fork-offset, stream-fork-sub-offset, stream-forked-from, "
    b"stream-record-match, stream-seq, stream-ttl"
)
EXPOSED_BY_CORS = (
    b"etag, location, producer-epoch, producer-expected-seq, producer-received-seq, producer-seq, retry-after, "
    b"stream-closed, stream-cursor, stream-earliest-offset, stream-earliest-position, stream-expires-at, stream-id, "
    b"stream-next-offset, stream-next-position, "
    b"stream-snapshot-offset, stream-sse-data-encoding, stream-ttl, stream-up-to-date, link"
)
