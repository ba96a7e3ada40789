"""Lets one test run against both clients: the asynchronous one behind the interface of the other."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

from millstream.client import (
    AsyncArrowReader,
    AsyncBucket,
    AsyncBulkReader,
    AsyncClient,
    AsyncFeedReader,
    AsyncProducer,
    AsyncReader,
    AsyncStream,
    AsyncTransaction,
)

_OURS = (
    AsyncArrowReader,
    AsyncBucket,
    AsyncBulkReader,
    AsyncClient,
    AsyncFeedReader,
    AsyncProducer,
    AsyncReader,
    AsyncStream,
    AsyncTransaction,
)


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, awaitable: Any) -> Any:
        async def awaited() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(60)

    def stop(self) -> None:
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """What the asynchronous object gives, waited for."""

    def __init__(self, loop: Loop, inner: Any) -> None:
        self._loop = loop
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._call(found) if callable(found) else found

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(aiter(self._inner))

    def __enter__(self) -> Blocking:
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run(self._inner.__aexit__(*error))

    def result(self, timeout: float | None = None) -> Any:
        """Of a future."""
        return self._loop.run(self._inner)

    def _call(self, method: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            return self._wrapped(method(*args, **options))

        return call

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, Coroutine) or (inspect.isawaitable(value) and not isinstance(value, asyncio.Future)):
            return self._wrapped(self._loop.run(value))
        if isinstance(value, (*_OURS, asyncio.Future)):
            return Blocking(self._loop, value)
        if isinstance(value, AsyncIterator):
            return self._iterate(value)
        return value

    def _iterate(self, values: AsyncIterator[Any]) -> Iterator[Any]:
        end = object()
        try:
            while (value := self._loop.run(anext(values, end))) is not end:
                yield value
        finally:
            self._loop.run(values.aclose())  # type: ignore[attr-defined]
