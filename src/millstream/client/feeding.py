"""The feed of a bucket: what happened in all its streams, in commit order. An extension; see docs/protocol.md."""

from __future__ import annotations

import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec

from ..model.media import media_type
from .buckets import decoded
from .errors import ClientError, ConnectionLost, ProtocolError
from .faults import error_of
from .following import LONG_POLL_S, NO_SSE, SHORT_CONNECTION_S, SSE_SILENCE_S, Following, Live, live_of
from .operations import Target, succeed
from .retry import RETRYABLE
from .sse import Event, SseDecoder
from .steps import Emit, Finish, Flow, call, next_chunk, send
from .wire import EVENT_STREAM, RETRY_AFTER, STREAM_NEXT_POSITION, STREAM_UP_TO_DATE, Answer, Request

EARLIEST = "earliest"


class FeedEntry(msgspec.Struct, frozen=True):
    """One change: ``created``, ``appended``, ``closed``, ``snapshot``, ``trimmed``, ``deleted``, ``expired`` or
    ``gap``. `position` is where to go on after it."""

    position: str
    stream: str
    kind: str
    first_offset: int
    next_offset: int
    timestamp_ms: int
    content_type: str | None = None
    encoding: str | None = None
    messages: list[Any] | None = None

    def values(self) -> list[Any]:
        """The messages: values of a JSON stream, bytes of any other. Only where the feed was asked for data."""
        if self.messages is None:
            return []
        if self.encoding == "base64":
            return [binascii.a2b_base64(message) for message in self.messages]
        return list(self.messages)


class _Page(msgspec.Struct):
    entries: list[FeedEntry]
    next_position: str
    up_to_date: bool = False


class _Control(msgspec.Struct, rename="camel"):
    next_position: str
    up_to_date: bool = False


_entries = msgspec.json.Decoder(list[FeedEntry])
_control = msgspec.json.Decoder(_Control)


@dataclass(frozen=True, slots=True)
class FeedPage:
    """Entries that came together, and the position behind them; of an empty one only that matters."""

    entries: list[FeedEntry]
    next_position: str
    up_to_date: bool


class FeedSettings(TypedDict, total=False):
    """How a feed is read; see `Bucket.feed`."""

    prefix: str
    data: bool
    live: Live
    limit: int | None
    idle_s: float | None
    long_poll_s: float


@dataclass(frozen=True, slots=True)
class FeedOptions:
    after: str = EARLIEST
    prefix: str = ""
    data: bool = False
    live: Live = False
    limit: int | None = None
    idle_s: float | None = None
    long_poll_s: float = LONG_POLL_S


class Feeding(Following):
    """One read of a feed; `run` emits `FeedPage`s, empty ones included. Live modes and reconnects are as on streams."""

    def __init__(self, target: Target, options: FeedOptions, now: Callable[[], float]) -> None:
        super().__init__(target, now, options.idle_s, options.long_poll_s)
        self._options = options
        self._after = options.after
        self._sse_works = live_of(options.live) != "long-poll"

    def run(self) -> Flow[None]:
        if self._options.live in (False, True):
            yield from self._catch_up()
            if not self._options.live:
                return
        self._last_news_s = self._now()
        while not self._is_idle():
            yield from self._sse() if self._sse_works else self._long_poll()

    def _catch_up(self) -> Flow[None]:
        while True:
            request = self._request({})
            answer = succeed((yield from call(request, self._target.retry)), request)
            found = decoded(answer, _Page)
            page = FeedPage(found.entries, found.next_position, found.up_to_date)
            self._advance(page)
            yield Emit(page)
            if page.up_to_date:
                return

    def _advance(self, page: FeedPage) -> None:
        self._after = page.next_position
        self._failures = 0
        if page.entries:
            self._last_news_s = self._now()

    def _request(self, more: dict[str, str], read_timeout_s: float | None = None) -> Request:
        options = self._options
        params = {"after": self._after, **more}
        if options.prefix:
            params["prefix"] = options.prefix
        if options.data:
            params["data"] = "true"
        if options.limit is not None:
            params["limit"] = str(options.limit)
        return Request("GET", f"{self._target.url}/streams/feed", params, read_timeout_s=read_timeout_s)

    def _long_poll(self) -> Flow[None]:
        request = self._request(*self._long_poll_params())
        try:
            answer = yield from send(request)
        except ConnectionLost as lost:
            yield from self._failed(lost)
            return
        if answer.status in RETRYABLE:
            yield from self._failed(error_of(answer, request), answer.header(RETRY_AFTER))
            return
        page = self._page(succeed(answer, request))
        self._advance(page)
        yield Emit(page)

    def _page(self, answer: Answer) -> FeedPage:
        if answer.status == 204:
            position = answer.header(STREAM_NEXT_POSITION) or self._after
            return FeedPage([], position, answer.says(STREAM_UP_TO_DATE))
        found = decoded(answer, _Page)
        return FeedPage(found.entries, found.next_position, found.up_to_date)

    def _sse(self) -> Flow[None]:
        request = self._request({"live": "sse"}, self._patience_s(SSE_SILENCE_S))
        try:
            answer = yield from send(request, stream=True)
        except ConnectionLost as lost:
            yield from self._failed(lost)
            return
        if answer.status in RETRYABLE:
            yield from self._failed(error_of(answer, request), answer.header(RETRY_AFTER))
        elif answer.status in NO_SSE or (answer.status == 200 and media_type(answer.content_type) != EVENT_STREAM):
            self._sse_works = False  # long-poll gives the true reason if it was another one
            yield Finish()
        else:
            succeed(answer, request)
            yield from self._events()

    def _events(self) -> Flow[None]:
        decoder = SseDecoder()
        entries: list[FeedEntry] = []
        started, pages = self._now(), 0
        fault: ClientError = ConnectionLost(f"The feed of {self._target.url} broke off.", url=self._target.url)
        while not self._is_idle():
            try:
                chunk = yield from next_chunk()
            except ConnectionLost as lost:
                fault = lost
                break
            if not chunk:
                break
            for event in decoder.feed(chunk):
                if event.kind == "data":
                    entries += _decoded(_entries, event)
                elif event.kind == "control":
                    control = _decoded(_control, event)
                    page = FeedPage(entries, control.next_position, control.up_to_date)
                    entries = []
                    pages += 1
                    self._advance(page)
                    yield Emit(page)
        yield Finish()
        if not (pages > 1 or self._now() - started >= SHORT_CONNECTION_S) and not self._is_idle():
            yield from self._failed(fault)


def _decoded(decoder: msgspec.json.Decoder[Any], event: Event) -> Any:
    try:
        return decoder.decode(event.data)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"The server sent an event that cannot be read: {error}.") from None
