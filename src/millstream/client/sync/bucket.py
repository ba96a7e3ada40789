"""One bucket, for threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

from .. import buckets
from ..buckets import BucketInfo, BucketSettings, Listing, StreamInfo
from ..operations import Target
from ..wire import stream_url_in
from .driver import Driver
from .stream import Stream


class Bucket:
    """A handle on one bucket; making one sends nothing. Buckets are an extension of the protocol."""

    def __init__(self, driver: Driver, target: Target) -> None:
        self._driver = driver
        self._target = target

    def __repr__(self) -> str:
        return f"Bucket({self.url!r})"

    @property
    def url(self) -> str:
        return self._target.url

    def stream(self, name: str) -> Stream:
        """A stream of this bucket."""
        return Stream(self._driver, Target(stream_url_in(self.url, name), self._target.retry))

    def create(self, **settings: Unpack[BucketSettings]) -> None:
        """Create it. `AlreadyExists` if it is there."""
        self._driver.run(buckets.create(self._target, settings))

    def get(self) -> BucketInfo:
        """How many streams it has, and its settings."""
        return self._driver.run(buckets.get(self._target))

    def change(self, **settings: Unpack[BucketSettings]) -> None:
        """Change settings; what is not named stays, None takes one back."""
        self._driver.run(buckets.change(self._target, settings))

    def delete(self) -> None:
        """Delete it. `Conflict` while it has streams."""
        self._driver.run(buckets.delete(self._target))

    def streams(self, prefix: str = "", *, after: str = "", limit: int | None = None) -> Iterator[StreamInfo]:
        """Its streams in the order of their names, fetched page by page."""
        return self._driver.iterate(buckets.list_streams(self._target, Listing(prefix, after, limit)))
