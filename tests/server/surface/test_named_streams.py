"""Requests that name the one stream they are about (`stream-id=`), and those that would be another request."""

from __future__ import annotations

import pytest
from tests.server.surface.client import control, data


@pytest.fixture
def bucket(client, path):
    name = "n" + str(abs(hash(path)))
    assert client("PUT", f"/{name}").status == 201
    return name


@pytest.fixture
def taken(client, bucket):
    """A stream whose name was another's, and the id of that other."""
    stream = f"/{bucket}/s"
    old = client.put(stream, b"of the old")["Stream-Id"]
    client.delete(stream)
    client.put(stream, b"of the new")
    return stream, f"stream-id={old}"


WAYS = {
    "append": ("POST", "", b"more"),
    "create": ("PUT", "", b""),
    "delete": ("DELETE", "", None),
    "publish": ("PUT", "/snapshot/00000000000000000010", b"state"),
    "bootstrap": ("GET", "/bootstrap", None),
    "read": ("GET", "", None),
    "head": ("HEAD", "", None),
}


@pytest.mark.parametrize(("method", "below", "body"), WAYS.values(), ids=WAYS)
def test_another_stream_of_that_name_is_not_meant(client, taken, method, below, body):
    stream, old = taken
    headers = {} if body is None else {"content_type": "text/plain"}
    refused = client(method, f"{stream}{below}?{old}", body, **headers)
    assert refused.status == 410
    if method != "HEAD":
        assert refused.code() == "stream_recreated"
    assert client.get(stream).body == b"of the new"
    assert client.get(f"{stream}/snapshot").status == 404


def test_the_stream_itself_is_meant(client, taken):
    stream, _ = taken
    this = f"stream-id={client.head(stream)['Stream-Id']}"
    assert client.post(f"{stream}?{this}", b"!").status == 204
    assert client.put(f"{stream}/snapshot/00000000000000000011?{this}", b"state").status == 204
    assert client.get(f"{stream}/snapshot?{this}").status == 307
    assert client.get(f"{stream}/bootstrap?{this}").status == 200
    assert client.delete(f"{stream}?{this}").status == 204
    assert client.put(f"{stream}?{this}").status == 410, "it is not made again under its old name"


@pytest.mark.parametrize("parameter", ["record=1", "tail_records=1", "record_view=full"])
@pytest.mark.parametrize(
    ("method", "below"), [("POST", ""), ("DELETE", ""), ("GET", "/bootstrap"), ("GET", "/snapshot")]
)
def test_parameters_of_others_are_refused_everywhere(client, bucket, method, below, parameter):
    stream = f"/{bucket}/s"
    client.put(stream, b"kept")
    refused = client(method, f"{stream}{below}?{parameter}", b"x" if method == "POST" else None)
    assert (refused.status, refused.code()) == (501, "not_supported")
    assert client.get(stream).body == b"kept"


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_what_may_be_done_only_if_nothing_is_there_is_not_done(client, path, method):
    client.put(path, b"kept")
    body = b"x" if method == "POST" else None
    assert client(method, path, body, content_type="text/plain", if_none_match="*").status == 412
    assert client(method, path, body, content_type="text/plain", if_none_match=client.head(path)["ETag"]).status == 412
    assert client.get(path).body == b"kept"
    assert client(method, path, body, content_type="text/plain", if_none_match='"another"').status == 204


def test_a_bucket_that_is_not_there_matches_nothing(client, bucket):
    assert client("PUT", f"/{bucket}x", if_match="*").status == 412
    assert client.get(f"/{bucket}x").status == 404


def test_a_stream_without_a_type_is_found_again_whatever_its_bucket_says_since(client, bucket):
    stream = f"/{bucket}/s"
    assert client("PUT", stream).status == 201
    assert client("PATCH", f"/{bucket}", b'{"content_type": "text/plain"}').status == 200
    assert client("PUT", stream).status == 200
    assert client.post(stream, b"[1]", "application/json").status == 204
    assert client("PUT", stream).status == 200


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_settings_come_as_they_are(client, bucket, method):
    name = bucket if method == "PATCH" else f"{bucket}x"
    refused = client(method, f"/{name}", b"{}", content_encoding="gzip")
    assert (refused.status, refused.code()) == (415, "unsupported_encoding")


def test_a_location_leads_to_what_was_created(client, path):
    created = client.put(f'{path}\\a"<b>|^`{{}}', b"there")
    assert created.status == 201
    assert created["Location"].endswith("%5Ca%22%3Cb%3E%7C%5E%60%7B%7D")
    assert client.get(created["Location"].partition("//")[2].partition("/")[2].join(["/", ""])).body == b"there"


def test_whatever_begins_with_two_underscores_is_nothing(client):
    for path in ("/__x", "/__x/y", "/__ursula/metrics"):
        assert client.get(path).status == 404
        assert client.put(path).status == 404


@pytest.mark.parametrize(("tail", "rest", "sent"), [(b"a\xe2\x82", b"\xacz", "€z"), (b"a\r", b"\nz", "\nz")])
def test_events_from_now_on_break_no_character_either(client, path, tail, rest, sent):
    client.put(path, tail)
    feed = client.follow(f"{path}?offset=now&live=sse")
    assert control(feed.next())["streamNextOffset"] == f"{1:020d}"
    client.post(path, rest)
    assert data([feed.next()]) == [sent]
