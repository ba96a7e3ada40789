"""Catch-up reads: ranges, tags, compression, incarnations."""

from __future__ import annotations

import gzip
import json
import time

import pytest
import zstandard
from tests.server.surface.client import (
    JSON,
    TEXT,
    control,
    tag_of,
    varies,
)

# --- compression


LONG = b"abcdefgh" * 128  # 1 KiB exactly


@pytest.mark.parametrize(
    ("accepted", "encoding", "unpack"),
    [
        ("gzip", "gzip", gzip.decompress),
        ("zstd", "zstd", zstandard.decompress),
        ("deflate, GZIP;q=0.5", "gzip", gzip.decompress),
        ("gzip, deflate, br, zstd", "zstd", zstandard.decompress),
        ("zstd;q=0, gzip", "gzip", gzip.decompress),
    ],
)
def test_a_body_of_a_kibibyte_is_compressed(client, path, accepted, encoding, unpack):
    client.put(path, LONG)
    plain, packed = client.get(path), client.get(path, accept_encoding=accepted)
    assert packed["Content-Encoding"] == encoding
    assert unpack(packed.body) == LONG
    assert len(packed.body) < len(LONG)
    assert "Accept-Encoding" in varies(packed)
    assert tag_of(packed) == "W/" + tag_of(plain)
    assert packed["Content-Type"] == TEXT
    assert packed["Stream-Next-Offset"] == plain["Stream-Next-Offset"]


def test_a_smaller_body_is_not(client, path):
    client.put(path, LONG[1:])
    answer = client.get(path, accept_encoding="gzip, zstd")
    assert (answer["Content-Encoding"], answer.body) == (None, LONG[1:])
    assert "Accept-Encoding" in varies(answer)
    assert not tag_of(answer).startswith("W/")


@pytest.mark.parametrize("accepted", ["identity", "br", "gzip;q=0", "gzip; q=0.0, zstd;q=0", ""])
def test_nor_is_one_for_a_client_that_cannot_unpack_it(client, path, accepted):
    client.put(path, LONG)
    answer = client.get(path, accept_encoding=accepted)
    assert (answer["Content-Encoding"], answer.body) == (None, LONG)


def test_without_accept_encoding_nothing_is_compressed(client, path):
    client.put(path, LONG)
    assert (client.get(path)["Content-Encoding"], client.get(path).body) == (None, LONG)


def test_json_is_compressed_as_the_array_it_is_read_as(client, path):
    messages = [{"n": number} for number in range(500)]
    client.put(path, json.dumps(messages).encode(), JSON)
    packed = client.get(path, accept_encoding="gzip")
    assert json.loads(gzip.decompress(packed.body)) == messages


# --- entity tags


def test_what_has_not_changed_is_not_sent_again(client, path):
    client.put(path, b"hello")
    first = client.get(path)
    again = client.get(path, if_none_match=tag_of(first))
    assert (again.status, again.body) == (304, b"")
    assert again["ETag"] == tag_of(first)
    assert again["Stream-Next-Offset"] == first["Stream-Next-Offset"]
    assert again["Cache-Control"] == first["Cache-Control"]
    assert client.get(path, if_none_match=f'"other", W/{tag_of(first)}').status == 304
    assert client.get(path, if_none_match="*").status == 304
    assert client.get(path, if_none_match='"other"').status == 200


def test_the_tag_of_a_compressed_answer_is_good_for_304(client, path):
    client.put(path, LONG)
    packed = client.get(path, accept_encoding="gzip")
    assert client.get(path, accept_encoding="gzip", if_none_match=tag_of(packed)).status == 304


def test_a_304_varies_as_the_200_would(client, path):
    """RFC 9110 section 15.4.5: a 304 has the Vary that the 200 would have had."""
    client.put(path, LONG)
    packed = client.get(path, accept_encoding="gzip")
    again = client.get(path, accept_encoding="gzip", if_none_match=tag_of(packed))
    assert (again.status, varies(again)) == (304, varies(packed))


def test_new_data_changes_the_tag(client, path):
    client.put(path, b"hello")
    before = tag_of(client.get(path))
    client.post(path, b"!")
    assert client.get(path, if_none_match=before).body == b"hello!"


