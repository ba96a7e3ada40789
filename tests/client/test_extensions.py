"""Buckets, listings, snapshots, bootstrap, feed, bulk reads and plans, with both clients against a real server."""

from __future__ import annotations

import time
import uuid

import pytest
from tests.client.proxy import Fault
from tests.client.test_reading import meanwhile

from millstream.client import (
    NOW,
    AlreadyExists,
    BadRequest,
    Conflict,
    ConnectionLost,
    Gone,
    NotFound,
    PositionGone,
    Trimmed,
)


@pytest.fixture
def bucket(client):
    made = client.bucket("b" + uuid.uuid4().hex[:12])
    made.create()
    return made


@pytest.fixture
def stream(bucket):
    made = bucket.stream("one")
    made.create("application/json")
    return made


# --- buckets


def test_the_life_of_a_bucket(client):
    bucket = client.bucket("b" + uuid.uuid4().hex[:12])
    with pytest.raises(NotFound):
        bucket.get()
    bucket.create(content_type="application/json", ttl_seconds=3600)
    with pytest.raises(AlreadyExists):
        bucket.create()
    bucket.change(ttl_seconds=None, caching="private")
    settings = bucket.get().settings
    assert (settings["content_type"], settings["ttl_seconds"], settings["caching"]) == (
        "application/json",
        None,
        "private",
    )
    assert bucket.stream("a").create().content_type == "application/json"
    with pytest.raises(Conflict):
        bucket.delete()
    bucket.stream("a").delete()
    bucket.delete()
    with pytest.raises(BadRequest):
        client.bucket("no").create()


def test_listing_page_by_page(bucket):
    names = [f"s{number:04d}" for number in range(12)]
    for each in names:
        bucket.stream(each).create("text/plain", body=each, closed=each == "s0003")
    assert [found.stream_id for found in bucket.streams()] == names
    assert [found.stream_id for found in bucket.streams("s000", after="s0004", limit=3)] == names[5:8]
    found = next(found for found in bucket.streams("s0003"))
    assert (found.closed, found.tail_offset, found.content_type) == (True, 5, "text/plain")
    assert bucket.get().streams == 12


def test_a_lost_answer_to_a_create_is_no_conflict(through_proxy, proxy):
    bucket = through_proxy.bucket("b" + uuid.uuid4().hex[:12])
    proxy.add(Fault(lose_answer=True))
    bucket.create()
    assert bucket.get().streams == 0
    proxy.add(Fault(lose_answer=True))
    bucket.delete()
    with pytest.raises(NotFound):
        bucket.get()


# --- snapshots


def test_the_life_of_a_snapshot(stream):
    assert stream.latest_snapshot() is None
    assert stream.read_snapshot() is None
    offset = stream.append_many([1, 2]).offset
    stream.append(3)
    stream.publish_snapshot(offset, b'{"sum":3}', content_type="application/json")
    stream.publish_snapshot(offset, b'{"sum":3}', content_type="application/json")
    assert stream.latest_snapshot() == offset
    for snapshot in (stream.read_snapshot(), stream.read_snapshot(offset)):
        assert (snapshot.data, snapshot.content_type, snapshot.offset) == (b'{"sum":3}', "application/json", offset)
        assert not snapshot.up_to_date
    assert list(stream.read(snapshot.next_offset).json()) == [3]
    with pytest.raises(Conflict):
        stream.delete_snapshot(offset)
    with pytest.raises((Gone, NotFound)):
        stream.publish_snapshot("00000000000000000000", b"older")
    assert stream.read_snapshot("00000000000000000000") is None


def test_trimmed_history(stream):
    offset = stream.append_many([1, 2]).offset
    stream.publish_snapshot(offset, b"3")
    with pytest.raises(Trimmed) as caught:
        list(stream.read())
    assert caught.value.earliest == offset
    assert stream.head().snapshot_offset == offset


def test_without_trim_history_stays(stream):
    offset = stream.append_many([1, 2]).offset
    stream.publish_snapshot(offset, b"3", trim=False)
    assert list(stream.read().json()) == [1, 2]


def test_bootstrap(stream):
    batches = list(stream.bootstrap())
    assert [(batch.kind, batch.data) for batch in batches] == [("snapshot", b"")]
    offset = stream.append_many([1, 2]).offset
    stream.publish_snapshot(offset, b"\r\n--odd bytes--\r\n", content_type="application/x-odd")
    stream.append_many([{"n": 3}, 4])
    reader = stream.bootstrap()
    first, *updates = list(reader)
    assert (first.kind, first.data, first.content_type) == ("snapshot", b"\r\n--odd bytes--\r\n", "application/x-odd")
    assert [update.json() for update in updates] == [[{"n": 3}], [4]]
    assert {update.kind for update in updates} == {"update"}
    assert reader.offset == stream.head().offset
    assert reader.up_to_date


@pytest.mark.parametrize("live", [False, True, "sse", "long-poll"])
def test_a_read_goes_over_trimmed_history_when_asked(stream, live):
    offset = stream.append_many([1, 2]).offset
    stream.publish_snapshot(offset, b'{"sum":3}')
    stream.append(4)
    with meanwhile(lambda: stream.append(5), stream.close):
        got = [(batch.kind, batch.data) for batch in stream.read(live=live, bootstrap=True)]
    assert got[:2] == [("snapshot", b'{"sum":3}'), ("update", b"4")]
    if live:
        assert got[2:] == [("data", b"[5]")]
    with pytest.raises(ValueError, match=r"batch\.kind"):
        list(stream.read(bootstrap=True).json())


