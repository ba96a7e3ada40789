"""Twenty megabytes with other people's clients: one request for everything, and everything comes."""

from __future__ import annotations

import hashlib
import json
from itertools import islice

import httpx
import pytest
from durable_streams import DurableStream, stream

from .test_interop import RunPeer, peer  # noqa: F401 - a fixture

MESSAGES = 20
MEGABYTE = 1_000_000
LIVE = (False, "long-poll")  # SSE never ends by itself on an open stream


@pytest.fixture(scope="module")
def running(module_server):
    return module_server({"checkpoint_age_s": 0.5})


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [f"{number:04}" * (MEGABYTE // 4) for number in range(MESSAGES)]


@pytest.fixture(scope="module")
def json_url(running, texts) -> str:
    """A stream of 20 MB in 20 messages, closed, so that every mode ends."""
    url = f"{running.url}/v1/stream/large/json"
    headers = {"Content-Type": "application/json"}
    httpx.put(url, headers=headers).raise_for_status()
    for text in texts:
        httpx.post(url, content=json.dumps([text]), headers=headers).raise_for_status()
    httpx.post(url, headers={"Stream-Closed": "true"}).raise_for_status()
    return url


def digests(texts: list[str]) -> list[dict[str, object]]:
    return [{"length": len(text), "digest": hashlib.sha256(text.encode()).hexdigest()} for text in texts]


@pytest.mark.parametrize("live", LIVE)
def test_npm_reads_all_of_it(json_url, texts, peer: RunPeer, live):  # noqa: F811
    assert peer(act="readWhole", url=json_url, live=live, how="json").result() == digests(texts)
    (body,) = peer(act="readWhole", url=json_url, live=live, how="body").result()
    assert body["length"] >= MESSAGES * MEGABYTE


def test_npm_writes_and_reads_bytes(running, peer: RunPeer):  # noqa: F811
    url = f"{running.url}/v1/stream/large/bytes"
    content = b"".join(bytes([piece]) * (5 * MEGABYTE) for piece in range(4))
    peer(act="appendBytes", url=url, pieces=4, size=5 * MEGABYTE).result()
    (read,) = peer(act="readWhole", url=url, live=False, how="body").result()
    assert read == {"length": len(content), "digest": hashlib.sha256(content).hexdigest()}


def test_pypi_reads_all_of_it(json_url, texts):
    with stream(json_url, offset="-1", live=False) as response:
        assert response.read_json() == texts
    for live in (False, "long-poll"):  # it knows of no end where it reads live
        with stream(json_url, offset="-1", live=live) as response:
            assert list(islice(response.iter_json(), MESSAGES)) == texts


def test_pypi_writes_and_reads_bytes(running):
    url = f"{running.url}/v1/stream/large/pypi"
    pieces = [bytes([number]) * (5 * MEGABYTE) for number in range(4)]
    with DurableStream.create(url, content_type="application/octet-stream", body=pieces[0]) as handle:
        for piece in pieces[1:]:
            handle.append(piece)
    with stream(url, offset="-1", live=False) as response:
        assert response.read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("compaction", [None, 5 * MEGABYTE], ids=["from updates", "from a snapshot"])
@pytest.mark.parametrize("mode", ["sse", "long-poll"])
def test_a_yjs_document_opens_whole(module_server, peer: RunPeer, compaction, mode):  # noqa: F811
    """Yjs' own server keeps the document with us; another one opens it from what we have."""
    url = module_server().url
    document = {"url": url, "pages": MESSAGES, "size": MEGABYTE, "liveMode": mode}
    assert peer(act="writeYjs", compaction=compaction, **document).result() == []
    pages = [f"{page:08}" * (MEGABYTE // 8) for page in range(MESSAGES)]
    found = peer(act="readYjs", compaction=None, **document).result()
    assert found == [hashlib.sha256(page.encode()).hexdigest() for page in pages]
