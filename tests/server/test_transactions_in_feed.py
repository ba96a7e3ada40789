"""What a transaction appends is seen by every reader: stream, feed, bulk read; before a checkpoint and after it."""

import base64
import json
import time

import httpx
import pytest


@pytest.fixture
def client(server):
    running = server({"checkpoint_age_s": 1.5})
    with httpx.Client(base_url=running.url, timeout=20) as client:
        yield client


def metric(client, name):
    lines = client.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name + " ")))


def feed(client):
    page = client.get("/ds/shop/streams/feed", params={"data": "true"}).json()
    return [entry for entry in page["entries"] if entry["kind"] == "appended"]


def rows(client):
    answer = client.get("/ds/shop/streams/messages", headers={"accept": "application/x-ndjson"})
    return [json.loads(line) for line in answer.text.splitlines()]


def test_transactions_are_in_feed_and_bulk_reads(client):
    client.put("/ds/shop")
    lines = [{"stream": f"s{index % 7}", "json": {"n": index}, "order": index} for index in range(500)]
    body = "\n".join(map(json.dumps, lines))
    base = "/ds/shop/streams/transactions/etl/1"
    assert client.put(f"{base}/0", content=body, headers={"content-type": "application/x-ndjson"}).status_code == 200
    done = client.post(base, json={"parts": ["0"], "create": True, "content_type": "application/json"})
    assert done.json()["messages"] == 500

    def seen():
        from_feed = {entry["stream"]: entry["messages"] for entry in feed(client)}
        from_bulk: dict[str, list] = {}
        for row in rows(client):
            from_bulk.setdefault(row["stream"], []).append(json.loads(base64.b64decode(row["value"])))
        return from_feed, from_bulk

    expected = {f"s{k}": [{"n": n} for n in range(500) if n % 7 == k] for k in range(7)}
    assert seen() == (expected, expected), "from memory"
    deadline = time.monotonic() + 15
    while metric(client, "millstream_catalog_sequence") < metric(client, "millstream_journal_sequence"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert seen() == (expected, expected), "from the archive"
