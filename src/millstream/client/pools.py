"""Connections in several small pools instead of one large one.

httpcore looks at all connections of a pool, and for each idle one at all again, whenever a request begins or ends: at
64 concurrent appends most of a client's time. Measured with 64 tasks: see bench/client.py.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Generic, TypeVar
from urllib.request import getproxies

import httpx

POOLS = 64
POOL_CONNECTIONS_MAX = 16

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


class _Options:
    """What every pool of a client shares; the TLS context is costly to make."""

    def __init__(self) -> None:
        self.verify = httpx.create_ssl_context()
        self.limits = httpx.Limits(max_connections=POOL_CONNECTIONS_MAX, max_keepalive_connections=POOL_CONNECTIONS_MAX)


class Pools(httpx.BaseTransport):
    def __init__(self) -> None:
        options = _Options()
        self._spread = _Spread(lambda: httpx.HTTPTransport(verify=options.verify, limits=options.limits))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        index = self._spread.take()
        try:
            response = self._spread.pools[index].handle_request(request)
        except BaseException:
            self._spread.give_back(index)
            raise
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _Stream(response.stream, lambda: self._spread.give_back(index))
        return response

    def close(self) -> None:
        for pool in self._spread.pools:
            pool.close()


class AsyncPools(httpx.AsyncBaseTransport):
    def __init__(self) -> None:
        options = _Options()
        self._spread = _Spread(lambda: httpx.AsyncHTTPTransport(verify=options.verify, limits=options.limits))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        index = self._spread.take()
        try:
            response = await self._spread.pools[index].handle_async_request(request)
        except BaseException:
            self._spread.give_back(index)
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _AsyncStream(response.stream, lambda: self._spread.give_back(index))
        return response

    async def aclose(self) -> None:
        for pool in self._spread.pools:
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
