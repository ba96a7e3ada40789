"""A server for all stories that need no settings of their own, and clients of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from tests.conftest import ServerProcess
from tests.server.surface.client import Client


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all stories that need no settings of their own; each has a stream of its own."""
    process = ServerProcess(tmp_path_factory.mktemp("surface"), {"long_poll_ms": 300})
    process.start()
    yield process
    process.stop()


@pytest.fixture
def connect() -> Iterator[Callable[[ServerProcess], Client]]:
    clients: list[Client] = []

    def client_of(server: ServerProcess) -> Client:
        clients.append(Client(server))
        return clients[-1]

    yield client_of
    for client in clients:
        client.close()


@pytest.fixture
def client(shared: ServerProcess, connect: Callable[[ServerProcess], Client]) -> Client:
    return connect(shared)


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return "/v1/stream/" + re.sub(r"\W+", "-", request.node.name)
