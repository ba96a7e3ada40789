"""Connections in several small pools instead of one large one.

httpcore looks at all connections of a pool, and for each idle one at all again, whenever a request begins or ends: at
64 concurrent appends most of a client's time. What that came to: docs/decisions/0012-the-client-is-flows.md.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, TypeVar
from urllib.request import getproxies

import httpx

POOLS = 64
POOL_CONNECTIONS_MAX = 16
_LIMITS = httpx.Limits(max_connections=POOL_CONNECTIONS_MAX, max_keepalive_connections=POOL_CONNECTIONS_MAX)

_Pool = TypeVar("_Pool")


def pooled(kind: type[httpx.Client] | type[httpx.AsyncClient]) -> dict[str, Any]:
    """What to make an httpx client with. A proxy named by the environment needs httpx's own arrangement."""
    if getproxies():
        return {}
    return {"transport": Pools() if kind is httpx.Client else AsyncPools()}


class _Spread(Generic[_Pool]):
    """Which pool takes the next request: the least busy, the first of those; new ones are made as they are needed."""

    def __init__(self, make: Callable[[], _Pool]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self.pools: list[_Pool] = []
        self._busy: list[int] = []

    def take(self) -> int:
        with self._lock:
            index = min(range(len(self._busy)), key=self._busy.__getitem__, default=0)
            if not self._busy or (self._busy[index] > 0 and len(self.pools) < POOLS):
                index = len(self.pools)
                self.pools.append(self._make())
                self._busy.append(0)
            self._busy[index] += 1
            return index

    def give_back(self, index: int) -> None:
        with self._lock:
            self._busy[index] -= 1


class _Schemes(Generic[_Pool]):
    """Pools for ``http`` and for ``https``. Certificates take long to load, and only the second needs them."""

    def __init__(self, kind: Callable[..., _Pool]) -> None:
        certificates: list[ssl.SSLContext] = []

        def secure() -> _Pool:
            if not certificates:
                certificates.append(httpx.create_ssl_context())
            return kind(verify=certificates[0], limits=_LIMITS)

        # Without certificates, and never asked for anything but http.
        self._plain = _Spread(lambda: kind(verify=False, limits=_LIMITS))
        self._secure = _Spread(secure)

    def spread_for(self, request: httpx.Request) -> _Spread[_Pool]:
        return self._plain if request.url.scheme == "http" else self._secure

    def all(self) -> list[_Pool]:
        return [*self._plain.pools, *self._secure.pools]


class Pools(httpx.BaseTransport):
    def __init__(self) -> None:
        self._schemes = _Schemes(httpx.HTTPTransport)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        spread = self._schemes.spread_for(request)
        index = spread.take()
        try:
            response = spread.pools[index].handle_request(request)
        except BaseException:
            spread.give_back(index)
            raise
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _Stream(response.stream, lambda: spread.give_back(index))
        return response

    def close(self) -> None:
        for pool in self._schemes.all():
            pool.close()


class AsyncPools(httpx.AsyncBaseTransport):
    def __init__(self) -> None:
        self._schemes = _Schemes(httpx.AsyncHTTPTransport)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        spread = self._schemes.spread_for(request)
        index = spread.take()
        try:
            response = await spread.pools[index].handle_async_request(request)
        except BaseException:
            spread.give_back(index)
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _AsyncStream(response.stream, lambda: spread.give_back(index))
        return response

    async def aclose(self) -> None:
        for pool in self._schemes.all():
            await pool.aclose()


class _Stream(httpx.SyncByteStream):
    """A body that tells when it is closed, once."""

    def __init__(self, body: httpx.SyncByteStream, on_close: Callable[[], None]) -> None:
        self._body = body
        self._on_close: Callable[[], None] | None = on_close

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        try:
            self._body.close()
        finally:
            if self._on_close is not None:
                on_close, self._on_close = self._on_close, None
                on_close()


class _AsyncStream(httpx.AsyncByteStream):
    """A body that tells when it is closed, once."""

    def __init__(self, body: httpx.AsyncByteStream, on_close: Callable[[], None]) -> None:
        self._body = body
        self._on_close: Callable[[], None] | None = on_close

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._body)

    async def aclose(self) -> None:
        try:
            await self._body.aclose()
        finally:
            if self._on_close is not None:
                on_close, self._on_close = self._on_close, None
                on_close()
