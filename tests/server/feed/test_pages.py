"""The bucket feed over HTTP: what it tells, and from where."""

import base64
import time

import httpx
import pytest
from tests.server.feed.bucket import Bucket, names
from tests.server.settling import settle

KINDS = ("position", "stream", "kind", "first_offset", "next_offset", "timestamp_ms", "content_type")


def test_every_change_is_an_entry_in_commit_order(bucket):
    bucket.create("a", b"one")
    bucket.append("a", b"two")
    bucket.create("b", b"[1,2]", "application/json")
    bucket.append("a", b"three", **{"Stream-Closed": "true"})
    bucket.close("b")
    snapshot = f"{bucket.base}/a/snapshot/{3:020d}"
    assert bucket.client.put(snapshot, content=b"state", headers={"Content-Type": "text/plain"}).status_code < 300
    bucket.delete("b")
    bucket.settle()
    entries = bucket.entries()
    assert [(e["stream"], e["kind"], e["first_offset"], e["next_offset"]) for e in entries] == [
        ("a", "created", 0, 0),
        ("a", "appended", 0, 3),
        ("a", "appended", 3, 6),
        ("b", "created", 0, 0),
        ("b", "appended", 0, 2),
        ("a", "appended", 6, 11),
        ("a", "closed", 11, 11),
        ("b", "closed", 2, 2),
        ("a", "snapshot", 3, 3),
        ("b", "deleted", 2, 2),
    ]
    assert all(tuple(entry) == KINDS for entry in entries)
    assert entries[5]["position"] == entries[6]["position"]
    times = [entry["timestamp_ms"] for entry in entries]
    assert times == sorted(times)
    assert abs(times[-1] / 1000 - time.time()) < 60


def test_with_data_entries_carry_the_messages(bucket):
    bucket.create("text", b"first words")
    bucket.create("json", b'[{"n": 1.0}, "two\\n"]', "application/json")
    bucket.append("json", b'{"odd":\n1e2}', "application/json")
    bucket.settle()
    text, first, second = [entry for entry in bucket.entries(data="true") if entry["kind"] == "appended"]
    assert (text["encoding"], text["messages"]) == ("base64", [base64.b64encode(b"first words").decode()])
    assert (first["encoding"], first["messages"]) == ("json", [{"n": 1.0}, "two\n"])
    assert (second["encoding"], second["messages"]) == ("json", [{"odd": 100.0}])
    created = bucket.entries(data="true")[0]
    assert "messages" not in created
    assert "encoding" not in created


def test_a_large_body_is_one_entry(bucket):
    body = bytes(range(256)) * 4096
    bucket.create("big", b"", "application/octet-stream")
    bucket.append("big", body, "application/octet-stream")
    bucket.append("big", b"tail", "application/octet-stream")
    bucket.settle()
    _, big, tail = bucket.entries(data="true")
    assert base64.b64decode(big["messages"][0]) == body
    assert base64.b64decode(tail["messages"][0]) == b"tail"


def test_deleted_and_trimmed_messages_are_gaps_wherever_they_lie(bucket):
    bucket.create("kept", b"[1,2]", "application/json")
    bucket.append("kept", b"[3,4]", "application/json")
    bucket.create("gone", b"data")
    bucket.settle()
    snapshot = f"{bucket.base}/kept/snapshot/{3:020d}"
    assert bucket.client.put(snapshot, content=b"state", headers={"Content-Type": "text/plain"}).status_code < 300
    bucket.delete("gone")
    expected = [
        ("kept", "created", 0, 0, None),
        ("kept", "gap", 0, 2, None),
        ("kept", "gap", 2, 3, None),
        ("kept", "appended", 3, 4, [4]),
        ("gone", "created", 0, 0, None),
        ("gone", "gap", 0, 4, None),
        ("kept", "snapshot", 3, 3, None),
        ("gone", "deleted", 4, 4, None),
    ]
    for _ in range(2):
        entries = bucket.entries(data="true")
        found = [(e["stream"], e["kind"], e["first_offset"], e["next_offset"], e.get("messages")) for e in entries]
        assert found == expected
        bucket.settle()
    assert ("gone", "appended") in bucket.kinds()  # what happened, happened


