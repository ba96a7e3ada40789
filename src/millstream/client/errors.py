"""Every error the client raises. Catch `ClientError` for all of them; each message says what to do next.

MillstreamError
 └── ClientError                `status`, `code`, `url` where an answer or a request is behind it
      ├── ConnectionLost          no answer: refused, reset, timed out. Retried already
      ├── Unavailable             the server kept saying "later" (429, 5xx). Retried already
      ├── OutcomeUnknown          a write may or may not have happened: read before you send it again
      ├── ProtocolError           the answer cannot be understood
      ├── NotSupported            this server lacks the extension that was asked for
      ├── BadRequest              400 and its relatives: the request is at fault
      │    └── TooLarge             413
      ├── Unauthorized            401, 403: credentials are missing, stale or not enough
      ├── NotFound                404
      ├── Gone                    410: it was here and is not any more
      │    ├── Trimmed              history before `earliest` is gone: bootstrap
      │    ├── PositionGone         a feed does not reach back that far: begin at `earliest`
      │    └── StreamRecreated      the URL holds another stream now
      ├── Conflict                409: the stream's state says no
      │    ├── AlreadyExists
      │    ├── StreamClosed         `offset` is the final one
      │    ├── SequenceConflict     `Stream-Seq` does not grow
      │    ├── SequenceGap          a producer's `expected` and `received` sequences differ
      │    └── TransactionRefused   `reasons` says why; a later version may be committed already
      ├── Fenced                  a newer epoch of this producer exists, or its name is used by another
      └── PreconditionFailed      412: `if_match` names another state
"""

from __future__ import annotations

from typing import Any

from ..model.errors import MillstreamError


class ClientError(MillstreamError):
    """Base of all errors of the client."""

    code = "client"

    def __init__(
        self, message: str, *, code: str | None = None, status: int | None = None, url: str | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.url = url


class ConnectionLost(ClientError):
    """No answer came. `sent` is False when the server cannot have seen the request."""

    code = "connection_lost"

    def __init__(self, message: str, *, url: str | None = None, sent: bool = True, timed_out: bool = False) -> None:
        super().__init__(message, url=url)
        self.sent = sent
        self.timed_out = timed_out


class Unavailable(ClientError):
    code = "unavailable"


class OutcomeUnknown(ClientError):
    code = "outcome_unknown"


class ProtocolError(ClientError):
    code = "protocol_error"


class NotSupported(ClientError):
    code = "not_supported"


class BadRequest(ClientError):
    code = "bad_request"


class TooLarge(BadRequest):
    code = "too_large"


class Unauthorized(ClientError):
    code = "unauthorized"


class NotFound(ClientError):
    code = "not_found"


class Gone(ClientError):
    code = "gone"


class Trimmed(Gone):
    code = "offset_trimmed"
    earliest: str | None = None


class PositionGone(Gone):
    code = "position_gone"
    earliest: str | None = None


class StreamRecreated(Gone):
    code = "stream_recreated"


class Conflict(ClientError):
    code = "conflict"


class AlreadyExists(Conflict):
    code = "already_exists"


class StreamClosed(Conflict):
    code = "stream_closed"
    offset: str | None = None


class SequenceConflict(Conflict):
    code = "stream_seq_regression"


class SequenceGap(Conflict):
    code = "producer_sequence_gap"
    expected: int | None = None
    received: int | None = None


class TransactionRefused(Conflict):
    """Nothing was changed. `code` is ``transaction_fenced`` when a later version is committed."""

    code = "transaction_refused"

    def __init__(
        self, message: str, *, code: str | None = None, status: int | None = None, url: str | None = None
    ) -> None:
        super().__init__(message, code=code, status=status, url=url)
        self.reasons: list[dict[str, Any]] = []


class Fenced(ClientError):
    """`epoch` is the one the server holds, where it said so."""

    code = "producer_fenced"
    epoch: int | None = None


class PreconditionFailed(ClientError):
    code = "precondition_failed"
