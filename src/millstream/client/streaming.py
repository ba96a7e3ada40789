"""Everything that can be done with one stream, as flows: what `Stream` and `AsyncStream` run."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TypedDict, Unpack

from ..model.media import DEFAULT_CONTENT_TYPE, is_json
from . import bootstrapping, operations, snapshotting
from .following import LONG_POLL_S, Live, live_of
from .operations import Target
from .producing import ProducerOptions, Producing, Receipt
from .reading import Reading, ReadOptions
from .snapshotting import Snapshot
from .steps import Flow
from .values import (
    Appended,
    Bookmark,
    Created,
    Head,
    encode_message,
    encode_messages,
    message_encoder,
    moment_text,
)
from .wire import JSON


class CreateSettings(TypedDict, total=False):
    """How a stream is created."""

    body: object
    ttl_s: int | None
    expires_at: datetime | str | None
    closed: bool
    headers: Mapping[str, str]


class AppendSettings(TypedDict, total=False):
    """How an append is sent. It is sent again only where the first attempt cannot have arrived; `at_least_once` sends
    it again in any case."""

    content_type: str
    seq: str | None
    if_match: str | None
    at_least_once: bool
    headers: Mapping[str, str]


class ReadSettings(TypedDict, total=False):
    """How a stream is read; see `Stream.read`."""

    live: Live
    stream_id: str | None
    timestamp: datetime | str | int | None
    max_bytes: int | None
    bootstrap: bool
    idle_s: float | None
    long_poll_s: float
    headers: Mapping[str, str]
    params: Mapping[str, str]


class ProducerSettings(TypedDict, total=False):
    """How a producer works; see `ProducerOptions`."""

    epoch: int
    first_seq: int
    claim: bool
    resume: bool
    linger_s: float
    batch_bytes_max: int
    batch_messages_max: int
    in_flight_max: int
    buffer_bytes_max: int
    merge: bool


class StreamFlows:
    """Remembers the stream's content type, which every append has to name."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._content_type: str | None = None

    # --- life

    def create(self, content_type: str | None, settings: CreateSettings) -> Flow[Created]:
        body = settings.get("body")
        created = yield from operations.create(
            self.target,
            content_type=content_type,
            body=None if body is None else encode_message(body, content_type or DEFAULT_CONTENT_TYPE),
            ttl_s=settings.get("ttl_s"),
            expires_at=settings.get("expires_at"),
            closed=settings.get("closed", False),
            headers=settings.get("headers", {}),
        )
        self._content_type = created.content_type
        return created

    def head(self, headers: Mapping[str, str]) -> Flow[Head]:
        found = yield from operations.head(self.target, headers)
        self._content_type = found.content_type
        return found

    def exists(self) -> Flow[bool]:
        return operations.exists(self.target)

    def delete(self, headers: Mapping[str, str]) -> Flow[None]:
        self._content_type = None
        return operations.delete(self.target, headers)

    def content_type(self) -> Flow[str]:
        return self._content_type or (yield from self.head({})).content_type

    # --- writing

    def append(self, data: object, settings: AppendSettings, *, close: bool = False) -> Flow[Appended]:
        kind = settings.get("content_type") or (yield from self.content_type())
        return (yield from self._append(encode_message(data, kind), kind, settings, close))

    def append_many(self, messages: Iterable[object], settings: AppendSettings) -> Flow[Appended]:
        kind = settings.get("content_type") or JSON
        return self._append(encode_messages(messages), kind, settings, close=False)

    def close(self, final: object, settings: AppendSettings) -> Flow[Appended]:
        if final is None:
            return self._append(b"", "", settings, close=True)
        return self.append(final, settings, close=True)

    def _append(self, body: bytes, content_type: str, settings: AppendSettings, close: bool) -> Flow[Appended]:
        return operations.append(
            self.target,
            body,
            content_type,
            seq=settings.get("seq"),
            if_match=settings.get("if_match"),
            close=close,
            at_least_once=settings.get("at_least_once", False),
            headers=settings.get("headers", {}),
        )

    def producing(
        self,
        options: ProducerOptions,
        content_type: str | None,
        headers: Mapping[str, str],
        new_receipt: Callable[[], Receipt],
    ) -> Flow[Producing]:
        kind = content_type or (yield from self.content_type())
        return Producing(
            self.target.url,
            kind,
            options,
            self.target.retry,
            encode=message_encoder(kind),
            is_json=is_json(kind),
            new_receipt=new_receipt,
            headers=headers,
        )

    # --- reading

    def read(self, start: Bookmark, settings: ReadSettings, now: Callable[[], float]) -> Flow[None]:
        timestamp = settings.get("timestamp")
        options = ReadOptions(
            offset=start.offset,
            stream_id=start.stream_id,
            timestamp=None if timestamp is None else moment_text(timestamp),
            live=live_of(settings.get("live", False)),
            max_bytes=settings.get("max_bytes"),
            idle_s=settings.get("idle_s"),
            bootstrap=settings.get("bootstrap", False),
            content_type=self._content_type or "",
            long_poll_s=settings.get("long_poll_s", LONG_POLL_S),
            headers=settings.get("headers", {}),
            params=settings.get("params", {}),
        )
        return Reading(self.target, options, now).run()

    def bootstrap(self) -> Flow[str]:
        return bootstrapping.emit_batches(self.target)

    # --- snapshots

    def publish_snapshot(self, offset: str, data: bytes, content_type: str, trim: bool) -> Flow[None]:
        return snapshotting.publish(self.target, offset, data, content_type, trim)

    def latest_snapshot(self) -> Flow[str | None]:
        return snapshotting.latest(self.target)

    def read_snapshot(self, offset: str | None) -> Flow[Snapshot | None]:
        return snapshotting.read(self.target, offset)

    def delete_snapshot(self, offset: str) -> Flow[None]:
        return snapshotting.delete(self.target, offset)


def producer_options(producer_id: str | None, **settings: Unpack[ProducerSettings]) -> ProducerOptions:
    """Without an id it gets one that nobody else has."""
    return ProducerOptions(uuid.uuid4().hex if producer_id is None else producer_id, **settings)
