"""Streams: create, head, append, close, delete, with both clients against a real server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from millstream.client import (
    AlreadyExists,
    BadRequest,
    Client,
    Conflict,
    NotFound,
    PreconditionFailed,
    SequenceConflict,
    StreamClosed,
)


def test_create_then_create_again(client, name):
    stream = client.stream(name)
    first = stream.create("text/plain")
    again = stream.create("text/plain")
    assert (first.created, again.created) == (True, False)
    assert first.stream_id == again.stream_id
    with pytest.raises(AlreadyExists):
        stream.create("application/json")


def test_create_with_everything(client, name):
    stream = client.stream(name)
    created = stream.create("text/plain", body="first words", ttl_s=3600, closed=True)
    assert created.closed
    head = stream.head()
    assert (head.content_type, head.closed, head.offset) == ("text/plain", True, created.offset)
    assert 3590 <= head.ttl_s <= 3600
    assert stream.read().read_all() == b"first words"


def test_expiry(client, name):
    moment = datetime.now(UTC) + timedelta(hours=1)
    client.stream(name).create("text/plain", expires_at=moment)
    assert client.stream(name).head().expires_at.startswith(moment.strftime("%Y-%m-%dT%H:%M"))
    with pytest.raises(ValueError, match="time zone"):
        client.stream(name).create("text/plain", expires_at=datetime(2030, 1, 1))


@pytest.mark.parametrize(
    ("content_type", "data", "stored"),
    [
        ("text/plain", "Grüße 🌊", "Grüße 🌊".encode()),
        ("application/octet-stream", bytes(range(256)), bytes(range(256))),
        ("application/octet-stream", b"x" * 3_000_000, b"x" * 3_000_000),
        ("application/json", {"a": [1, 2]}, b'[{"a":[1,2]}]'),
        ("application/json", [1, 2], b"[[1,2]]"),
        ("application/json", "text", b'["text"]'),
        ("application/json", None, b"[null]"),
        ("application/json", b"[1,2]", b"[1,2]"),
        ("application/json; charset=utf-8", 7, b"[7]"),
    ],
)
def test_what_is_appended_is_there(client, name, content_type, data, stored):
    stream = client.stream(name)
    stream.create(content_type)
    done = stream.append(data)
    assert done.offset == stream.head().offset
    assert stream.read().read_all() == stored


def test_append_many_is_one_append(client, name):
    stream = client.stream(name)
    stream.create("application/json")
    stream.append_many([1, [2], {"three": 3}, b'{"four":4}'])
    assert list(stream.read().json()) == [1, [2], {"three": 3}, {"four": 4}]


def test_an_append_learns_the_content_type(client, make_client, name):
    client.stream(name).create("application/json")
    other = make_client(client.base_url).stream(name)
    other.append({"from": "elsewhere"})
    assert other.content_type() == "application/json"


def test_values_need_a_json_stream(client, name):
    stream = client.stream(name)
    stream.create("text/plain")
    with pytest.raises(TypeError, match="application/json"):
        stream.append({"a": 1})
    with pytest.raises(ValueError, match="nothing to append"):
        stream.append(b"")


def test_errors_name_the_stream(client, name):
    stream = client.stream(name)
    for act in (stream.head, stream.delete, lambda: stream.append(b"x"), lambda: list(stream.read())):
        with pytest.raises(NotFound, match=name) as caught:
            act()
        assert caught.value.status == 404
    assert not stream.exists()


def test_another_content_type_is_a_conflict(client, name):
    client.stream(name).create("text/plain")
    with pytest.raises(Conflict) as caught:
        client.stream(name).append(b"{}", content_type="application/json")
    assert type(caught.value) is Conflict
    assert caught.value.code == "content_type_mismatch"


def test_invalid_json_is_refused(client, name):
    client.stream(name).create("application/json")
    with pytest.raises(BadRequest):
        client.stream(name).append(b"{not json")


def test_stream_seq_must_grow(client, name):
    stream = client.stream(name)
    stream.create("text/plain")
    stream.append("a", seq="0001")
    stream.append("b", seq="0010")
    for seq in ("0010", "0002"):
        with pytest.raises(SequenceConflict):
            stream.append("c", seq=seq)
    assert stream.read().read_all() == b"ab"


def test_append_only_in_a_known_state(client, name):
    stream = client.stream(name)
    tag = stream.create("text/plain").etag
    stream.append("a", if_match=tag)
    with pytest.raises(PreconditionFailed):
        stream.append("b", if_match=tag)


def test_close_is_for_ever(client, name):
    stream = client.stream(name)
    stream.create("text/plain")
    done = stream.close("the end")
    assert done.closed
    assert stream.close().closed
    with pytest.raises(StreamClosed) as caught:
        stream.append("more")
    assert caught.value.offset == done.offset == stream.head().offset
    assert stream.head().closed


def test_delete_then_create_is_another_stream(client, name):
    stream = client.stream(name)
    first = stream.create("text/plain")
    stream.delete()
    assert not stream.exists()
    assert stream.create("application/json").stream_id != first.stream_id
    stream.append({"type": "was learnt anew"})


@pytest.mark.parametrize("name", ["a/../victim", "..", "a/.", "../../metrics", "chat/./x"])
def test_a_name_that_leads_elsewhere_is_refused_before_anything_is_sent(shared, name):
    with Client(shared.url) as client, pytest.raises(ValueError, match="name"):
        client.stream(name)


def test_names_and_urls(shared):
    with Client(shared.url) as client:
        assert client.stream("a/b c").url == f"{shared.url}/v1/stream/a/b%20c"
        assert client.stream("https://elsewhere.example/x/y").url == "https://elsewhere.example/x/y"
        assert client.bucket("agents").stream("a/b").url == f"{shared.url}/ds/agents/a%2Fb"
        for bad in ("", "/"):
            with pytest.raises(ValueError, match="needs a name"):
                client.stream(bad)
    for bad in ("127.0.0.1:4437", "ftp://x", "http://x/?a=b"):
        with pytest.raises(ValueError, match=bad.replace("?", r"\?")):
            Client(bad)


def test_every_stream_name_arrives_as_it_is(client):
    for odd in ("grüße", "a b", "50%", "plus+", "q?x=1", "hash#1", "a&b", "a:b@c"):
        client.stream(odd).create("text/plain", body=odd)
        assert client.bucket("_default").stream(odd).read().read_all() == odd.encode()
        assert odd in [found.stream_id for found in client.bucket("_default").streams(odd)]
