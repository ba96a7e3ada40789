"""Reading and following one stream: catch-up, Server-Sent Events, long-poll, and the way from one to the next.

All rules of reading live here: where to go on, when to reconnect, when to give up on SSE, when a read is over.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..model.media import is_json, is_text, media_type
from . import bootstrapping
from .errors import ClientError, ConnectionLost, ProtocolError, Trimmed
from .faults import error_of
from .following import LONG_POLL_S, NO_SSE, SHORT_CONNECTION_S, SSE_SILENCE_S, Following, Live
from .operations import Target, head, next_offset, succeed
from .retry import RETRYABLE
from .sse import Event, SseDecoder
from .steps import Emit, Finish, Flow, Sleep, call, next_chunk, send
from .values import BEGINNING, Batch, decode_json
from .wire import (
    EVENT_STREAM,
    RETRY_AFTER,
    STREAM_CLOSED,
    STREAM_CURSOR,
    STREAM_ID,
    STREAM_SSE_DATA_ENCODING,
    STREAM_UP_TO_DATE,
    Answer,
    Request,
)

SHORT_CONNECTIONS_MAX = 3
PAGE_BYTES = 4 << 20  # asked for at once: an answer is held in memory, and would be all of the stream otherwise


@dataclass(frozen=True, slots=True)
class ReadOptions:
    offset: str = BEGINNING
    stream_id: str | None = None
    timestamp: str | None = None
    live: Live = False
    max_bytes: int | None = None
    idle_s: float | None = None
    bootstrap: bool = False
    content_type: str = ""  # if it is known
    long_poll_s: float = LONG_POLL_S
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)


class Reading(Following):
    """One read of one stream, from its first request to its end. `run` emits batches, empty ones included."""

    def __init__(self, target: Target, options: ReadOptions, now: Callable[[], float]) -> None:
        super().__init__(target, now, options.idle_s, options.long_poll_s)
        self._options = options
        self._offset = options.offset
        self._timestamp = options.timestamp
        self._stream_id = options.stream_id
        self._cursor: str | None = None
        self._content_type = options.content_type
        self._sse_works = True
        self._short_connections = 0

    def run(self) -> Flow[None]:
        live = self._options.live
        if live is False or live is True:
            closed = yield from self._catch_up()
            if closed or not live:
                return
        elif live == "sse" and not self._content_type:
            # Events do not say what they hold.
            self._content_type = (yield from head(self._target, self._options.headers)).content_type
        self._last_news_s = self._now()
        closed = False
        while not closed and not self._is_idle():
            closed = yield from self._sse() if self._wants_sse() else self._long_poll()

    # --- catch-up

    def _catch_up(self) -> Flow[bool]:
        """Read up to the tail. True when the stream ends there."""
        while True:
            request, before = self._request({}), self._offset
            answer = yield from call(request, self._target.retry)
            batch = yield from self._batch(answer, request)
            if batch is None:
                continue
            yield Emit(batch)
            # A server that does not say so is at its tail when it has nothing to give.
            if batch.closed or batch.up_to_date or (not batch and self._offset == before):
                return batch.closed

    def _batch(self, answer: Answer, request: Request) -> Flow[Batch | None]:
        """The batch of an answer, or None when a bootstrap took its place and the read goes on behind it."""
        try:
            succeed(answer, request)
        except Trimmed:
            if not self._options.bootstrap:
                raise
            yield from self._bootstrap()
            return None
        batch = Batch(
            data=answer.body,
            next_offset=next_offset(answer),
            content_type=answer.content_type or self._content_type,
            up_to_date=answer.says(STREAM_UP_TO_DATE),
            closed=answer.says(STREAM_CLOSED),
            stream_id=answer.header(STREAM_ID),
            cursor=answer.header(STREAM_CURSOR),
        )
        if batch.is_json and batch.data:
            decode_shallow(batch.data)
        self._advance(batch)
        return batch

    def _advance(self, batch: Batch) -> None:
        if batch:
            self._last_news_s = self._now()
        self._offset = batch.next_offset
        self._timestamp = None
        self._stream_id = batch.stream_id or self._stream_id
        self._cursor = batch.cursor or self._cursor
        self._content_type = batch.content_type

    def _bootstrap(self) -> Flow[None]:
        last = yield from bootstrapping.emit_batches(self._target)
        self._offset, self._timestamp, self._cursor = last, None, None

    def _request(self, more: Mapping[str, str], read_timeout_s: float | None = None) -> Request:
        options = self._options
        params: dict[str, str] = {**options.params, **more}
        if self._timestamp is not None:
            params["timestamp"] = self._timestamp
        else:
            params["offset"] = self._offset
        if self._stream_id is not None:
            params[STREAM_ID] = self._stream_id
        if more.get("live") != "sse":
            params.setdefault("max_bytes", str(PAGE_BYTES if options.max_bytes is None else options.max_bytes))
        if self._cursor is not None and more:
            params["cursor"] = self._cursor
        return Request("GET", self._target.url, params, options.headers, read_timeout_s=read_timeout_s)

    # --- live

    def _wants_sse(self) -> bool:
        live = self._options.live
        if live is True:
            # Line ends of text change on their way through SSE, so a reader that did not ask for it gets long-poll.
            exact = not is_text(self._content_type) or is_json(self._content_type)
            return self._sse_works and exact
        return live == "sse" and self._sse_works

    def _long_poll(self) -> Flow[bool]:
        """One long-poll. True when the stream has ended."""
        request = self._request(*self._long_poll_params())
        started = self._now()
        try:
            answer = yield from send(request)
        except ConnectionLost as lost:
            if not (lost.timed_out and self._is_idle()):
                yield from self._failed(lost)
            return False
        if answer.status in RETRYABLE:
            yield from self._failed(error_of(answer, request), answer.header(RETRY_AFTER))
            return False
        before = self._offset
        batch = yield from self._batch(answer, request)
        if batch is None:
            return False
        yield Emit(batch)
        if batch.closed:
            return True
        if batch or self._offset != before or self._now() - started > SHORT_CONNECTION_S / 4:
            self._failures = 0
        else:
            # A server that answers "nothing new" at once would be asked a thousand times a second.
            self._failures += 1
            yield Sleep(self._target.retry.wait_s(self._failures))
        return False

    def _sse(self) -> Flow[bool]:
        """One connection of Server-Sent Events. True when the stream has ended."""
        request = self._request({"live": "sse"}, self._patience_s(SSE_SILENCE_S))
        try:
            answer = yield from send(request, stream=True)
        except ConnectionLost as lost:
            yield from self._failed(lost)
            return False
        if answer.status == 200 and media_type(answer.content_type) == EVENT_STREAM:
            return (yield from self._events(answer))
        if answer.status in RETRYABLE:
            yield from self._failed(error_of(answer, request), answer.header(RETRY_AFTER))
            return False
        if answer.status == 200 or answer.status in NO_SSE:
            self._sse_works = False  # long-poll gives the true reason if it was another one
            yield Finish()
            return False
        yield from self._batch(answer, request)  # raises, or bootstraps
        return False

    def _events(self, answer: Answer) -> Flow[bool]:
        """Batches from the events of one connection, until it ends."""
        connection = _SseConnection(answer, self._content_type, self._stream_id)
        started = self._now()
        fault: ClientError | None = None
        while not self._is_idle():
            try:
                chunk = yield from next_chunk()
            except ConnectionLost as lost:
                fault = lost
                break
            if not chunk:
                break
            for batch in connection.feed(chunk):
                self._advance(batch)
                yield Emit(batch)
                if batch.closed:
                    yield Finish()
                    return True
        yield Finish()
        yield from self._reconnect(connection, self._now() - started, fault)
        return False

    def _reconnect(self, connection: _SseConnection, lasted_s: float, fault: ClientError | None) -> Flow[None]:
        """Servers end SSE about once a minute, and proxies as they like: at once again, unless nothing came of it."""
        if connection.batches_with_data or (connection.events and lasted_s >= SHORT_CONNECTION_S):
            self._failures = self._short_connections = 0
            return
        self._short_connections += 1
        if self._short_connections >= SHORT_CONNECTIONS_MAX or (lasted_s >= SSE_SILENCE_S and not connection.events):
            self._sse_works = False  # something between us and the server holds events back, or cuts them off
        if not self._is_idle():
            gone = ConnectionLost(f"The events of {self._target.url} broke off.", url=self._target.url)
            yield from self._failed(fault or gone)


class _SseConnection:
    """The events of one SSE answer, turned into batches: data and the control event that places it."""

    def __init__(self, answer: Answer, content_type: str, stream_id: str | None) -> None:
        self._decoder = SseDecoder()
        self._base64 = (answer.header(STREAM_SSE_DATA_ENCODING) or "").lower() == "base64"
        self._content_type = content_type
        self._stream_id = answer.header(STREAM_ID) or stream_id
        self._data: list[bytes] = []
        self.events = 0
        self.batches_with_data = 0

    def feed(self, chunk: bytes) -> list[Batch]:
        batches = []
        for event in self._decoder.feed(chunk):
            self.events += 1
            if event.kind == "data":
                self._data.append(self._payload(event))
            elif event.kind == "control":
                batches.append(self._placed(event))
        return batches

    def _payload(self, event: Event) -> bytes:
        if not self._base64:
            return event.data
        try:
            # Line breaks inside an event are the transport's, not the data's.
            return binascii.a2b_base64(event.data.replace(b"\n", b""), strict_mode=True)
        except binascii.Error as error:
            raise ProtocolError(f"The server sent an event that is not base64: {error}.") from None

    def _placed(self, event: Event) -> Batch:
        control = decode_json(event.data)
        offset = control.get("streamNextOffset") if isinstance(control, dict) else None
        if not isinstance(offset, str):
            raise ProtocolError("The server sent a control event without streamNextOffset.")
        data, self._data = self._data, []
        self.batches_with_data += bool(data)
        return Batch(
            data=self._joined(data),
            next_offset=offset,
            content_type=self._content_type,
            up_to_date=control.get("upToDate") is True,
            closed=control.get("streamClosed") is True,
            stream_id=self._stream_id,
            cursor=control.get("streamCursor"),
        )

    def _joined(self, data: list[bytes]) -> bytes:
        if len(data) < 2:
            return data[0] if data else b""
        if not is_json(self._content_type):
            return b"".join(data)
        arrays = [part.strip() for part in data]
        return b"[" + b",".join(array[1:-1] for array in arrays if array[1:-1].strip()) + b"]"


def decode_shallow(data: bytes) -> None:
    """A cheap look at whether a JSON answer is whole, before an offset is given out for it."""
    text = data.strip()
    if text[:1] != b"[" or text[-1:] != b"]":
        raise ProtocolError("The server sent JSON that is cut off or no array of messages.")
