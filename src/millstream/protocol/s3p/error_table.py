"""How errors look over S3P: one table (section 9; the last two codes are ours).

After any of them the connection closes.
"""

from __future__ import annotations

from ...model import errors as e
from .escaping import shown

BAD_FORMAT = "ERR_BAD_FORMAT"
STREAM_EXISTS = "ERR_STREAM_EXISTS"
UNKNOWN_STREAM = "ERR_UNKNOWN_STREAM"
LIMITS = "ERR_LIMITS"
CLOSED = "ERR_CLOSED"
UNAVAILABLE = "ERR_UNAVAILABLE"

CODES: dict[type[e.MillstreamError], str] = {
    e.BadRequest: BAD_FORMAT,
    e.NotFound: UNKNOWN_STREAM,
    e.Conflict: BAD_FORMAT,
    e.StreamClosed: CLOSED,
    e.TooLarge: LIMITS,
    e.TooMany: LIMITS,
    e.Unavailable: UNAVAILABLE,
    e.OutcomeUnknown: UNAVAILABLE,
    e.StorageError: UNAVAILABLE,
    e.CorruptData: UNAVAILABLE,
}

# What is said over HTTP speaks of HTTP; here are S3P's words for the errors that the engine raises by code.
_MESSAGES = {
    "not_found": "there is no stream {name}; CREATE it first",
    "stream_exists": "there is a stream {name} already",
    "stream_closed": "the stream {name} is closed and takes no more records",
    "ids_are_the_clients": "the stream {name} has the TIMESTAMP_STRATEGY client; give a TIMESTAMP",
    "ids_are_the_servers": "the stream {name} has the TIMESTAMP_STRATEGY server; leave TIMESTAMP out",
}


def code_of(error: e.MillstreamError) -> str:
    if error.code == "stream_exists":
        return STREAM_EXISTS
    return CODES.get(type(error), UNAVAILABLE)


def message_of(error: e.MillstreamError, name: bytes) -> str:
    said = _MESSAGES.get(error.code)
    return error.message if said is None else said.format(name=shown(name))
