"""A stream that was created without a content type, over HTTP and wherever its messages lie."""

import base64
import json

import httpx
import pytest
from tests.server.settling import settle

BYTES = "application/octet-stream"
TEXT = {"Content-Type": "text/plain; charset=utf-8"}
JSON = {"Content-Type": "application/json"}
names = iter(f"first-{number}" for number in range(1000))


@pytest.fixture
def running(server):
    return server({"checkpoint_age_s": 0.1, "sse_heartbeat_s": 0.3})


@pytest.fixture
def client(running):
    with httpx.Client(base_url=running.url, timeout=20) as client:
        yield client


@pytest.fixture
def bucket(client):
    name = next(names)
    client.put(f"/ds/{name}").raise_for_status()
    return f"/ds/{name}"


def kinds(client, bucket):
    """The content types of the bucket's streams, as three places tell them."""
    listed = {each["stream_id"]: each["content_type"] for each in client.get(f"{bucket}/streams").json()["streams"]}
    told = {name: client.head(f"{bucket}/{name}").headers["content-type"] for name in listed}
    assert told == {name: client.get(f"{bucket}/{name}").headers["content-type"] for name in listed} == listed
    return told


def test_the_first_append_says_what_the_stream_holds(running, client, bucket):
    for name in ("json", "text", "none"):
        assert client.put(f"{bucket}/{name}").headers["content-type"] == BYTES
    assert kinds(client, bucket) == {"json": BYTES, "text": BYTES, "none": BYTES}
    running.kill()
    running.start()
    assert client.post(f"{bucket}/json", content=b"[1, [2]]", headers=JSON).status_code == 204
    assert client.post(f"{bucket}/text", content=b"[1, [2]]", headers=TEXT).status_code == 204
    for _ in range(3):
        assert client.get(f"{bucket}/json").content == b"[1,[2]]"
        assert client.get(f"{bucket}/text").content == b"[1, [2]]"
        assert kinds(client, bucket) == {"json": JSON["Content-Type"], "text": TEXT["Content-Type"], "none": BYTES}
        assert client.post(f"{bucket}/json", content=b"1", headers=TEXT).status_code == 409
        assert client.post(f"{bucket}/json", content=b"{", headers=JSON).status_code == 400
        assert client.put(f"{bucket}/json").status_code == 200
        running.kill()
        running.start()
        settle(client)


@pytest.mark.parametrize("between", ["nothing", "a checkpoint"])
def test_feed_and_bulk_read_know_the_type_wherever_the_messages_lie(client, bucket, between):
    client.put(f"{bucket}/s").raise_for_status()
    client.put(f"{bucket}/s/snapshot/0", content=b"empty").raise_for_status()
    if between == "a checkpoint":
        settle(client)
    client.post(f"{bucket}/s", content=b"[1, 2]", headers=JSON).raise_for_status()
    for _ in range(2):
        entries = client.get(f"{bucket}/streams/feed", params={"data": "true"}).json()["entries"]
        assert [entry["kind"] for entry in entries] == ["created", "snapshot", "appended"]
        assert (entries[-1]["content_type"], entries[-1]["encoding"]) == (JSON["Content-Type"], "json")
        assert entries[-1]["messages"] == [1, 2]
        rows = [json.loads(line) for line in client.get(f"{bucket}/streams/messages").text.splitlines()]
        assert [(row["kind"], row["content_type"], base64.b64decode(row["value"])) for row in rows] == [
            ("snapshot", BYTES, b"empty"),
            ("message", JSON["Content-Type"], b"1"),
            ("message", JSON["Content-Type"], b"2"),
        ]
        settle(client)


def test_who_follows_it_from_before_asks_again_and_gets_the_right_head(client, bucket):
    """Base64 was announced, and text or JSON is sent as it is."""
    url = f"{bucket}/s"
    client.put(url).raise_for_status()
    with client.stream("GET", url, params={"offset": "-1", "live": "sse"}) as feed:
        assert feed.headers["stream-sse-data-encoding"] == "base64"
        lines = feed.iter_lines()
        assert next(lines) == "event: control"
        client.post(url, content=b"hello", headers=TEXT).raise_for_status()
        assert not any(line.startswith("event: data") for line in lines)
    client.post(url, headers={"Stream-Closed": "true"}).raise_for_status()
    again = client.get(url, params={"offset": 0, "live": "sse"})
    assert "stream-sse-data-encoding" not in again.headers
    assert "data:hello\n" in again.text


def test_who_follows_it_from_before_goes_on_where_nothing_changes(client, bucket):
    url = f"{bucket}/s"
    client.put(url).raise_for_status()
    with client.stream("GET", url, params={"offset": "-1", "live": "sse"}) as feed:
        lines = feed.iter_lines()
        next(lines)
        client.post(url, content=b"hello", headers={"Content-Type": BYTES}).raise_for_status()
        assert next(line for line in lines if line.startswith("data:aGVs")) == "data:aGVsbG8="


@pytest.mark.parametrize("body", [b"", b"x"])
def test_a_body_at_creation_is_the_first_append(client, bucket, body):
    client.put(f"{bucket}/s", content=body).raise_for_status()
    answer = client.post(f"{bucket}/s", content=b"y", headers=TEXT)
    assert answer.status_code == (409 if body else 204)


@pytest.mark.parametrize("kind", ["text/plain", "application/json", BYTES])
def test_an_empty_body_is_400_whatever_it_is_said_to_be(client, bucket, kind):
    client.put(f"{bucket}/s", headers=TEXT).raise_for_status()
    for _ in range(2):
        answer = client.post(f"{bucket}/s", headers={"Content-Type": kind})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "empty_body")
        client.post(f"{bucket}/s", headers={"Stream-Closed": "true"}).raise_for_status()
