"""Every public error. Coarse types, rich messages: each says what was wrong and what to do next.

    MillstreamError
     ├── Refused                  the request is at fault; nothing was changed
     │    ├── BadRequest            malformed: header, parameter, body, name
     │    ├── NotFound              no such stream
     │    ├── Gone                  it was here and is not any more: another incarnation, trimmed history
     │    │    └── PositionGone       a place in the log that the archive does not reach
     │    ├── Conflict              well-formed, but the stream's state says no
     │    │    ├── StreamClosed
     │    │    ├── SequenceGap
     │    │    └── TransactionRefused  with the reasons
     │    ├── Fenced                a newer epoch of this producer exists
     │    ├── NotAcceptable         none of the formats asked for can be had
     │    ├── PreconditionFailed    If-Match names another state
     │    ├── UnsupportedMedia      a body of a type or a coding that is not understood here
     │    ├── TooLarge              over a documented limit
     │    ├── TooMany               over a cap that only the operator can raise
     │    └── NotSupported          a part of the protocol that is not there yet
     ├── Unavailable              the server cannot do it now; retry later
     │    └── OutcomeUnknown        it may or may not have happened: read before you retry
     └── StorageError             what is on disk cannot be used; the operator must act
          ├── CorruptData
          ├── UnknownFormat
          └── DirectoryInUse

How they look on the wire is one table per protocol (`protocol/http/error_table.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class MillstreamError(Exception):
    """Base of all errors; `code` is stable and machine-readable, the message is for people."""

    code = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class Refused(MillstreamError):
    code = "refused"


class BadRequest(Refused):
    code = "bad_request"


class NotFound(Refused):
    code = "not_found"


class Gone(Refused):
    code = "gone"

    def __init__(
        self, message: str, *, code: str | None = None, earliest: int | None = None, key: str | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.earliest = earliest
        self.key = key  # of the stream whose history was trimmed


class PositionGone(Gone):
    code = "position_gone"

    def __init__(self, message: str, *, earliest_position: str) -> None:
        super().__init__(message)
        self.earliest_position = earliest_position  # the earliest that can be asked for


class Conflict(Refused):
    code = "conflict"


class StreamClosed(Conflict):
    code = "stream_closed"

    def __init__(self, message: str, *, tail: int) -> None:
        super().__init__(message)
        self.tail = tail


class SequenceGap(Conflict):
    code = "producer_sequence_gap"

    def __init__(self, message: str, *, expected: int, received: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.received = received


class Reason(NamedTuple):
    """Why a transaction cannot be committed: about a part, or about a stream."""

    code: str
    message: str
    part: str | None = None
    stream: str | None = None


class TransactionRefused(Conflict):
    code = "transaction_refused"

    def __init__(self, reasons: Sequence[Reason], count: int) -> None:
        super().__init__(f"Nothing was appended, for {count} reason{'s' * (count != 1)}: {reasons[0].message}")
        self.reasons = reasons
        self.count = count  # of all, the listed ones among them


class Fenced(Refused):
    code = "producer_fenced"

    def __init__(self, message: str, *, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch


class NotAcceptable(Refused):
    code = "not_acceptable"


class PreconditionFailed(Refused):
    code = "precondition_failed"


class UnsupportedMedia(Refused):
    code = "unsupported_media_type"


class TooLarge(Refused):
    code = "too_large"


class TooMany(Refused):
    code = "too_many"


class NotSupported(Refused):
    code = "not_supported"


class Unavailable(MillstreamError):
    code = "unavailable"


class OutcomeUnknown(Unavailable):
    code = "outcome_unknown"


class StorageError(MillstreamError):
    code = "storage"


class CorruptData(StorageError):
    code = "corrupt_data"

    def __init__(self, message: str, *, place: str = "") -> None:
        super().__init__(message)
        self.place = place or message  # what names the damage, whoever comes across it


class UnknownFormat(StorageError):
    code = "unknown_format"


class DirectoryInUse(StorageError):
    code = "directory_in_use"


def stream_recreated() -> Gone:
    return Gone(
        "The stream was deleted and created again: this is another one. Start from -1 without stream-id.",
        code="stream_recreated",
    )
