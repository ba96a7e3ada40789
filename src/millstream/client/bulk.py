"""Bulk reads of a bucket: every message of a range of positions, as rows or as Arrow; and plans of where they lie.

An extension; see docs/protocol.md.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import msgspec

from .buckets import decoded
from .errors import NotSupported, ProtocolError
from .operations import Target, succeed
from .steps import Emit, Finish, Flow, call, next_chunk
from .wire import STREAM_NEXT_POSITION, Request

if TYPE_CHECKING:
    import pyarrow

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
# Bulk answers are made while they are sent; a merge may hold one up.
READ_TIMEOUT_S = 120.0
LINE_BYTES_MAX = 256 * 1024 * 1024


class Row(msgspec.Struct, frozen=True):
    """One message of a bulk read; of kind ``snapshot`` or ``gap`` it may have no value."""

    bucket: str
    stream: str
    offset: int
    next_offset: int
    position: str
    timestamp: str
    kind: str
    content_type: str | None = None
    id: str | None = None
    value: str | None = None

    def data(self) -> bytes | None:
        """The message's bytes."""
        return None if self.value is None else binascii.a2b_base64(self.value)


class Lease(msgspec.Struct, frozen=True):
    """Keeps the objects of a plan until it ends."""

    id: str
    expires_at_ms: int
    url: str


class PlannedStream(msgspec.Struct, frozen=True):
    number: int
    stream: str
    content_type: str
    earliest: int


class PlannedRange(msgspec.Struct, frozen=True):
    """Where rows lie: a ``segment`` block, an ``archive`` chunk, or ``hot``: ask for those with `messages`."""

    kind: str
    after: int | str
    until: int | str
    object: str | None = None
    at: int | None = None
    size: int | None = None
    stream: int | None = None
    first_offset: int | None = None
    next_offset: int | None = None
    messages: int | None = None
    bytes: int | None = None


class Plan(msgspec.Struct, frozen=True):
    """Where the rows of a bulk read lie, for readers that go to the object store themselves."""

    bucket_id: str
    prefix: str
    after: str
    until: str
    up_to_date: bool
    incarnation: str
    messages: int
    bytes: int
    lease: Lease
    store: dict[str, Any]
    streams: list[PlannedStream]
    rows: list[dict[str, Any]]
    ranges: list[PlannedRange]


@dataclass(frozen=True, slots=True)
class Range:
    """`after` and `until` are positions or times; see docs/protocol.md."""

    after: str | None = None
    until: str | None = None
    prefix: str = ""

    def params(self) -> dict[str, str]:
        values = {"after": self.after, "until": self.until, "prefix": self.prefix or None}
        return {name: value for name, value in values.items() if value is not None}


class Opened:
    """Set by a bulk read once its answer has begun: the `after` of the next one."""

    next_position: str | None = None


def chunks(target: Target, wanted: Range, accept: str, opened: Opened) -> Flow[None]:
    """Emits the answer's bytes as they come; a connection that breaks makes it an incomplete read, and an error."""
    request = Request(
        "GET",
        f"{target.url}/streams/messages",
        wanted.params(),
        {"accept": accept},
        read_timeout_s=READ_TIMEOUT_S,
    )
    answer = yield from call(request, target.retry, stream=True)
    if answer.status == 406:
        raise NotSupported("The server cannot send Arrow: it lacks pyarrow. Use `messages` instead.", url=request.url)
    succeed(answer, request)
    opened.next_position = answer.header(STREAM_NEXT_POSITION)
    if opened.next_position is None:
        yield Finish()
        raise NotSupported(f"{request.url}: the server has no bulk reads.", url=request.url)
    while chunk := (yield from next_chunk()):
        yield Emit(chunk)
    yield Finish()


class RowDecoder:
    """Rows from NDJSON that comes in pieces."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> list[Row]:
        whole, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._pending.append(chunk)
            self._held += len(chunk)
            if self._held > LINE_BYTES_MAX:
                raise ProtocolError(f"A row of the server is longer than {LINE_BYTES_MAX} bytes.")
            return []
        lines = b"".join((*self._pending, whole))
        self._pending, self._held = [rest], len(rest)
        return _rows(lines)

    def finish(self) -> None:
        if any(self._pending):
            raise ProtocolError("The bulk read ends in the middle of a row.")


_row = msgspec.json.Decoder(Row)


def _rows(lines: bytes) -> list[Row]:
    try:
        return _row.decode_lines(lines)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"The server sent a row that cannot be read: {error}.") from None


def plan(target: Target, wanted: Range, max_bytes: int | None, max_messages: int | None) -> Flow[Plan]:
    params = wanted.params()
    if max_bytes is not None:
        params["max_bytes"] = str(max_bytes)
    if max_messages is not None:
        params["max_messages"] = str(max_messages)
    request = Request("GET", f"{target.url}/streams/plan", params, read_timeout_s=READ_TIMEOUT_S)
    return decoded(succeed((yield from call(request, target.retry)), request), Plan)


def renew(target: Target, lease: Lease) -> Flow[Lease]:
    request = Request("POST", urljoin(target.url, lease.url))
    return decoded(succeed((yield from call(request, target.retry)), request), Lease)


def give_back(target: Target, lease: Lease) -> Flow[None]:
    request = Request("DELETE", urljoin(target.url, lease.url))
    answer = yield from call(request, target.retry)
    if answer.status != 404:  # ended by itself
        succeed(answer, request)


# --- Arrow


def import_pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise NotSupported("Reading Arrow needs pyarrow: pip install 'millstream[arrow]'.") from None
    return pyarrow


class ChunkFile(RawIOBase):
    """Chunks as a file that can be read once, from front to back: what pyarrow reads a stream from."""

    def __init__(self, next_chunk: Callable[[], bytes]) -> None:
        self._next = next_chunk
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(self._next())
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def record_batches(next_chunk: Callable[[], bytes]) -> Iterator[pyarrow.RecordBatch]:
    """Record batches of an Arrow stream that comes in chunks."""
    arrow = import_pyarrow()
    # Buffered, as pyarrow takes a short read for the end.
    with arrow.ipc.open_stream(BufferedReader(ChunkFile(next_chunk), 1 << 20)) as reader:
        yield from reader