def test_closing_changes_every_tag(client, path):
    """Or a cache would hide the end of the stream (protocol section 8.1)."""
    client.put(path, b"hello")
    read, head = tag_of(client.get(path)), tag_of(client.head(path))
    at_tail = tag_of(client.get(f"{path}?offset=5"))
    client.close_stream(path)
    for answer in (
        client.get(path, if_none_match=read),
        client.get(f"{path}?offset=5", if_none_match=at_tail),
        client.head(path, if_none_match=head),
    ):
        assert (answer.status, answer["Stream-Closed"]) == (200, "true")
        assert tag_of(answer).endswith(':c"')


def test_head_knows_304_too(client, path):
    client.put(path, b"hello")
    tag = tag_of(client.head(path))
    assert client.head(path, if_none_match=tag).status == 304
    client.post(path, b"!")
    assert client.head(path, if_none_match=tag).status == 200


@pytest.mark.parametrize("source", ["HEAD", "GET", "POST", "PUT"])
def test_an_append_may_depend_on_a_state_seen_before(client, path, source):
    created = client.put(path, b"hello")
    tag = {
        "PUT": lambda: tag_of(created),
        "POST": lambda: tag_of(client.post(path, b"!")),
        "GET": lambda: tag_of(client.get(path)),
        "HEAD": lambda: tag_of(client.head(path)),
    }[source]()
    assert client.post(path, b"?", if_match=tag).status == 204
    late = client.post(path, b"?", if_match=tag)
    assert (late.status, late.code()) == (412, "precondition_failed")


def test_a_create_may_depend_on_a_state_too(client, path):
    tag = tag_of(client.put(path, b"hello"))
    assert client.put(path, if_match=tag).status == 200
    client.post(path, b"!")
    assert client.put(path, if_match=tag).status == 412
    assert client.put(path + "-missing", if_match="*").status == 412


# --- reading ranges


def test_pages_of_bytes(client, path):
    client.put(path, b"hello world")
    read, offset = b"", "-1"
    for _ in range(3):
        page = client.get(f"{path}?offset={offset}&max_bytes=4")
        assert len(page.body) <= 4
        read, offset = read + page.body, page["Stream-Next-Offset"]
    assert (read, page["Stream-Up-To-Date"]) == (b"hello world", "true")
    assert client.get(f"{path}?max_bytes=4")["Stream-Up-To-Date"] is None


def test_pages_of_messages_hold_at_least_one(client, path):
    client.put(path, b'["a long one", 2, 3]', JSON)
    first = client.get(f"{path}?max_bytes=1")
    assert first.body == b'["a long one"]'
    second = client.get(f"{path}?max_bytes=2&offset={first['Stream-Next-Offset']}")
    assert (second.body, second["Stream-Up-To-Date"]) == (b"[2,3]", "true")


def test_the_end_is_only_announced_on_the_last_page(client, path):
    client.put(path, b"hello", stream_closed="true")
    first = client.get(f"{path}?max_bytes=3")
    assert (first.body, first["Stream-Closed"]) == (b"hel", None)
    last = client.get(f"{path}?offset={first['Stream-Next-Offset']}")
    assert (last.body, last["Stream-Closed"]) == (b"lo", "true")
    end = client.get(f"{path}?offset={last['Stream-Next-Offset']}")
    assert (end.status, end.body, end["Stream-Closed"]) == (200, b"", "true")


def test_at_the_tail_there_is_an_empty_answer(client, path):
    client.put(path, b"hello")
    client.put(path + "-json", b"[1]", JSON)
    bytes_tail, json_tail = client.get(f"{path}?offset=5"), client.get(f"{path}-json?offset=1")
    assert (bytes_tail.status, bytes_tail.body, bytes_tail["Stream-Up-To-Date"]) == (200, b"", "true")
    assert (json_tail.status, json_tail.body, json_tail["Stream-Up-To-Date"]) == (200, b"[]", "true")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("offset=", "bad_offset"),
        ("offset=abc", "bad_offset"),
        ("offset=-1&offset=-1", "repeated_parameter"),
        ("offset=6", "offset_beyond_tail"),
        ("offset=99999999999999999999", "offset_beyond_tail"),
        ("offset=6&live=long-poll", "offset_beyond_tail"),
        ("offset=6&live=sse", "offset_beyond_tail"),
        ("live=sse", "offset_missing"),
        ("live=long-poll", "offset_missing"),
        ("offset=-1&live=websocket", "bad_live"),
        ("max_bytes=0", "bad_max_bytes"),
        ("timeout_ms=x", "bad_timeout_ms"),
    ],
)
def test_a_bad_query_is_400_at_once(client, path, query, code):
    client.put(path, b"hello")
    answer = client.get(f"{path}?{query}")
    assert (answer.status, answer.code()) == (400, code)


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
def test_an_offset_inside_a_json_message_is_400(client, path, live):
    client.put(path, b'[{"a":1},2]', JSON)
    answer = client.get(f"{path}?offset=3{live}")
    assert (answer.status, answer.code()) == (400, "offset_not_a_boundary")


