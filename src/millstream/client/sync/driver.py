"""Runs flows with threads: every wait blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import httpx

from ..config import Config, Credentials, answer_of, fault_of
from ..errors import ClientError
from ..pools import pooled
from ..steps import Emit, Finish, Flow, NextChunk, Refresh, Reply, Send, Sleep, Step
from ..wire import Answer, Request

_T = TypeVar("_T")


class Driver:
    def __init__(self, config: Config, credentials: Credentials | None, http: httpx.Client | None) -> None:
        self.config = config
        self.http = http or httpx.Client(**pooled(httpx.Client))
        self._owns_http = http is None
        self._ask = credentials
        self._held: Mapping[str, str] | None = None
        self._issue = 0
        self._lock = threading.Lock()

    def close(self) -> None:
        if self._owns_http:
            self.http.close()

    def run(self, flow: Flow[_T]) -> _T:
        """Run a flow that emits nothing; returns what it returns."""
        session = Session(self)
        reply: Reply = None
        try:
            step = next(flow)
            while True:
                try:
                    reply = session.do(step)
                except ClientError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(reply)
        except StopIteration as stop:
            result: _T = stop.value
            return result
        finally:
            session.close()

    def iterate(self, flow: Flow[object]) -> Iterator[Any]:
        """Run a flow and give what it emits. Nothing is read ahead; leaving the loop closes the connection."""
        session = Session(self)
        try:
            step = next(flow)
            while True:
                if isinstance(step, Emit):
                    yield step.value
                    step = flow.send(None)
                    continue
                try:
                    reply = session.do(step)
                except ClientError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(reply)
        except StopIteration:
            return
        finally:
            flow.close()
            session.close()

    def credentials(self) -> tuple[Mapping[str, str], int]:
        if self._ask is None:
            return {}, 0
        with self._lock:
            if self._held is None:
                self._held, self._issue = self._ask(), self._issue + 1
            return self._held, self._issue

    def refresh(self, issue: int) -> bool:
        if self._ask is None:
            return False
        with self._lock:
            if issue == self._issue:
                self._held = None
        return True


class Session:
    """The steps of one flow; holds the answer that is being read, if any."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._open: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

    def do(self, step: Step) -> Reply:
        if isinstance(step, Send):
            return self._send(step)
        if isinstance(step, NextChunk):
            return self._next_chunk()
        if isinstance(step, Sleep):
            time.sleep(step.seconds)
        elif isinstance(step, Refresh):
            return self._driver.refresh(step.issue)
        elif isinstance(step, Finish):
            self.close()
        return None

    def close(self) -> None:
        if self._open is not None:
            response, self._open = self._open, None
            response.close()

    def _send(self, step: Send) -> Answer:
        self.close()
        driver, request = self._driver, step.request
        credentials, issue = driver.credentials()
        try:
            prepared = driver.http.build_request(
                **driver.config.httpx_request(request, credentials), content=_content(request)
            )
            response = driver.http.send(prepared, stream=True)
            if step.stream and response.status_code < 300:
                self._open, self._chunks = response, response.iter_bytes()
                return answer_of(response, b"", issue)
            try:
                return answer_of(response, response.read(), issue)
            finally:
                response.close()
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise fault_of(error, request.url) from error

    def _next_chunk(self) -> bytes:
        assert self._open is not None, "no answer is open"
        try:
            return next(self._chunks, b"")
        except (httpx.HTTPError, httpx.StreamError) as error:
            url = str(self._open.url)
            self.close()
            raise fault_of(error, url) from error


def _content(request: Request) -> bytes | Iterator[bytes] | None:
    if request.body is None or request.on_sent is None:
        return request.body
    return _noticed(request.body, request.on_sent)


def _noticed(body: bytes, on_sent: Callable[[], None]) -> Iterator[bytes]:
    """The body in one piece; httpx comes back for more once it is written."""
    yield body
    on_sent()