def test_pages_follow_each_other_without_loss(bucket):
    bucket.create("a")
    for number in range(25):
        bucket.append("a", b"%d" % number)
    bucket.settle()
    after, pages = "earliest", []
    while True:
        page = bucket.page(after=after, limit=4)
        pages += [entry["first_offset"] for entry in page["entries"] if entry["kind"] == "appended"]
        assert len(page["entries"]) <= 4
        after = page["next_position"]
        if page["up_to_date"]:
            break
    assert pages == [entry["first_offset"] for entry in bucket.entries() if entry["kind"] == "appended"]
    assert bucket.page(after=after)["entries"] == []


def test_two_entries_of_one_change_are_never_parted(bucket):
    bucket.create("a")
    bucket.append("a", b"last", **{"Stream-Closed": "true"})
    bucket.settle()
    page = bucket.page(limit=2)
    assert [entry["kind"] for entry in page["entries"]] == ["created"]
    rest = bucket.page(after=page["next_position"], limit=1)
    assert [entry["kind"] for entry in rest["entries"]] == ["appended", "closed"]


def test_a_page_with_data_keeps_to_read_bytes_max(module_server):
    running = module_server({"read_bytes_max": 1000, "checkpoint_age_s": 0.1})
    with httpx.Client(base_url=running.url, timeout=20) as client:
        bucket = Bucket(client, "bounded")
        bucket.create("a")
        for _ in range(6):
            bucket.append("a", b"x" * 400)
        bucket.append("a", b"y" * 4000)
        sizes = []
        after = "earliest"
        for _ in range(20):
            page = bucket.page(after=after, data="true")
            sizes.append([e["next_offset"] - e["first_offset"] for e in page["entries"] if e["kind"] == "appended"])
            after = page["next_position"]
            if page["up_to_date"]:
                break
        assert sum(map(sum, sizes)) == 6 * 400 + 4000
        assert all(sum(page) <= 1000 or page == [4000] for page in sizes)


def test_a_prefix_filters(bucket):
    for stream in ("user-1", "user-2", "other"):
        bucket.create(stream, b"x")
    bucket.settle()
    assert {stream for stream, _ in bucket.kinds(prefix="user-")} == {"user-1", "user-2"}
    assert bucket.kinds(prefix="nobody") == []


def test_after_now_and_after_a_time(bucket):
    bucket.create("a", b"early")
    bucket.settle()
    page = bucket.page(after="now")
    assert page["entries"] == []
    assert page["up_to_date"]
    time.sleep(0.01)
    between_ms = int(time.time() * 1000)
    time.sleep(0.01)
    bucket.append("a", b"late")
    bucket.settle()
    late = [("a", "appended")]
    assert bucket.kinds(after=page["next_position"]) == late
    assert bucket.kinds(after=str(between_ms)) == late
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between_ms / 1000)) + f".{between_ms % 1000:03d}Z"
    assert bucket.kinds(after=moment) == late
    assert bucket.kinds(after="2100-01-01T00:00:00Z") == []
    assert len(bucket.kinds(after="2000-01-01T00:00:00Z")) == 3


def test_both_prefixes_and_buckets_of_the_flat_surface_have_a_feed(client):
    client.put("/v1/stream/b/deep/path", content=b"x", headers={"Content-Type": "text/plain"})
    for base in ("/b", "/ds/b"):
        found = client.get(f"{base}/streams/feed", params={"prefix": "deep/"}).json()["entries"]
        assert [(entry["stream"], entry["kind"]) for entry in found] == [
            ("deep/path", "created"),
            ("deep/path", "appended"),
        ]
    client.put("/v1/stream/alone", content=b"x")
    assert client.get("/ds/_default/streams/feed").json()["entries"]


