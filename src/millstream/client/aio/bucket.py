"""One bucket, on asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Unpack

from .. import buckets
from ..buckets import BucketInfo, BucketSettings, Listing, StreamInfo
from ..operations import Target
from ..wire import stream_url_in
from .driver import AsyncDriver
from .stream import AsyncStream


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
