"""Everything the data source asks of a server, over the Python client."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar
from urllib.parse import quote, urljoin

import httpx
import msgspec
import pyarrow as pa

from ..client.config import Config
from ..client.errors import ClientError, Conflict, Gone, NotFound
from ..client.faults import error_of
from ..client.operations import succeed
from ..client.retry import Retry
from ..client.steps import Emit, Flow, call, next_chunk
from ..client.sync.driver import Driver
from ..client.wire import (
    CONTENT_TYPE,
    JSON,
    STREAM_NEXT_POSITION,
    STREAM_UP_TO_DATE,
    Answer,
    Request,
    bucket_url,
)
from .options import Selection, Server
from .plan import Committed, FeedPage, LastCommitted, Listing, Plan, StagedPart
from .schema import ARROW_SCHEMA

ARROW_STREAM = "application/vnd.apache.arrow.stream"
FENCED = "transaction_fenced"
_TIMEOUT_S = 120.0
_REASONS_SHOWN = 5
_T = TypeVar("_T")


class TransactionRefused(Conflict):
    """The server would not commit; `reasons` are the codes of what is in the way."""

    code = "transaction_refused"
    reasons: frozenset[str] = frozenset()


class _Reason(msgspec.Struct):
    code: str
    message: str = ""


class _Refusal(msgspec.Struct):
    reasons: list[_Reason] = []
    reason_count: int = 0


class _RefusalBody(msgspec.Struct):
    error: _Refusal


@dataclass(frozen=True, slots=True)
class Extent:
    """What to ask a plan or a bulk read for."""

    after: str
    until: str
    prefix: str = ""
    max_bytes: int | None = None
    max_messages: int | None = None

    def params(self) -> dict[str, str]:
        params = {"after": self.after, "until": self.until}
        if self.prefix:
            params["prefix"] = self.prefix
        if self.max_bytes is not None:
            params["max_bytes"] = str(self.max_bytes)
        if self.max_messages is not None:
            params["max_messages"] = str(self.max_messages)
        return params


class Asker(AbstractContextManager["Asker"]):
    """A connection to the server of one bucket. Not to be pickled: make one where it is used."""

    def __init__(self, server: Server, retry: Retry | None = None) -> None:
        headers = {"authorization": f"Bearer {server.token}"} if server.token else {}
        self._retry = retry or Retry()
        self._http = _plain_client() if server.url.startswith("http://") else None
        self._driver = Driver(Config(server.url, headers, {}, self._retry, _TIMEOUT_S), None, self._http)
        self._url = server.url
        self._bucket = bucket_url(server.url, server.bucket)
        self._streams = f"{self._bucket}/streams"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._driver.close()
        if self._http is not None:
            self._http.close()

    # -- reading -----------------------------------------------------------------------------------------

    def feed(self, after: str, prefix: str, *, limit: int, wait_ms: int = 0) -> FeedPage:
        """Changes behind a position; with `wait_ms`, the first that come within that time."""
        params = {"after": after, "limit": str(limit)}
        if prefix:
            params["prefix"] = prefix
        if wait_ms:
            params |= {"live": "long-poll", "timeout_ms": str(wait_ms)}
        answer = self._ask(Request("GET", f"{self._streams}/feed", params))
        if answer.status == 204:
            return FeedPage([], answer.header(STREAM_NEXT_POSITION) or after, answer.says(STREAM_UP_TO_DATE))
        return _decoded(answer, FeedPage)

    def plan(self, extent: Extent) -> Plan:
        return _decoded(self._ask(Request("GET", f"{self._streams}/plan", extent.params())), Plan)

    def renew(self, lease_url: str) -> bool:
        """Whether the lease still holds."""
        return self._is_there(Request("POST", urljoin(self._url, lease_url)))

    def release(self, lease_url: str) -> None:
        """Give a lease back; one that is over already is fine."""
        self._is_there(Request("DELETE", urljoin(self._url, lease_url)))

    def messages(self, extent: Extent) -> Iterator[pa.RecordBatch]:
        """A bulk read, as it arrives. Raises `ConnectionLost` where it breaks."""
        headers = {"accept": ARROW_STREAM}
        request = Request("GET", f"{self._streams}/messages", extent.params(), headers)
        chunks = self._driver.iterate(_body(request, self._retry))
        with pa.ipc.open_stream(io.BufferedReader(_Chunks(chunks), 1 << 16)) as reader:
            for batch in reader:
                yield pa.RecordBatch.from_arrays(
                    [batch.column(field.name).cast(field.type) for field in ARROW_SCHEMA], schema=ARROW_SCHEMA
                )

    def snapshot(self, stream: str, offset: int) -> tuple[str, bytes] | None:
        """Content type and bytes of a stream's snapshot; None if it is gone."""
        request = Request("GET", f"{self._bucket}/{quote(stream, safe='')}/snapshot/{offset:020d}")
        try:
            answer = self._ask(request)
        except (NotFound, Gone):
            return None
        return answer.content_type, answer.body

    def snapshot_offsets(self, selection: Selection) -> dict[str, int]:
        """Where the latest snapshots of the wanted streams are, for those that have one."""
        found: dict[str, int] = {}
        after = ""
        while True:
            params = {"prefix": selection.server_prefix, "after": after, "limit": "1000"}
            page = _decoded(self._ask(Request("GET", self._streams, params)), Listing)
            for listed in page.streams:
                if listed.snapshot_offset is not None and selection.takes(listed.stream_id):
                    found[listed.stream_id] = listed.snapshot_offset
            if not page.has_more or page.next_cursor is None:
                return found
            after = page.next_cursor

    def now(self) -> str:
        """The end of the server's log."""
        return self.feed("now", "", limit=1).next_position

    # -- writing -----------------------------------------------------------------------------------------

    def stage(self, app: str, version: int, part: str, body: bytes) -> StagedPart | None:
        """Stage a part; None if a later version is committed already, so that this one never will be."""
        url = f"{self._transaction(app, version)}/{quote(part, safe='')}"
        try:
            answer = self._ask(Request("PUT", url, headers={CONTENT_TYPE: ARROW_STREAM}, body=body))
        except Conflict as error:
            if error.code != FENCED:
                raise
            return None
        return _decoded(answer, StagedPart)

    def commit(self, app: str, version: int, order: Mapping[str, object]) -> Committed:
        """Commit; `order` is the request's body. It is safe to repeat, so lost answers are."""
        body = msgspec.json.encode(order)
        request = Request("POST", self._transaction(app, version), headers={CONTENT_TYPE: JSON}, body=body)
        answer = self._driver.run(call(request, self._retry))
        if answer.status == 409:
            raise _with_reasons(error_of(answer, request), answer.body)
        return _decoded(succeed(answer, request), Committed)

    def drop(self, app: str, version: int) -> None:
        """Drop what is staged for a version."""
        self._is_there(Request("DELETE", self._transaction(app, version)))

    def last_committed(self, app: str, *, missing_bucket_is_fine: bool = False) -> LastCommitted | None:
        """What an application has committed last; its version is None if it has not yet."""
        request = Request("GET", f"{self._streams}/transactions/{quote(app, safe='')}")
        try:
            return _decoded(self._ask(request), LastCommitted)
        except NotFound:
            if missing_bucket_is_fine:
                return None
            raise

    def forget(self, app: str) -> None:
        """Forget an application that will never write again."""
        self._is_there(Request("DELETE", f"{self._streams}/transactions/{quote(app, safe='')}"))

    # ----------------------------------------------------------------------------------------------------

    def _transaction(self, app: str, version: int) -> str:
        return f"{self._streams}/transactions/{quote(app, safe='')}/{version}"

    def _ask(self, request: Request) -> Answer:
        return succeed(self._driver.run(call(request, self._retry)), request)

    def _is_there(self, request: Request) -> bool:
        try:
            self._ask(request)
        except NotFound:
            return False
        return True


