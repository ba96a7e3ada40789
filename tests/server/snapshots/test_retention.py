"""Retention of buckets by size and by age, applied in the background."""

import time

from tests.server.snapshots.words import append, parts, publish, wait_for


def test_retention_by_size_keeps_at_least_what_was_asked(client):
    client.put("/ds/bysize", json={"retention_bytes": 1_000_000})
    client.put("/ds/bysize/s", headers={"content-type": "application/octet-stream"})
    for index in range(40):
        end = append(client, "/ds/bysize/s", bytes([index]) * 100_000, "application/octet-stream")

    def earliest():
        return int(client.head("/ds/bysize/s").headers.get("stream-earliest-offset", 0))

    wait_for(lambda: end - earliest() < 1_300_000)
    assert end - earliest() >= 1_000_000
    kept = client.get("/ds/bysize/s", params={"offset": "-1"})
    assert int(kept.content[0]) == earliest() // 100_000
    gone = client.get("/ds/bysize/s", params={"offset": 0})
    assert gone.status_code == 410
    # The way out of the 410 leads somewhere: to what is kept, and it says that it is not everything.
    bootstrap = client.get(gone.links["bootstrap"]["url"])
    assert bootstrap.headers["stream-snapshot-offset"] == "-1"
    assert int(bootstrap.headers["stream-earliest-offset"]) >= int(gone.headers["stream-earliest-offset"])
    first = int(bootstrap.headers["stream-earliest-offset"])
    assert parts(bootstrap)[1][1] == bytes([first // 100_000]) * 100_000


def test_retention_by_age_lets_old_messages_go(client):
    client.put("/ds/byage", json={"retention_seconds": 1})
    client.put("/ds/byage/s", content=b"old", headers={"content-type": "text/plain"})
    client.put("/ds/byage/keep", content=b"old", headers={"content-type": "text/plain"})
    client.put("/ds/byage/keep/snapshot/0", content=b"s")
    wait_for(lambda: client.head("/ds/byage/s").headers.get("stream-earliest-offset") == f"{3:020d}")
    append(client, "/ds/byage/s", "new")
    assert client.get("/ds/byage/s", params={"offset": "-1"}).text == "new"
    assert client.get("/ds/byage/keep", params={"offset": "0"}).text == "old"  # never past a snapshot


def test_the_listing_says_where_the_latest_snapshot_is(client, bucket, stream):
    def listed():
        (entry,) = client.get(f"/ds/{bucket}/streams").json()["streams"]
        return entry["snapshot_offset"]

    assert listed() is None
    publish(client, stream, 6)
    assert listed() == 6
    time.sleep(0.8)  # a checkpoint: from the catalog it is the same
    assert listed() == 6
