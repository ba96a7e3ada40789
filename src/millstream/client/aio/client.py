"""The client for asyncio."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import httpx

from ..config import AsyncCredentials, Config, Dynamic
from ..operations import Target
from ..retry import Retry
from ..wire import bucket_url, check_base_url, stream_url
from .bucket import AsyncBucket
from .driver import AsyncDriver
from .stream import AsyncStream


class AsyncClient(AbstractAsyncContextManager["AsyncClient"]):
    """A connection to one server; its streams and buckets are handles on it.

    `headers` and `params` go with every request; a value may be a function, called anew each time. `credentials` is a
    function, plain or async, that returns headers such as ``{"Authorization": "Bearer ..."}``; it is asked once, and
    again when the server refuses what it gave (401). `compress` asks for compressed answers: by default unless the
    server is on this machine. `http` is an `httpx.AsyncClient` of your own, for TLS settings or proxies; it stays
    yours to close.
    """

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, Dynamic] | None = None,
        params: Mapping[str, Dynamic] | None = None,
        credentials: AsyncCredentials | None = None,
        retry: Retry | None = None,
        timeout_s: float = 30.0,
        compress: bool | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        config = Config(check_base_url(base_url), headers or {}, params or {}, retry or Retry(), timeout_s, compress)
        self._driver = AsyncDriver(config, credentials, http)

    @property
    def base_url(self) -> str:
        return self._driver.config.base_url

    def stream(self, name: str, *, retry: Retry | None = None) -> AsyncStream:
        """A stream by name, such as ``chat/room-1``, or by its full URL on any Durable Streams server."""
        return AsyncStream(self._driver, Target(stream_url(self.base_url, name), retry or self._driver.config.retry))

    def bucket(self, name: str, *, retry: Retry | None = None) -> AsyncBucket:
        """A bucket by name. Buckets are an extension of the protocol."""
        return AsyncBucket(self._driver, Target(bucket_url(self.base_url, name), retry or self._driver.config.retry))

    async def close(self) -> None:
        """Close all connections."""
        await self._driver.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
