"""Clients of both kinds, a server they share, and a proxy that breaks things."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.client.bridge import Blocking, Loop
from tests.client.proxy import Proxy

from millstream.client import AsyncClient, Client, Retry

QUICK = Retry(retries_max=6, delay_s=0.01, delay_max_s=0.05)


@pytest.fixture(scope="module")
def shared(module_server):
    """A server for all tests of a module; each uses streams of its own."""
    return module_server()


@pytest.fixture
def proxy(shared) -> Iterator[Proxy]:
    made = Proxy(shared.port)
    yield made
    made.close()


@pytest.fixture
def name() -> str:
    """Of a stream that nobody else has."""
    return f"test/{uuid.uuid4().hex}"


MakeClient = Callable[..., Any]


@pytest.fixture(params=["threads", "asyncio"])
def make_client(request) -> Iterator[MakeClient]:
    """`make_client(url, **options)`: a client of each kind in turn, with the interface of `Client`."""
    made: list[Any] = []
    loop = Loop() if request.param == "asyncio" else None

    def make(url: str, **options: Any) -> Any:
        options.setdefault("retry", QUICK)
        client = Client(url, **options) if loop is None else Blocking(loop, AsyncClient(url, **options))
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()
    if loop is not None:
        loop.stop()


@pytest.fixture
def client(make_client, shared) -> Any:
    return make_client(shared.url)


@pytest.fixture
def through_proxy(make_client, proxy) -> Any:
    return make_client(proxy.url)
