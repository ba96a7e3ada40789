"""Reads that are asked for again and again: answered from a cache, and always as the stream is now."""

from __future__ import annotations

import gzip
import json

import pytest
import zstandard
from tests.server.surface.client import JSON, TEXT, Answer, tag_of

BODY = b"abcdefgh" * 200


def thrice(client, path: str, **headers: str) -> Answer:
    """The answer, which the third time comes from the cache. The first two are the same, but for the time of day."""
    answers = [client.get(path, **headers) for _ in range(3)]
    shown = [(answer.status, [line for line in answer.headers.items() if line[0] != "Date"]) for answer in answers]
    assert shown[0] == shown[1] == shown[2]
    assert answers[0].body == answers[1].body == answers[2].body
    return answers[-1]


def test_it_is_the_same_every_time(client, path):
    client.put(path, BODY)
    answer = thrice(client, path)
    assert (answer.status, answer.body) == (200, BODY)
    assert answer["Stream-Up-To-Date"] == "true"
    assert thrice(client, f"{path}?offset=8").body == BODY[8:]


def test_an_append_is_seen_at_once(client, path):
    client.put(path, b"one ")
    thrice(client, path)
    client.post(path, b"two")
    assert thrice(client, path).body == b"one two"


def test_so_is_a_close(client, path):
    client.put(path, b"one")
    before = thrice(client, path)
    client.close_stream(path)
    after = thrice(client, path)
    assert (before["Stream-Closed"], after["Stream-Closed"]) == (None, "true")
    assert tag_of(after) != tag_of(before)


def test_a_deleted_stream_is_gone_and_a_new_one_is_another(client, path):
    client.put(path, b"old")
    old = thrice(client, path)
    client.delete(path)
    assert thrice(client, path).status == 404
    client.put(path, b"new")
    new = thrice(client, path)
    assert new.body == b"new"
    assert new["Stream-Id"] != old["Stream-Id"]


def test_what_a_snapshot_trims_is_not_served_any_more(client, path):
    bucket = path.rsplit("/", 1)[1]
    client("PUT", f"/ds/{bucket}")
    stream = f"/ds/{bucket}/s"
    client.put(stream, b"one ")
    client.post(stream, b"two")
    assert thrice(client, stream).body == b"one two"
    assert thrice(client, f"{stream}?offset=0").status == 200
    assert client.put(f"{stream}/snapshot/4", b"1").status in (200, 201, 204)
    assert thrice(client, f"{stream}?offset=0").status == 410
    assert thrice(client, stream).status == 410
    assert thrice(client, f"{stream}?offset=4").body == b"two"


def test_a_bucket_that_becomes_private_says_so(client, path):
    bucket = path.rsplit("/", 1)[1]
    client("PUT", f"/ds/{bucket}")
    client.put(f"/ds/{bucket}/s", BODY)
    assert (thrice(client, f"/ds/{bucket}/s")["Cache-Control"] or "").startswith("public")
    client("PATCH", f"/ds/{bucket}", json.dumps({"caching": "private"}).encode(), content_type=JSON)
    assert (thrice(client, f"/ds/{bucket}/s")["Cache-Control"] or "").startswith("private")


def test_who_asks_still_matters(client, path):
    client.put(path, BODY)
    plain = thrice(client, path)
    assert thrice(client, path, if_none_match=tag_of(plain)).status == 304
    packed = thrice(client, path, accept_encoding="gzip")
    assert gzip.decompress(packed.body) == BODY
    assert tag_of(packed) == "W/" + tag_of(plain)
    assert zstandard.decompress(thrice(client, path, accept_encoding="zstd, gzip").body) == BODY
    assert thrice(client, path, accept_encoding="gzip", if_none_match=tag_of(packed)).status == 304
    client.post(path, b"more")
    assert gzip.decompress(thrice(client, path, accept_encoding="gzip").body) == BODY + b"more"
    page = "http://localhost:3000"
    assert thrice(client, path, origin=page)["Access-Control-Allow-Origin"] == page
    assert thrice(client, path, origin="https://elsewhere.example").status == 403
    assert thrice(client, path, host="elsewhere.example").status == 421


def test_messages_of_a_json_stream_stay_an_array(client, path):
    client.put(path, b"[1, 2]", content_type=JSON)
    assert json.loads(thrice(client, path).body) == [1, 2]


def test_reading_keeps_a_stream_with_a_ttl_alive(server, connect):
    """A cached answer would not renew it."""
    client = connect(server({"long_poll_ms": 300}))
    client.put("/v1/stream/ttl", b"one", stream_ttl="100")
    left = [client.get("/v1/stream/ttl")["Cache-Control"] for _ in range(4)]
    assert left[0] is not None
    assert client.head("/v1/stream/ttl")["Stream-TTL"] == "100"


@pytest.mark.parametrize("size", ["0", "64KiB"])
def test_a_small_cache_or_none_changes_no_answer(server, connect, size):
    client = connect(server({"read_cache_bytes": size}))
    for number in range(30):
        client.put(f"/v1/stream/s{number}", b"%d" % number + BODY)
    for _ in range(3):
        for number in range(30):
            answer = client.get(f"/v1/stream/s{number}")
            assert (answer.body, answer["Content-Type"]) == (b"%d" % number + BODY, TEXT)