class _PlainTransport(httpx.HTTPTransport):
    """HTTP without TLS: loading certificates takes 50 ms, which every task would pay anew."""

    def __init__(self) -> None:
        super().__init__(verify=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.scheme != "http":
            raise httpx.UnsupportedProtocol(f"the server asks for {request.url}; set the option url to https")
        return super().handle_request(request)


def _plain_client() -> httpx.Client:
    return httpx.Client(transport=_PlainTransport(), timeout=_TIMEOUT_S, follow_redirects=False)


def _body(request: Request, retry: Retry) -> Flow[None]:
    succeed((yield from call(request, retry, stream=True)), request)
    while True:
        chunk = yield from next_chunk()
        if not chunk:
            return
        yield Emit(chunk)


class _Chunks(io.RawIOBase):
    """An iterator of bytes as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._left:
            self._left = memoryview(next(self._chunks, b""))
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size

    def close(self) -> None:
        closing = getattr(self._chunks, "close", None)
        if closing is not None:
            closing()
        super().close()


def _decoded(answer: Answer, kind: type[_T]) -> _T:
    return msgspec.json.decode(answer.body, type=kind)


def _with_reasons(error: ClientError, body: bytes) -> ClientError:
    """The error with all reasons in its message: they name the streams and parts that are in the way."""
    try:
        refusal = msgspec.json.decode(body, type=_RefusalBody).error
    except msgspec.DecodeError:
        return error
    if not refusal.reasons:
        return error
    shown = [reason.message or reason.code for reason in refusal.reasons[:_REASONS_SHOWN]]
    others = " ".join(text for text in shown if text not in error.message)
    more = refusal.reason_count - len(shown)
    tail = f" And {more} more." if more > 0 else ""
    refused = TransactionRefused(f"{error.message} {others}{tail}".rstrip(), code=error.code, status=error.status)
    refused.reasons = frozenset(reason.code for reason in refusal.reasons)
    return refused