def test_a_bootstrap_that_breaks_begins_again(through_proxy, proxy):
    bucket = through_proxy.bucket("b" + uuid.uuid4().hex[:12])
    bucket.create()
    stream = bucket.stream("one")
    stream.create("application/json", body=b"[1,2,3]")
    proxy.add(Fault(cut_after=800, matches=lambda seen: "bootstrap" in seen.target))
    kinds = [batch.kind for batch in stream.bootstrap()]
    assert kinds[-4:] == ["snapshot", "update", "update", "update"]


def test_snapshots_of_streams_on_the_flat_surface(client, name):
    stream = client.stream(name + "/with/slashes")
    offset = stream.create("application/json", body=b"[1]").offset
    stream.publish_snapshot(offset, b"1")
    assert stream.latest_snapshot() == offset
    assert [batch.data for batch in stream.bootstrap()] == [b"1"]


# --- feed


def test_what_happens_in_a_bucket(bucket, stream):
    stream.append_many([1, {"two": 2}])
    other = bucket.stream("two")
    other.create("text/plain", body="text")
    other.close()
    feed = bucket.feed(data=True)
    entries = list(feed)
    assert [(entry.stream, entry.kind) for entry in entries] == [
        ("one", "created"),
        ("one", "appended"),
        ("two", "created"),
        ("two", "appended"),
        ("two", "closed"),
    ]
    assert [entry.values() for entry in entries if entry.kind == "appended"] == [[1, {"two": 2}], [b"text"]]
    assert feed.up_to_date
    stream.delete()
    assert [(entry.stream, entry.kind) for entry in bucket.feed(feed.position)] == [("one", "deleted")]
    assert [entry.kind for entry in bucket.feed(prefix="tw", limit=2)] == ["created", "appended", "closed"]
    with pytest.raises(BadRequest):
        list(bucket.feed("nonsense"))
    with pytest.raises((PositionGone, BadRequest)):
        list(bucket.feed("ffffffffffffffff.1"))


@pytest.mark.parametrize("live", [True, "sse", "long-poll"])
def test_following_a_bucket(bucket, stream, live):
    acts = [lambda n=n: bucket.stream(f"s{n}").create("application/json", body=[n]) for n in range(5)]
    with meanwhile(*acts), bucket.feed(NOW, data=True, live=live) as feed:
        got = []
        for entry in feed:
            got += entry.values()
            if len(got) == 5:
                break
    assert got == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_feed_reconnects_and_ends_when_idle(through_proxy, proxy, live):
    bucket = through_proxy.bucket("b" + uuid.uuid4().hex[:12])
    bucket.create()
    for number in range(30):
        bucket.stream(f"s{number:02d}").create("text/plain")
    for cut_after in (300, 900, 1500, 2500):
        proxy.add(Fault(cut_after=cut_after, matches=lambda seen: "live=" in seen.target))
    proxy.add(Fault(status=503, matches=lambda seen: "live=" in seen.target))
    started = time.monotonic()
    entries = list(bucket.feed(live=live, limit=7, idle_s=0.5))
    assert [entry.stream for entry in entries] == [f"s{number:02d}" for number in range(30)]
    assert time.monotonic() - started < 10


# --- bulk reads


def test_every_message_of_a_bucket(bucket, stream):
    stream.append_many([1, {"two": 2}])
    bucket.stream("two").create("application/octet-stream", body=bytes(range(256)))
    rows = bucket.messages()
    got = [(row.stream, row.kind, row.data()) for row in rows]
    assert got == [
        ("one", "message", b"1"),
        ("one", "message", b'{"two":2}'),
        ("two", "message", bytes(range(256))),
    ]
    stream.append(3)
    assert [row.data() for row in bucket.messages(rows.next_position)] == [b"3"]
    assert [row.data() for row in bucket.messages(until=rows.next_position, prefix="tw")] == [bytes(range(256))]


def test_as_arrow(bucket, stream):
    stream.append_many(range(1000))
    reader = bucket.record_batches()
    tables = list(reader)
    values = [value for batch in tables for value in batch.column("value").to_pylist()]
    assert values == [str(number).encode() for number in range(1000)]
    assert list(bucket.record_batches(reader.next_position, prefix="none")) == []


def test_a_plan_and_its_lease(bucket, stream):
    stream.append_many(range(10))
    plan = bucket.plan()
    assert (plan.messages, plan.up_to_date) == (10, True)
    assert [part.kind for part in plan.ranges] == ["hot"]
    assert bucket.renew_lease(plan.lease).expires_at_ms >= plan.lease.expires_at_ms
    bucket.give_back_lease(plan.lease)
    bucket.give_back_lease(plan.lease)
    with pytest.raises(NotFound):
        bucket.renew_lease(plan.lease)


def test_a_bulk_read_that_breaks_is_no_short_one(through_proxy, proxy):
    bucket = through_proxy.bucket("b" + uuid.uuid4().hex[:12])
    bucket.create()
    bucket.stream("one").create("application/json", body=list(range(1)))
    bucket.stream("one").append_many(range(2000))
    proxy.add(Fault(cut_after=5000, matches=lambda seen: "messages" in seen.target))
    with pytest.raises(ConnectionLost, match="broke"):
        list(bucket.messages())
