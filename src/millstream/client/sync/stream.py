"""One stream, for threads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Unpack

from ...model.media import DEFAULT_CONTENT_TYPE
from ..operations import Target
from ..snapshotting import Snapshot
from ..streaming import AppendSettings, CreateSettings, ProducerSettings, ReadSettings, StreamFlows, producer_options
from ..values import BEGINNING, Appended, Bookmark, Created, Head, start_of
from .driver import Driver
from .producer import Producer
from .reader import Reader

_NO_HEADERS: Mapping[str, str] = {}


class Stream:
    """A handle on one stream; making one sends nothing. Safe to share between threads."""

    def __init__(self, driver: Driver, target: Target) -> None:
        self._driver = driver
        self._flows = StreamFlows(target)

    def __repr__(self) -> str:
        return f"Stream({self.url!r})"

    @property
    def url(self) -> str:
        return self._flows.target.url

    # --- life

    def create(self, content_type: str | None = None, **settings: Unpack[CreateSettings]) -> Created:
        """Create it, with first content (`body`) if given. Nothing changes if it exists with the same settings; with
        others it is `AlreadyExists`."""
        return self._driver.run(self._flows.create(content_type, settings))

    def head(self, *, headers: Mapping[str, str] = _NO_HEADERS) -> Head:
        """Its metadata: content type, tail, whether it is closed, lifetime."""
        return self._driver.run(self._flows.head(headers))

    def exists(self) -> bool:
        return self._driver.run(self._flows.exists())

    def content_type(self) -> str:
        """Asked for once, then remembered."""
        return self._driver.run(self._flows.content_type())

    def delete(self, *, headers: Mapping[str, str] = _NO_HEADERS) -> None:
        """Delete it and its data for good."""
        self._driver.run(self._flows.delete(headers))

    # --- writing

    def append(self, data: object, **settings: Unpack[AppendSettings]) -> Appended:
        """Append one message; returns when it is durable.

        Bytes go as they are. On a JSON stream any other value becomes JSON; elsewhere a str becomes UTF-8. When an
        answer is missing and the append may have arrived, `OutcomeUnknown` is raised, unless `at_least_once=True`
        says that twice is fine; `producer` gives exactly-once.
        """
        return self._driver.run(self._flows.append(data, settings))

    def append_many(self, messages: Iterable[object], **settings: Unpack[AppendSettings]) -> Appended:
        """Append several messages to a JSON stream in one request, all or nothing."""
        return self._driver.run(self._flows.append_many(messages, settings))

    def close(self, final: object = None, **settings: Unpack[AppendSettings]) -> Appended:
        """Close the stream for ever, with one last message if given. Closing a closed stream is fine."""
        return self._driver.run(self._flows.close(final, settings))

    def producer(
        self,
        producer_id: str | None = None,
        *,
        content_type: str | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        **settings: Unpack[ProducerSettings],
    ) -> Producer:
        """Exactly-once, pipelined, batched appends.

        Without a `producer_id` it gets one that nobody else has. With one, a successor takes over by a higher `epoch`
        or by `claim=True`, and the one before it gets `Fenced`.
        """
        options = producer_options(producer_id, **settings)
        return Producer(self._driver, self._driver.run(self._flows.producing(options, content_type, headers, Future)))

    # --- reading

    def read(self, start: str | Bookmark = BEGINNING, **settings: Unpack[ReadSettings]) -> Reader:
        """Read from `start` (an offset, a bookmark, ``-1`` or ``now``) up to the tail, or on and on with `live`.

        `live=True` catches up, then follows by SSE, or by long-poll where SSE does not work or would change line ends
        of text; ``"sse"`` and ``"long-poll"`` insist. A live read ends with the stream, or when nothing new came for
        `idle_s`. `timestamp` starts with the first message committed then or later. `stream_id`, or a bookmark that
        has one, makes sure that the stream still is the same. `bootstrap=True` goes over trimmed history by a
        snapshot: look at `batch.kind` then. `max_bytes` bounds each answer, 4 MiB if it is
        not given.
        """
        begin = start_of(start, settings.get("stream_id"))
        batches = self._driver.iterate(self._flows.read(begin, settings, time.monotonic))
        return Reader(batches, begin, bootstraps=settings.get("bootstrap", False))

    def tail(self, start: str | Bookmark = BEGINNING, **settings: Unpack[ReadSettings]) -> Reader:
        """`read` with `live=True`: everything from `start`, and then what comes."""
        settings.setdefault("live", True)
        return self.read(start, **settings)

    # --- snapshots, an extension of the protocol

    def bootstrap(self) -> Reader:
        """The latest snapshot, then each message after it, as batches; the last one has the offset to go on from."""
        return Reader(self._driver.iterate(self._flows.bootstrap()), Bookmark(BEGINNING), bootstraps=True)

    def publish_snapshot(
        self, offset: str, data: bytes, *, content_type: str = DEFAULT_CONTENT_TYPE, trim: bool = True
    ) -> None:
        """Publish what everything before `offset` adds up to. With `trim`, reads before it are over: they bootstrap."""
        self._driver.run(self._flows.publish_snapshot(offset, data, content_type, trim))

    def latest_snapshot(self) -> str | None:
        """The offset of the latest snapshot, if there is one."""
        return self._driver.run(self._flows.latest_snapshot())

    def read_snapshot(self, offset: str | None = None) -> Snapshot | None:
        """The snapshot at this offset, or the latest one; None if there is none."""
        return self._driver.run(self._flows.read_snapshot(offset))

    def delete_snapshot(self, offset: str) -> None:
        self._driver.run(self._flows.delete_snapshot(offset))
