"""Two servers: one archives at once, one keeps everything in memory."""

import httpx
import pytest
from tests.server.feed.bucket import Bucket, names
from tests.server.settling import settle


@pytest.fixture(scope="module")
def client(module_server):
    running = module_server({"checkpoint_age_s": 0.1, "sse_heartbeat_s": 0.3})
    with httpx.Client(base_url=running.url, timeout=20) as client:
        client.running = running
        yield client


@pytest.fixture(scope="module")
def quiet(module_server):
    """A server that archives nothing in the time of a test."""
    running = module_server({"checkpoint_age_s": 3600})
    with httpx.Client(base_url=running.url, timeout=20) as client:
        yield client


@pytest.fixture(params=["archived", "in memory"])
def bucket(request):
    """A bucket whose history is read from the archive, or from memory: it makes no difference."""
    archived = request.param == "archived"
    made = Bucket(request.getfixturevalue("client" if archived else "quiet"), next(names))
    made.settle = (lambda: settle(made.client)) if archived else (lambda: None)
    return made
