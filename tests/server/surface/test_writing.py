"""Creating and appending, small and large, and what the answers say."""

from __future__ import annotations

import json
import time

import pytest
from tests.server.surface.client import (
    JSON,
    TEXT,
    Answer,
    data,
)

# --- writing, and what it says


def test_create_append_close_delete(client, path):
    created = client.put(path, b"hello")
    assert (created.status, created["Stream-Next-Offset"]) == (201, "00000000000000000005")
    assert created["Location"] == client.url + path
    assert created["Content-Type"] == TEXT

    appended = client.post(path, b" world")
    assert (appended.status, appended["Stream-Next-Offset"]) == (204, "00000000000000000011")

    closed = client.close_stream(path)
    assert (closed.status, closed["Stream-Closed"]) == (204, "true")
    refused = client.post(path, b"!")
    assert (refused.status, refused["Stream-Closed"]) == (409, "true")
    assert refused["Stream-Next-Offset"] == "00000000000000000011"

    read = client.get(path)
    assert (read.status, read.body, read["Stream-Closed"]) == (200, b"hello world", "true")
    assert client.delete(path).status == 204
    assert client.get(path).status == 404
    assert client.delete(path).status == 404


def test_the_stored_content_type_comes_back_exactly(client, path):
    client.put(path, b"x", "Text/Plain;Charset=X")
    for answer in (client.get(path), client.head(path), client.put(path, content_type="text/plain")):
        assert answer["Content-Type"] == "Text/Plain;Charset=X"


def test_a_producers_story(client, path):
    client.put(path)

    def send(epoch: int, seq: int) -> Answer:
        return client.post(path, b"x", producer_id="p", producer_epoch=str(epoch), producer_seq=str(seq))

    new, again = send(0, 0), send(0, 0)
    assert (new.status, new["Producer-Epoch"], new["Producer-Seq"]) == (200, "0", "0")
    assert (again.status, again["Producer-Seq"]) == (204, "0")
    gap = send(0, 5)
    assert (gap.status, gap["Producer-Expected-Seq"], gap["Producer-Received-Seq"]) == (409, "1", "5")
    assert send(2, 0).status == 200
    stale = send(1, 0)
    assert (stale.status, stale["Producer-Epoch"]) == (403, "2")
    assert send(3, 1).status == 400
    assert client.get(path).body == b"xx"


def test_a_producer_that_closes_with_what_it_has_sent_before(client, path):
    client.put(path)

    def send(body, seq, **headers):
        answer = client.post(path, body, producer_id="p", producer_epoch="0", producer_seq=str(seq), **headers)
        return answer.status, answer["Stream-Closed"], answer["Producer-Epoch"], answer["Producer-Seq"]

    assert send(b"a", 0) == (200, None, "0", "0")
    assert send(b"b", 1) == (200, None, "0", "1")
    assert send(b"a", 0) == (204, None, "0", "1")
    for _ in range(2):
        assert send(b"a", 0, stream_closed="true") == (204, "true", "0", "1")
    assert send(b"", 0, stream_closed="true") == (204, "true", "0", "1")
    assert send(b"", 7, stream_closed="true") == (204, "true", "0", "1")
    assert send(b"b", 1) == (409, "true", None, None)
    answer = client.get(path)
    assert (answer.body, answer["Stream-Closed"]) == (b"ab", "true")


def test_an_append_must_say_what_it_is(client, path):
    client.put(path)
    answer = client("POST", path, b"x")
    assert (answer.status, answer.code()) == (400, "content_type_missing")
    mismatch = client.post(path, b"1", JSON)
    assert (mismatch.status, mismatch.code()) == (409, "content_type_mismatch")


def test_answers_without_a_body_have_no_length(client, path):
    client.put(path, b"hello")
    answers = [client.post(path, b"!"), client.get(path, if_none_match="*"), client.head(path, if_none_match="*")]
    answers += [client.get(f"{path}?offset=6&live=long-poll&timeout_ms=0"), client.delete(path)]
    assert [answer.status for answer in answers] == [204, 304, 304, 204, 204]
    for answer in answers:
        assert (answer.body, answer["Content-Length"], answer["Transfer-Encoding"]) == (b"", None, None)


def test_an_error_says_what_to_do(client, path):
    answer = client.get(path)
    assert (answer.status, answer.code()) == (404, "not_found")
    assert answer["Cache-Control"] == "no-store"
    assert "PUT" in json.loads(answer.body)["error"]["message"]


# --- large bodies


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_two_mebibytes_of_text_come_back_exactly(client, path, method):
    text = "".join(f"line {number} é\n" for number in range(150_000)).encode()
    assert len(text) > 2 << 20
    if method == "POST":
        client.put(path)
    answer = client(method, path, text, content_type=TEXT)
    assert (answer.status, int(answer["Stream-Next-Offset"])) == (201 if method == "PUT" else 204, len(text))
    assert client.get(path).body == text
    assert client.get(f"{path}?offset={len(text) - 7}").body == text[-7:]


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_two_mebibytes_of_json_come_back_exactly(client, path, method):
    messages = [b'{"n": %d, "text": "%b"}' % (number, b"x" * (number % 50)) for number in range(60_000)]
    if method == "POST":
        client.put(path, b"", JSON)
    answer = client(method, path, b"[\n" + b" ,\n".join(messages) + b"\n]", content_type=JSON)
    assert answer.status == (201 if method == "PUT" else 204)
    assert int(answer["Stream-Next-Offset"]) == sum(map(len, messages)) > 2 << 20
    assert client.get(path).body == b"[" + b",".join(messages) + b"]"


