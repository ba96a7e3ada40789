"""Conditional requests: what is done only if the stream, the snapshot or the bucket is as it was seen."""

from __future__ import annotations

import pytest

STALE = '"00000000-1:99"'


@pytest.fixture
def bucket(client, path):
    """A bucket of the story's own."""
    name = "b" + str(abs(hash(path)))
    assert client("PUT", f"/{name}").status == 201
    return name


@pytest.mark.parametrize("seen_by", ["HEAD", "GET"])
def test_a_stream_that_has_changed_is_not_deleted(client, path, seen_by):
    client.put(path, b"hello")
    seen = client(seen_by, path)["ETag"]
    client.post(path, b"!")
    refused = client.delete(path, if_match=seen)
    assert (refused.status, refused.code()) == (412, "precondition_failed")
    assert client.get(path).body == b"hello!"
    assert client.delete(path, if_match=f"{STALE}, {client(seen_by, path)['ETag']}").status == 204
    assert client.delete(path, if_match="*").status == 404


def test_the_tag_of_a_read_that_has_missed_the_closing_deletes_nothing(client, path):
    client.put(path, b"hello")
    seen = client.get(path)["ETag"]
    client.close_stream(path)
    assert client.delete(path, if_match=seen).status == 412
    assert client.delete(path, if_match=client.get(f"{path}?offset=2")["ETag"]).status == 204


def test_a_stream_is_created_only_if_there_is_none(client, path):
    assert client.put(path, b"hello", if_none_match="*").status == 201
    again = client.put(path, b"hello", if_none_match="*")
    assert (again.status, again.code()) == (412, "precondition_failed")
    assert client.put(path, b"hello", if_none_match=STALE).status == 200


def test_a_snapshot_is_published_only_over_the_one_that_was_seen(client, bucket):
    stream = f"/{bucket}/s"
    client.put(stream, b"hello")
    latest = f"{stream}/snapshot/00000000000000000005"
    assert client.put(latest, b"state", if_match="*").status == 412
    assert client.get(latest).status == 404
    assert client.put(latest, b"state").status == 204
    seen = client.get(latest)["ETag"]
    assert client.put(latest, b"state", if_match=STALE).status == 412
    assert client.put(latest, b"state", if_match=seen).status == 204
    assert client.delete(latest, if_match=STALE).status == 412
    assert client.delete(latest, if_match=seen).status == 409


def test_no_tag_matches_a_bucket_as_it_has_none(client, bucket):
    assert client.get(f"/{bucket}")["ETag"] is None
    assert client.delete(f"/{bucket}", if_match=STALE).status == 412
    assert client("PATCH", f"/{bucket}", b'{"ttl_seconds":9}', if_match=STALE).status == 412
    assert client.get(f"/{bucket}").body.count(b'"ttl_seconds":null') == 1
    assert client.delete(f"/{bucket}", if_match="*").status == 204
