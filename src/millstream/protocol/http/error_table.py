"""How errors look over HTTP: one table. Bodies help people; clients tell cases apart by status and headers."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from ...model import errors as e
from ...model.names import split_key

STATUS: dict[type[e.MillstreamError], int] = {
    e.BadRequest: 400,
    e.Fenced: 403,
    e.NotFound: 404,
    e.NotAcceptable: 406,
    e.Conflict: 409,
    e.StreamClosed: 409,
    e.SequenceGap: 409,
    e.TransactionRefused: 409,
    e.Gone: 410,
    e.PositionGone: 410,
    e.PreconditionFailed: 412,
    e.TooLarge: 413,
    e.UnsupportedMedia: 415,
    e.TooMany: 429,
    e.NotSupported: 501,
    e.Unavailable: 503,
    e.OutcomeUnknown: 503,
    e.StorageError: 503,
    e.CorruptData: 503,
    e.UnknownFormat: 503,
    e.DirectoryInUse: 503,
}

REASONS: dict[int, bytes] = {
    100: b"Continue",
    200: b"OK",
    201: b"Created",
    204: b"No Content",
    304: b"Not Modified",
    307: b"Temporary Redirect",
    400: b"Bad Request",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    406: b"Not Acceptable",
    408: b"Request Timeout",
    409: b"Conflict",
    410: b"Gone",
    412: b"Precondition Failed",
    413: b"Content Too Large",
    415: b"Unsupported Media Type",
    417: b"Expectation Failed",
    421: b"Misdirected Request",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
}

_RETRY_AFTER = b"Retry-After: 1\r\n"


def status_of(error: e.MillstreamError) -> int:
    return STATUS.get(type(error), 500)


def error_body(code: str, message: str) -> bytes:
    return msgspec.json.encode({"error": {"code": code, "message": message}})


def error_lines(error: e.MillstreamError) -> bytes:
    """The headers by which clients tell cases apart."""
    if isinstance(error, e.StreamClosed):
        return b"Stream-Closed: true\r\nStream-Next-Offset: %020d\r\n" % error.tail
    if isinstance(error, e.SequenceGap):
        return b"Producer-Expected-Seq: %d\r\nProducer-Received-Seq: %d\r\n" % (
            error.expected,
            error.received,
        )
    if isinstance(error, e.Fenced):
        return b"Producer-Epoch: %d\r\n" % error.epoch
    if isinstance(error, e.PositionGone):
        return b"Stream-Earliest-Position: %b\r\n" % error.earliest_position.encode()
    if isinstance(error, e.Gone) and error.earliest is not None:
        lines = b"Stream-Earliest-Offset: %020d\r\nStream-Next-Offset: %020d\r\n" % (error.earliest, error.earliest)
        return lines if error.key is None else lines + _bootstrap_link(error.key)
    if error.code == "unsupported_encoding":
        return b"Accept-Encoding: identity\r\n"  # RFC 9110, section 15.5.16
    if isinstance(error, e.Unavailable | e.TooMany):
        return _RETRY_AFTER
    return b""


def _bootstrap_link(key: str) -> bytes:
    """Where a reader goes on whose history is no longer kept."""
    bucket, name = split_key(key)
    path = f"/ds/{quote(bucket, safe='')}/{quote(name, safe='')}/bootstrap"
    return b'Link: <%b>; rel="bootstrap"\r\n' % path.encode()