def test_a_large_body_that_is_refused_leaves_nothing(client, path):
    client.put(path, b"hello")
    large = b"x" * (2 << 20)
    assert client.post(path, large, JSON).status == 409
    assert client.post(path, large, if_match='"stale"').status == 412
    assert client.put(path, large).status == 200
    assert client.get(path).body == b"hello"
    assert client.post(path, b"!").status == 204


def test_a_body_over_the_limit_is_413(server, connect):
    client = connect(server({"append_bytes_max": "1KiB"}))
    client.put("/v1/stream/a")
    assert client.post("/v1/stream/a", b"x" * 1024).status == 204
    answer = client.post("/v1/stream/a", b"x" * 1025)
    assert (answer.status, answer.code()) == (413, "body_too_large")


# --- metadata and lifetimes


def test_head_tells_everything_and_sends_nothing(client, path):
    client.put(path, b"hello", stream_closed="true")
    answer = client.head(path)
    assert (answer.status, answer.body) == (200, b"")
    assert answer["Content-Type"] == TEXT
    assert answer["Stream-Next-Offset"] == "00000000000000000005"
    assert answer["Stream-Closed"] == "true"
    assert answer["Cache-Control"] == "no-store"
    assert (answer["Stream-TTL"], answer["Stream-Expires-At"]) == (None, None)
    assert client.head(path + "-missing").status == 404


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_queries_are_looked_at_before_streams(client, path, method):
    """HEAD and GET check in the same order."""
    client.put(path, b"hello")
    old = client.head(path)["Stream-Id"]
    assert client(method, f"{path}-missing?offset=x&stream-id={old}").status == 400
    assert client(method, f"{path}-missing?stream-id={old}").status == 404


def test_head_has_no_length_and_the_tag_of_the_state(client, path):
    """GET's length is not known without reading; zero would be a lie (RFC 9110, section 8.6)."""
    written = client.put(path, b"hello")
    head = client.head(path)
    assert (head["Content-Length"], head["Transfer-Encoding"]) == (None, None)
    assert head["ETag"] == written["ETag"] != client.get(path)["ETag"]
    assert int(client.head(path + "-missing")["Content-Length"]) == len(client.get(path + "-missing").body)


def test_a_ttl_is_never_shown_as_more_than_it_is(server, connect):
    """After a kill a deadline may lie a little later than it did."""
    running = server()
    path = "/v1/stream/kept"
    connect(running).put(path, b"hello", stream_ttl="3600")
    running.kill()
    running.start()
    client = connect(running)
    assert int(client.head(path)["Stream-TTL"]) <= 3600
    assert client.put(path, stream_ttl="3600").status == 200


def test_a_ttl_counts_down_and_reads_renew_it_but_head_does_not(client, path):
    client.put(path, b"hello", stream_ttl="100")
    assert client.head(path)["Stream-TTL"] == "100"
    time.sleep(1.05)
    assert 90 < int(client.head(path)["Stream-TTL"]) <= 99
    assert 90 < int(client.head(path)["Stream-TTL"]) <= 99
    client.get(path)
    assert client.head(path)["Stream-TTL"] == "100"


def test_caches_never_keep_a_range_longer_than_the_stream_lives(client, path):
    client.put(path, b"hello", stream_ttl="100")
    assert client.get(path)["Cache-Control"] == "public, max-age=60, stale-while-revalidate=40"
    client.put(path + "-ever", b"hello")
    assert client.get(path + "-ever")["Cache-Control"] == "public, max-age=60, stale-while-revalidate=300"


def test_an_expiry_comes_back_as_the_same_moment(client, path):
    client.put(path, stream_expires_at="2130-01-31T13:00:00.5+01:00")
    said = client.head(path)["Stream-Expires-At"]
    assert said == "2130-01-31T12:00:00.500Z"
    assert client.put(path, stream_expires_at=said).status == 200
    assert client.put(path, stream_expires_at="2130-01-31T12:00:00.501Z").status == 409
    assert client.put(path).status == 409


def test_expiry_ends_a_live_read_and_frees_the_name(client, path):
    client.put(path, b"hello", stream_ttl="1")
    started = time.monotonic()
    feed = client.follow(f"{path}?offset=-1&live=sse")
    waiting = client.send("GET", f"{path}?offset=5&live=long-poll&timeout_ms=9000")
    assert data(feed.rest()) == ["hello"]
    expired = waiting.answer()
    assert (expired.status, b"has expired" in expired.body) == (404, True)
    assert 0.9 < time.monotonic() - started < 5
    assert client.get(path).status == 404
    assert client.put(path, b"another", JSON).status == 400
    assert client.put(path, b"another").status == 201
