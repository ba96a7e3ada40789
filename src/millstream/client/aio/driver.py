"""Runs flows on asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import httpx

from ..config import AsyncCredentials, Config, answer_of, fault_of
from ..errors import ClientError
from ..pools import pooled
from ..steps import Emit, Finish, Flow, NextChunk, Refresh, Reply, Send, Sleep, Step
from ..wire import Answer, Request

_T = TypeVar("_T")


class AsyncDriver:
    def __init__(self, config: Config, credentials: AsyncCredentials | None, http: httpx.AsyncClient | None) -> None:
        self.config = config
        self.http = http or httpx.AsyncClient(**pooled(httpx.AsyncClient))
        self._owns_http = http is None
        self._ask = credentials
        self._held: Mapping[str, str] | None = None
        self._issue = 0
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        if self._owns_http:
            await self.http.aclose()

    async def run(self, flow: Flow[_T]) -> _T:
        """Run a flow that emits nothing; returns what it returns."""
        session = AsyncSession(self)
        reply: Reply = None
        try:
            step = next(flow)
            while True:
                try:
                    reply = await session.do(step)
                except ClientError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(reply)
        except StopIteration as stop:
            result: _T = stop.value
            return result
        finally:
            await session.close()

    async def iterate(self, flow: Flow[object]) -> AsyncIterator[Any]:
        """Run a flow and give what it emits. Nothing is read ahead; leaving the loop closes the connection."""
        session = AsyncSession(self)
        try:
            step = next(flow)
            while True:
                if isinstance(step, Emit):
                    yield step.value
                    step = flow.send(None)
                    continue
                try:
                    reply = await session.do(step)
                except ClientError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(reply)
        except StopIteration:
            return
        finally:
            flow.close()
            await session.close()

    async def credentials(self) -> tuple[Mapping[str, str], int]:
        if self._ask is None:
            return {}, 0
        async with self._lock:
            if self._held is None:
                given = self._ask()
                self._held = await given if inspect.isawaitable(given) else given
                self._issue += 1
            return self._held, self._issue

    async def refresh(self, issue: int) -> bool:
        if self._ask is None:
            return False
        async with self._lock:
            if issue == self._issue:
                self._held = None
        return True


class AsyncSession:
    """The steps of one flow; holds the answer that is being read, if any."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self._open: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def do(self, step: Step) -> Reply:
        if isinstance(step, Send):
            return await self._send(step)
        if isinstance(step, NextChunk):
            return await self._next_chunk()
        if isinstance(step, Sleep):
            await asyncio.sleep(step.seconds)
        elif isinstance(step, Refresh):
            return await self._driver.refresh(step.issue)
        elif isinstance(step, Finish):
            await self.close()
        return None

    async def close(self) -> None:
        if self._open is not None:
            response, self._open, self._chunks = self._open, None, None
            await response.aclose()

    async def _send(self, step: Send) -> Answer:
        await self.close()
        driver, request = self._driver, step.request
        credentials, issue = await driver.credentials()
        try:
            prepared = driver.http.build_request(
                **driver.config.httpx_request(request, credentials), content=_content(request)
            )
            response = await driver.http.send(prepared, stream=True)
            if step.stream and response.status_code < 300:
                self._open, self._chunks = response, response.aiter_bytes()
                return answer_of(response, b"", issue)
            try:
                return answer_of(response, await response.aread(), issue)
            finally:
                await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise fault_of(error, request.url) from error

    async def _next_chunk(self) -> bytes:
        assert self._open is not None, "no answer is open"
        assert self._chunks is not None
        try:
            return await anext(self._chunks, b"")
        except (httpx.HTTPError, httpx.StreamError) as error:
            url = str(self._open.url)
            await self.close()
            raise fault_of(error, url) from error


def _content(request: Request) -> bytes | AsyncIterator[bytes] | None:
    if request.body is None or request.on_sent is None:
        return request.body
    return _noticed(request.body, request.on_sent)


async def _noticed(body: bytes, on_sent: Callable[[], None]) -> AsyncIterator[bytes]:
    """The body in one piece; httpx comes back for more once it is written."""
    yield body
    on_sent()
