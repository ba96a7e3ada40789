"""The client for threads."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType

import httpx

from ..config import Config, Credentials, Dynamic
from ..operations import Target
from ..retry import Retry
from ..wire import bucket_url, check_base_url, stream_url
from .bucket import Bucket
from .driver import Driver
from .stream import Stream


class Client(AbstractContextManager["Client"]):
    """A connection to one server; its streams and buckets are handles on it. Safe to share between threads.

    `headers` and `params` go with every request; a value may be a function, called anew each time. `credentials` is a
    function that returns headers, such as ``{"Authorization": "Bearer ..."}``; it is asked once, and again when the
    server refuses what it gave (401). `compress` asks for compressed answers: by default unless the server is on this
    machine. `http` is an `httpx.Client` of your own, for TLS settings or proxies; it stays yours to close.
    """

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, Dynamic] | None = None,
        params: Mapping[str, Dynamic] | None = None,
        credentials: Credentials | None = None,
        retry: Retry | None = None,
        timeout_s: float = 30.0,
        compress: bool | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        config = Config(check_base_url(base_url), headers or {}, params or {}, retry or Retry(), timeout_s, compress)
        self._driver = Driver(config, credentials, http)

    @property
    def base_url(self) -> str:
        return self._driver.config.base_url

    def stream(self, name: str, *, retry: Retry | None = None) -> Stream:
        """A stream by name, such as ``chat/room-1``, or by its full URL on any Durable Streams server."""
        return Stream(self._driver, Target(stream_url(self.base_url, name), retry or self._driver.config.retry))

    def bucket(self, name: str, *, retry: Retry | None = None) -> Bucket:
        """A bucket by name. Buckets are an extension of the protocol."""
        return Bucket(self._driver, Target(bucket_url(self.base_url, name), retry or self._driver.config.retry))

    def close(self) -> None:
        """Close all connections."""
        self._driver.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