def test_the_other_form_of_offsets_is_understood(client, path):
    client.put(path, b"hello")
    assert client.get(f"{path}?offset=0000000000000000_0000000000000002").body == b"llo"


# --- offset=now


@pytest.mark.parametrize(("content_type", "body", "empty"), [(TEXT, b"hello", b""), (JSON, b"[1]", b"[]")])
def test_now_skips_everything(client, path, content_type, body, empty):
    client.put(path, body, content_type)
    answer = client.get(f"{path}?offset=now")
    assert (answer.status, answer.body, answer["Stream-Up-To-Date"]) == (200, empty, "true")
    assert answer["Stream-Next-Offset"] == client.head(path)["Stream-Next-Offset"]
    assert (answer["Cache-Control"], answer["ETag"], answer["Stream-Closed"]) == ("no-store", None, None)
    assert answer["Content-Type"] == content_type


def test_now_on_a_closed_stream_says_so_in_every_mode(client, path):
    client.put(path, b"hello", stream_closed="true")
    plain = client.get(f"{path}?offset=now")
    assert (plain.status, plain.body, plain["Stream-Closed"]) == (200, b"", "true")
    polled = client.get(f"{path}?offset=now&live=long-poll&timeout_ms=60000")
    assert (polled.status, polled["Stream-Closed"], polled["Stream-Up-To-Date"]) == (204, "true", "true")
    assert polled["Stream-Next-Offset"] == "00000000000000000005"
    feed = client.follow(f"{path}?offset=now&live=sse")
    assert (feed.headers["Stream-Closed"], feed.headers["Stream-Up-To-Date"]) == ("true", "true")
    [event] = feed.rest()
    assert control(event) == {
        "streamNextOffset": "00000000000000000005",
        "upToDate": True,
        "streamClosed": True,
    }


def test_now_waits_for_what_comes(client, path):
    client.put(path, b"hello")
    waiting = client.send("GET", f"{path}?offset=now&live=long-poll&timeout_ms=10000")
    feed = client.follow(f"{path}?offset=now&live=sse")
    assert control(feed.next())["streamNextOffset"] == "00000000000000000005"
    time.sleep(0.1)  # the long-poll has no first answer to wait for
    client.post(path, b"new")
    assert waiting.answer().body == b"new"
    assert feed.next().data == "new"


def test_what_now_waited_for_is_not_kept_by_caches(client, path):
    """The same URL means another place a second later (protocol section 8.1; `offset=now`: no-store, no ETag)."""
    client.put(path, b"hello")
    waiting = client.send("GET", f"{path}?offset=now&live=long-poll&timeout_ms=10000")
    time.sleep(0.1)
    client.post(path, b"new")
    answer = waiting.answer()
    assert (answer.status, answer.body) == (200, b"new")
    assert (answer["Cache-Control"], answer["ETag"]) == ("no-store", None)


# --- incarnations


def test_a_stream_that_was_created_anew_is_another(client, path):
    client.put(path, b"old")
    old = client.get(path)["Stream-Id"]
    assert client.get(f"{path}?offset=1&stream-id={old}").body == b"ld"
    client.delete(path)
    client.put(path, b"new")
    new = client.head(path)["Stream-Id"]
    assert old != new
    for query in ("", "&live=long-poll", "&live=sse"):
        answer = client.get(f"{path}?offset=1&stream-id={old}{query}")
        assert (answer.status, answer.code()) == (410, "stream_recreated")
    assert client.head(f"{path}?stream-id={old}").status == 410
    assert client.get(f"{path}?offset=1&stream-id={new}").body == b"ew"


def test_every_answer_names_the_incarnation(client, path):
    answers = [client.put(path, b"x"), client.put(path), client.post(path, b"y"), client.get(path), client.head(path)]
    answers += [client.get(f"{path}?offset=2&live=long-poll&timeout_ms=0"), client.close_stream(path)]
    ids = {answer["Stream-Id"] for answer in answers}
    ids.add(client.follow(f"{path}?offset=-1&live=sse").headers["Stream-Id"])
    ids.add(client.delete(path)["Stream-Id"])
    assert len(ids) == 1
    assert None not in ids
