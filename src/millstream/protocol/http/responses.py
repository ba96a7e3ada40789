"""From receipts and cuts to the head of an HTTP response. Heads are bytes, built by formatting, not by layers: they are
made for every request."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from ...model.etags import range_etag, state_etag
from ...model.media import media_type
from ...model.records import StreamRecord
from ...model.replies import Outcome, Receipt
from . import headers as h
from .error_table import REASONS

# Bytes from a stream never get rights on the origin that serves them.
SANDBOX = b"Content-Security-Policy: sandbox\r\n"
NO_STORE = b"Cache-Control: no-store\r\n"
_ATTACHMENT = b"Content-Disposition: attachment\r\n"
_ACTIVE = ("html", "xml", "svg", "javascript", "ecmascript", "pdf", "xsl")
_CATCH_UP_S = 60
_REVALIDATE_S = 300
_CACHE_FORMAT = b"Cache-Control: public, max-age=%d, stale-while-revalidate=%d\r\nVary: Origin, Accept-Encoding\r\n"
_CACHE_LINES = _CACHE_FORMAT % (_CATCH_UP_S, _REVALIDATE_S)

OK_LINE = b"HTTP/1.1 200 OK\r\n"
_STATUS_LINES = {status: b"HTTP/1.1 %d %b\r\n" % (status, reason) for status, reason in REASONS.items()}
_WRITE_STATUS = {
    Outcome.CREATED: 201,
    Outcome.EXISTED: 200,
    Outcome.DUPLICATE: 204,
    Outcome.CLOSED: 204,
    Outcome.DELETED: 204,
}


def head(status: int, common: bytes, lines: bytes, length: int | None) -> bytes:
    """A whole response head; `common` are the lines every response of the connection has."""
    if length is None:
        return b"%b%b%b\r\n" % (_STATUS_LINES[status], common, lines)
    return b"%b%b%bContent-Length: %d\r\n\r\n" % (_STATUS_LINES[status], common, lines, length)


def options_lines(methods: bytes) -> bytes:
    """What a resource takes, for whoever asks and for browsers that ask before they let a page send."""
    return (
        b"Allow: %b\r\nAccess-Control-Allow-Methods: %b\r\nAccess-Control-Allow-Headers: %b\r\n"
        b"Access-Control-Max-Age: 600\r\n" % (methods, methods, h.ALLOWED_BY_CORS)
    )


def write_status(receipt: Receipt) -> int:
    """Plain appends answer 204; with producer headers 200 says "new", 204 "known already"."""
    if receipt.outcome is Outcome.APPENDED:
        return 204 if receipt.producer_epoch is None else 200
    return _WRITE_STATUS[receipt.outcome]


def appended_format(common: bytes, incarnation: int) -> bytes:
    """The whole answer to an append without any extras, which is the most frequent one by far. It is the same for a
    while, but for the stream's tail and number: what is to be filled in is (tail, number, tail, number)."""
    stream_id = b"%08x-%%x" % incarnation
    lines = b'Stream-Next-Offset: %%020d\r\nETag: "%b:%%d"\r\nStream-Id: %b\r\n' % (stream_id, stream_id)
    return head(204, common.replace(b"%", b"%%"), lines, None)


def write_lines(receipt: Receipt, stream_id: str) -> bytes:
    """What a successful PUT or POST says about the stream."""
    etag = state_etag(stream_id, receipt.tail, receipt.closed)
    lines = b"Stream-Next-Offset: %020d\r\nETag: %b\r\nStream-Id: %b\r\n" % (
        receipt.tail,
        etag.encode(),
        stream_id.encode(),
    )
    if receipt.closed:
        lines += b"Stream-Closed: true\r\n"
    if receipt.producer_epoch is not None and receipt.producer_seq is not None:
        lines += b"Producer-Epoch: %d\r\nProducer-Seq: %d\r\n" % (
            receipt.producer_epoch,
            receipt.producer_seq,
        )
    elif receipt.producer_epoch is not None:
        lines += b"Producer-Epoch: %d\r\n" % receipt.producer_epoch
    return lines


@lru_cache(maxsize=1024)
def content_lines(content_type: str) -> bytes:
    """The stored content type, exactly as given, and what keeps it harmless in a browser."""
    lines = b"Content-Type: %b\r\n%b" % (content_type.encode("latin-1"), SANDBOX)
    return lines + _ATTACHMENT if is_active(content_type) else lines


def is_active(content_type: str) -> bool:
    """Whether a browser might run it."""
    kind = media_type(content_type)
    return any(word in kind for word in _ACTIVE)


def metadata_lines(stream: StreamRecord, stream_id: str, seconds_left: int | None) -> bytes:
    """HEAD: the stream's state."""
    lines = content_lines(stream.content_type) + NO_STORE
    lines += b"Stream-Next-Offset: %020d\r\nETag: %b\r\nStream-Id: %b\r\n" % (
        stream.tail,
        state_etag(stream_id, stream.tail, stream.closed).encode(),
        stream_id.encode(),
    )
    if stream.earliest:
        lines += b"Stream-Earliest-Offset: %020d\r\n" % stream.earliest
    if stream.snapshot is not None:
        lines += b"Stream-Snapshot-Offset: %020d\r\n" % stream.snapshot.offset
    if stream.closed:
        lines += b"Stream-Closed: true\r\n"
    if stream.lease is not None and stream.lease.ttl_s is not None:
        lines += b"Stream-TTL: %d\r\n" % (seconds_left or 0)
    if stream.lease is not None and stream.lease.expires_at_ms is not None:
        lines += b"Stream-Expires-At: %b\r\n" % format_time(stream.lease.expires_at_ms).encode()
    return lines


def read_lines(stream: StreamRecord, stream_id: str, start: int, end: int) -> tuple[bytes, str]:
    """What a read says about the range it returns, and the range's ETag."""
    closed = stream.closed and end == stream.tail
    if closed:
        state = b"Stream-Up-To-Date: true\r\nStream-Closed: true\r\n"
    else:
        state = b"Stream-Up-To-Date: true\r\n" if end == stream.tail else b""
    lines = b"Stream-Next-Offset: %020d\r\nStream-Id: %b\r\n%b" % (end, stream_id.encode(), state)
    return lines, range_etag(stream_id, start, end, closed)


def cache_lines(seconds_left: int | None, private: bool = False) -> bytes:
    """For whom and how long a range may be kept: never past the stream's own end."""
    if private:
        return cache_lines(seconds_left).replace(b"public", b"private")
    if seconds_left is None:
        return _CACHE_LINES
    age = min(_CATCH_UP_S, seconds_left)
    revalidate = min(_REVALIDATE_S, max(0, seconds_left - age))
    return _CACHE_FORMAT % (age, revalidate)


def format_time(at_ms: int) -> str:
    """RFC 3339 with milliseconds, as JavaScript writes it."""
    try:
        moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        moment = datetime.max.replace(tzinfo=UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
