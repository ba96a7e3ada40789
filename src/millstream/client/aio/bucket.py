"""One bucket, on asyncio."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Unpack

from .. import buckets, bulk, transacting
from ..buckets import BucketInfo, BucketSettings, Listing, StreamInfo
from ..bulk import Lease, Opened, Plan, Range
from ..feeding import EARLIEST, Feeding, FeedOptions, FeedSettings
from ..operations import Target
from ..transacting import Committed
from ..wire import stream_url_in
from .driver import AsyncDriver
from .feed import AsyncArrowReader, AsyncBulkReader, AsyncFeedReader
from .stream import AsyncStream
from .transaction import AsyncTransaction


class AsyncBucket:
    """A handle on one bucket; making one sends nothing. Buckets are an extension of the protocol."""

    def __init__(self, driver: AsyncDriver, target: Target) -> None:
        self._driver = driver
        self._target = target

    def __repr__(self) -> str:
        return f"AsyncBucket({self.url!r})"

    @property
    def url(self) -> str:
        return self._target.url

    def stream(self, name: str) -> AsyncStream:
        """A stream of this bucket."""
        return AsyncStream(self._driver, Target(stream_url_in(self.url, name), self._target.retry))

    async def create(self, **settings: Unpack[BucketSettings]) -> None:
        """Create it. `AlreadyExists` if it is there."""
        await self._driver.run(buckets.create(self._target, settings))

    async def get(self) -> BucketInfo:
        """How many streams it has, and its settings."""
        return await self._driver.run(buckets.get(self._target))

    async def change(self, **settings: Unpack[BucketSettings]) -> None:
        """Change settings; what is not named stays, None takes one back."""
        await self._driver.run(buckets.change(self._target, settings))

    async def delete(self) -> None:
        """Delete it. `Conflict` while it has streams."""
        await self._driver.run(buckets.delete(self._target))

    def streams(self, prefix: str = "", *, after: str = "", limit: int | None = None) -> AsyncIterator[StreamInfo]:
        """Its streams in the order of their names, fetched page by page."""
        return self._driver.iterate(buckets.list_streams(self._target, Listing(prefix, after, limit)))

    # --- all streams at once

    def feed(self, after: str = EARLIEST, **settings: Unpack[FeedSettings]) -> AsyncFeedReader:
        """What happens in the bucket, in commit order, from the position `after` on (or ``earliest``, ``now``, a time).

        With `data=True` entries carry their messages. `live` is as for streams; `PositionGone` says that the feed does
        not reach back that far.
        """
        flow = Feeding(self._target, FeedOptions(after, **settings), time.monotonic).run()
        return AsyncFeedReader(self._driver.iterate(flow), after)

    def messages(self, after: str | None = None, until: str | None = None, *, prefix: str = "") -> AsyncBulkReader:
        """Every message committed behind `after` and not behind `until`, as rows: a consistent cut of the bucket."""
        opened = Opened()
        flow = bulk.chunks(self._target, Range(after, until, prefix), bulk.NDJSON, opened)
        return AsyncBulkReader(self._driver.iterate(flow), opened)

    def record_batches(
        self, after: str | None = None, until: str | None = None, *, prefix: str = ""
    ) -> AsyncArrowReader:
        """The same as Arrow record batches; needs pyarrow here and on the server."""
        bulk.import_pyarrow()
        opened = Opened()
        flow = bulk.chunks(self._target, Range(after, until, prefix), bulk.ARROW, opened)
        return AsyncArrowReader(self._driver.iterate(flow), opened)

    async def plan(
        self,
        after: str | None = None,
        until: str | None = None,
        *,
        prefix: str = "",
        max_bytes: int | None = None,
        max_messages: int | None = None,
    ) -> Plan:
        """Where these messages lie in the object store, and a lease that keeps them there."""
        return await self._driver.run(bulk.plan(self._target, Range(after, until, prefix), max_bytes, max_messages))

    async def renew_lease(self, lease: Lease) -> Lease:
        return await self._driver.run(bulk.renew(self._target, lease))

    async def give_back_lease(self, lease: Lease) -> None:
        await self._driver.run(bulk.give_back(self._target, lease))

    # --- transactions

    def transaction(self, app: str, version: int) -> AsyncTransaction:
        """A handle on one version of an application's transactions; making one sends nothing."""
        return AsyncTransaction(self._driver, self._target, app, version)

    async def last_transaction(self, app: str) -> Committed:
        """The last committed version of an application; its `version` is None if there is none."""
        return await self._driver.run(transacting.last(self._target, app))

    async def forget_transactions(self, app: str) -> None:
        """Forget the application: its staged parts and its last version."""
        await self._driver.run(transacting.drop(self._target, app, None))