def test_expiry_is_told(client):
    bucket = Bucket(client, next(names))
    bucket.create("short", b"x", **{"Stream-TTL": "1"})
    after = bucket.page(after="now")["next_position"]
    give_up = time.monotonic() + 10
    while not (found := bucket.kinds(after=after)):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    assert found == [("short", "expired")]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("after=", "bad_position"),
        ("after=yesterday", "bad_position"),
        ("after=0123456789abcdef.", "bad_position"),
        ("after=0123456789abcdef.1.x", "bad_position"),
        ("after=2030-13-01T00:00:00Z", "bad_position"),
        ("after=now&after=now", "repeated_parameter"),
        ("limit=0", "bad_limit"),
        ("limit=1001", "bad_limit"),
        ("limit=many", "bad_limit"),
        ("data=yes", "bad_data"),
        ("live=always&after=now", "bad_live"),
        ("live=sse", "after_missing"),
        ("live=long-poll", "after_missing"),
        ("live=long-poll&after=now&timeout_ms=-1", "bad_timeout_ms"),
        ("prefix=%ff", "bad_query"),
    ],
)
def test_bad_parameters(client, query, code):
    answer = client.get(f"/ds/_default/streams/feed?{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


def test_other_methods_and_unknown_buckets(client):
    assert client.get("/ds/nowhere/streams/feed").json()["error"]["code"] == "bucket_not_found"
    refused = client.post("/ds/nowhere/streams/feed")
    assert (refused.status_code, refused.headers["Allow"]) == (405, "GET, OPTIONS")
    assert client.get("/ds/nowhere/streams/feed/more").json()["error"]["code"] == "unknown_route"


def test_a_position_ahead_or_of_another_log_is_refused(client):
    bucket = Bucket(client, next(names))
    token = bucket.page(after="now")["next_position"]
    incarnation, sequence = token.split(".")
    ahead = bucket.feed(after=f"{incarnation}.{int(sequence) + 1000000}")
    assert (ahead.status_code, ahead.json()["error"]["code"]) == (400, "bad_position")
    shards = bucket.feed(after=f"{token}.1")
    assert (shards.status_code, shards.json()["error"]["code"]) == (400, "bad_position")
    other = bucket.feed(after=f"{int(incarnation, 16) ^ 1:016x}.0")
    assert (other.status_code, other.json()["error"]["code"]) == (410, "position_gone")
    assert other.headers["Stream-Earliest-Position"].startswith(incarnation)


def test_positions_survive_restarts_and_kills(server):
    running = server({"checkpoint_age_s": 0.1})
    expected, after = [], "earliest"
    for round_ in range(3):
        with httpx.Client(base_url=running.url, timeout=20) as client:
            if round_ == 0:
                bucket = Bucket(client, "survivor")
                bucket.create("a")
                expected.append(0)
            bucket.client = client
            for number in range(10):
                bucket.append("a", b"%d%d" % (round_, number))
            if round_ % 2:
                settle(client)
            found = bucket.entries(after=after, limit=3)
            assert len(found) == 10 + (round_ == 0)
            after = bucket.page(after="now")["next_position"]
            assert len(bucket.entries()) == 1 + 10 * (round_ + 1)
        running.kill() if round_ < 2 else running.stop()
        running.start()
    with httpx.Client(base_url=running.url, timeout=20) as client:
        bucket.client = client
        tails = [entry["next_offset"] for entry in bucket.entries(data="true")]
        assert tails == [0, *range(2, 62, 2)]
        assert bucket.entries(after=after) == []


def test_what_is_older_than_the_archive_is_410_with_the_way_on(server):
    running = server({"checkpoint_age_s": 0.1, "archive_bytes_max": 0})
    with httpx.Client(base_url=running.url, timeout=20) as client:
        bucket = Bucket(client, "forgetful")
        start = bucket.page(after="now")["next_position"]
        bucket.create("a", b"x")
        before_ms = int(time.time() * 1000)
        give_up = time.monotonic() + 10
        while (gone := bucket.feed(after=start)).status_code == 200:
            assert time.monotonic() < give_up, "the archive was not dropped"
            time.sleep(0.05)
        assert (gone.status_code, gone.json()["error"]["code"]) == (410, "position_gone")
        assert "messages" in gone.json()["error"]["message"]
        for mode in ("long-poll", "sse"):
            assert bucket.feed(after=start, live=mode).status_code == 410
        assert bucket.feed(after=str(before_ms - 60_000)).status_code == 410
        bucket.append("a", b"late")
        earliest = bucket.feed(after=gone.headers["Stream-Earliest-Position"])
        assert earliest.status_code in (200, 410)
        assert bucket.feed(after="earliest").status_code == 200
