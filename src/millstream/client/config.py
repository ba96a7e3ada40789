"""How a client sends: base URL, headers, credentials, time-outs. Shared by both drivers; opens nothing itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import httpx

from .. import __version__
from .errors import ClientError, ConnectionLost, ProtocolError
from .retry import Retry
from .wire import Answer, Request, is_loopback, same_host

Dynamic: TypeAlias = str | Callable[[], str]
Credentials: TypeAlias = Callable[[], Mapping[str, str]]
AsyncCredentials: TypeAlias = Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class Config:
    base_url: str
    headers: Mapping[str, Dynamic] = field(default_factory=dict)
    params: Mapping[str, Dynamic] = field(default_factory=dict)
    retry: Retry = field(default_factory=Retry)
    timeout_s: float = 30.0
    compress: bool | None = None

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise ValueError("timeout_s must be more than 0.")

    def httpx_request(self, request: Request, credentials: Mapping[str, str]) -> dict[str, Any]:
        """What `build_request` takes, without the body."""
        headers = {"user-agent": f"millstream/{__version__}", "accept-encoding": self._accept_encoding(request.url)}
        headers.update(_evaluated(self.headers))
        if same_host(self.base_url, request.url):
            headers.update(credentials)
        headers.update(request.headers)
        if request.on_sent is not None and request.body is not None:
            headers["content-length"] = str(len(request.body))  # it travels as an iterator, which has no length
        params = {**_evaluated(self.params), **request.params}
        read_s = self.timeout_s if request.read_timeout_s is None else request.read_timeout_s
        return {
            "method": request.method,
            "url": request.url,
            "params": params or None,
            "headers": headers,
            "timeout": httpx.Timeout(self.timeout_s, read=read_s),
        }

    def _accept_encoding(self, url: str) -> str:
        # On one machine compressing costs more than it saves.
        wanted = not is_loopback(url) if self.compress is None else self.compress
        return "zstd, gzip" if wanted else "identity"


def _evaluated(values: Mapping[str, Dynamic]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value() for name, value in values.items()}


def answer_of(response: httpx.Response, body: bytes, issue: int) -> Answer:
    # A plain dict: httpx.Headers finds out its encoding anew for each header that is asked for.
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers.raw}
    return Answer(response.status_code, headers, body, str(response.url), issue)


def fault_of(error: httpx.HTTPError | httpx.InvalidURL | httpx.StreamError, url: str) -> ClientError:
    """What went wrong below HTTP, in our words."""
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return ConnectionLost(f"Cannot reach {url}: {reason}. Is the server running?", url=url, sent=False)
    if isinstance(error, httpx.TimeoutException):
        return ConnectionLost(f"{url} did not answer in time: {reason}.", url=url, timed_out=True)
    if isinstance(error, httpx.TransportError):
        return ConnectionLost(f"The connection to {url} broke: {reason}.", url=url)
    return ProtocolError(f"The answer of {url} cannot be used: {reason}.", url=url)
