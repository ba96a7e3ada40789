"""A server that checkpoints and sweeps all the time, and a stream of three words."""

import httpx
import pytest
from tests.server.snapshots.words import SETTINGS, append


@pytest.fixture(scope="module")
def running(module_server):
    return module_server(SETTINGS)


@pytest.fixture(scope="module")
def client(running):
    with httpx.Client(base_url=running.url, timeout=20) as client:
        yield client


@pytest.fixture
def bucket(client, request):
    name = f"b-{abs(hash(request.node.name)) % 10**12}"
    assert client.put(f"/ds/{name}").status_code == 201
    return name


@pytest.fixture
def stream(client, bucket):
    """A text stream that holds `one`, `two` and `three`."""
    url = f"/ds/{bucket}/notes"
    assert client.put(url, headers={"content-type": "text/plain"}).status_code == 201
    for word in ("one", "two", "three"):
        append(client, url, word)
    return url
