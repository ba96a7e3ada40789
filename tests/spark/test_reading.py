"""What a batch read gives, from every tier: memory, archive, segments, with and without the server in between."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from tests.spark.conftest import ARCHIVING, SEGMENTS_ONLY, Bucket

from millstream.client.errors import NotFound
from millstream.spark.asking import Asker
from millstream.spark.batch import BatchReader
from millstream.spark.errors import DataLoss, StoreOutOfReach
from millstream.spark.options import batch_read_options
from millstream.spark.plan import Store
from millstream.spark.schema import ARROW_SCHEMA, SPARK_SCHEMA

TIERS = ("http", "direct", "auto")
PLACES = {"memory": None, "archive": ARCHIVING, "segments": SEGMENTS_ONLY}


def partitions(where: dict[str, str], **options: str) -> tuple[BatchReader, list[InputPartition]]:
    reader = BatchReader(batch_read_options({**where, **options}))
    return reader, list(reader.partitions())


def rows(bucket: Bucket, **options: str) -> list[dict[str, Any]]:
    """Everything a read gives; reader and partitions travel as they do to executors."""
    reader, parts = partitions(bucket.where, **options)
    reader = pickle.loads(pickle.dumps(reader))
    found: list[dict[str, Any]] = []
    for part in parts:
        for batch in reader.read(pickle.loads(pickle.dumps(part))):
            assert batch.schema == ARROW_SCHEMA
            found += batch.to_pylist()
    return found


def brief(found: list[dict[str, Any]]) -> list[tuple[str, int, str, bytes | None]]:
    return sorted((row["stream"], row["offset"], row["kind"], row["value"]) for row in found)


def ordered(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: (row["stream"], row["offset"], row["kind"], row["position"]))


@pytest.fixture(params=PLACES)
def place(request):
    return PLACES[request.param]


@pytest.fixture
def filled(bucket, place):
    """Three streams of two types."""
    made = bucket(place)
    made.create("a", b"one", b"two", b"three")
    made.create("b", *(b"%06d" % number for number in range(12)))
    made.create("ab", b'{"n": 1}', b'[{"n": 2}, {"n": 3}]', kind="application/json")
    if place is not None:
        made.settle()
    return made


def test_the_columns_are_those_that_spark_expects():
    assert to_arrow_schema(SPARK_SCHEMA, timezone="UTC") == ARROW_SCHEMA
    assert ARROW_SCHEMA.names == [
        "bucket", "stream", "offset", "next_offset", "position", "id", "timestamp", "content_type", "kind", "value",
    ]  # fmt: skip


@pytest.mark.parametrize("tier", TIERS)
def test_every_message_comes_once(filled, tier):
    found = rows(filled, readTier=tier)
    expected = [("a", 0, b"one"), ("a", 3, b"two"), ("a", 6, b"three")]
    expected += [("ab", 0, b'{"n": 1}'), ("ab", 8, b'{"n": 2}'), ("ab", 16, b'{"n": 3}')]
    expected += [("b", 6 * number, b"%06d" % number) for number in range(12)]
    assert brief(found) == [(stream, offset, "message", value) for stream, offset, value in expected]
    for row in found:
        assert row["bucket"] == filled.name
        assert row["next_offset"] == row["offset"] + len(row["value"])
        assert row["content_type"] == ("application/json" if row["stream"] == "ab" else "text/plain")
        assert abs(row["timestamp"].timestamp() - time.time()) < 600
        milliseconds = round(row["timestamp"].timestamp() * 1000)
        assert row["id"].startswith(f"{milliseconds}-")


def test_all_tiers_agree_in_every_column(filled):
    by_http, directly, either = (ordered(rows(filled, readTier=tier)) for tier in TIERS)
    assert by_http == directly == either


def test_small_partitions_cut_the_same_rows(filled):
    whole = ordered(rows(filled))
    for tier in TIERS:
        _, parts = partitions(filled.where, readTier=tier, maxBytesPerPartition="64")
        assert len(parts) > 1 or len(parts[0].share.pieces) == 1  # one chunk of the archive is not split
        assert ordered(rows(filled, readTier=tier, maxBytesPerPartition="64")) == whole


def test_streams_are_chosen_by_name_pattern_or_prefix(filled):
    def streams(**options: str) -> set[str]:
        return {row["stream"] for row in rows(filled, **options)}

    for tier in TIERS:
        assert streams(subscribe="a", readTier=tier) == {"a"}
        assert streams(subscribe="a,b", readTier=tier) == {"a", "b"}
        assert streams(subscribePattern="a.*", readTier=tier) == {"a", "ab"}
        assert streams(prefix="a", readTier=tier) == {"a", "ab"}
        assert streams(subscribe="none", readTier=tier) == set()


def test_a_read_starts_and_ends_at_positions(filled):
    middle = filled.now()
    filled.append("a", b"four")
    end = filled.now()
    filled.append("a", b"five")
    for tier in TIERS:
        found = rows(filled, readTier=tier, startingOffsets=middle, endingOffsets=end)
        assert brief(found) == [("a", 11, "message", b"four")]


def test_a_read_starts_and_ends_at_offsets_of_streams(filled):
    for tier in TIERS:
        found = rows(filled, readTier=tier, startingOffsets='{"a": 3, "b": 66}', endingOffsets='{"a": 6, "ab": 0}')
        assert brief(found) == [("a", 3, "message", b"two"), ("b", 66, "message", b"000011")]


def test_a_read_starts_and_ends_at_times(filled):
    time.sleep(0.02)
    middle = round(time.time() * 1000)
    time.sleep(0.02)
    filled.append("b", b"late")
    time.sleep(0.02)
    end = round(time.time() * 1000)
    time.sleep(0.02)
    filled.append("b", b"later")
    for tier in TIERS:
        found = rows(filled, readTier=tier, startingTimestamp=str(middle), endingTimestamp=str(end))
        assert brief(found) == [("b", 72, "message", b"late")]
        assert len(rows(filled, readTier=tier, startingTimestamp="1000", endingTimestamp=str(middle))) == 18


def test_a_read_is_a_cut_at_one_position(filled):
    """What is committed after the plan is not read, though the tasks run later."""
    for tier in TIERS:
        before = ordered(rows(filled, readTier=tier))
        reader, parts = partitions(filled.where, readTier=tier)
        filled.append("a", b"!")
        filled.create(f"new-{tier}", b"?")
        found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        assert ordered(found) == before


def test_an_empty_bucket_is_an_empty_table(bucket):
    empty = bucket()
    reader, parts = partitions(empty.where)
    assert parts == []
    assert list(reader.read(InputPartition(None))) == []  # what Spark makes of no partitions


def test_a_bucket_that_is_not_there_is_named(bucket):
    made = bucket()
    with pytest.raises(NotFound, match="no-such-bucket"):
        partitions({**made.where, "bucket": "no-such-bucket"})


# --- snapshots and gaps


@pytest.fixture
def trimmed(bucket, place):
    """Stream `a` lost its first two messages to a snapshot; `b` has one that took nothing away."""
    made = bucket(place)
    made.create("a", b"one", b"two", b"three")
    made.create("b", b"one", b"two")
    made.publish("b", 3, b"state of b", trim=False)
    made.publish("a", 6, b"state of a")
    made.append("a", b"four")
    if place is not None:
        made.settle()
    return made


@pytest.mark.parametrize("tier", TIERS)
def test_from_earliest_what_is_gone_shows_as_gaps(trimmed, tier):
    found = rows(trimmed, readTier=tier)
    messages = [row for row in brief(found) if row[2] == "message"]
    assert messages == [
        ("a", 6, "message", b"three"),
        ("a", 11, "message", b"four"),
        ("b", 0, "message", b"one"),
        ("b", 3, "message", b"two"),
    ]
    gaps = [(row["stream"], row["offset"], row["next_offset"], row["value"]) for row in found if row["kind"] == "gap"]
    # One row for each message where the archive knows them, one for all where only the segments do.
    assert sorted(gaps) in ([("a", 0, 3, None), ("a", 3, 6, None)], [("a", 0, 6, None)])
    assert {row["kind"] for row in found} == {"message", "gap"}


@pytest.mark.parametrize("tier", TIERS)
def test_from_snapshots_each_stream_is_its_state_and_what_follows(trimmed, tier):
    assert brief(rows(trimmed, readTier=tier, startingOffsets="snapshot")) == [
        ("a", 6, "message", b"three"),
        ("a", 6, "snapshot", b"state of a"),
        ("a", 11, "message", b"four"),
        ("b", 3, "message", b"two"),
        ("b", 3, "snapshot", b"state of b"),
    ]


@pytest.mark.parametrize("tier", TIERS)
def test_up_to_snapshots_each_stream_is_what_its_state_holds(trimmed, tier):
    found = rows(trimmed, readTier=tier, endingOffsets="snapshot")
    assert [row for row in brief(found) if row[2] == "message"] == [("b", 0, "message", b"one")]


def test_snapshots_come_when_they_are_asked_for(bucket):
    made = bucket()
    made.create("a", b"one")
    made.publish("a", 3, b"state", trim=False)
    for tier in TIERS:
        assert [row["kind"] for row in rows(made, readTier=tier)] == ["message"]
        found = rows(made, readTier=tier, includeSnapshots="true")
        assert brief(found) == [("a", 0, "message", b"one"), ("a", 3, "snapshot", b"state")]


@pytest.mark.parametrize("tier", TIERS)
def test_what_was_asked_for_by_name_and_is_gone_is_a_loss(trimmed, tier):
    with pytest.raises(DataLoss, match=r"Messages of 'a' from offset .* set failOnDataLoss to false"):
        rows(trimmed, readTier=tier, startingOffsets='{"a": 3, "b": 3}')
    found = rows(trimmed, readTier=tier, startingOffsets='{"a": 3, "b": 3}', failOnDataLoss="false")
    assert [row for row in brief(found) if row[2] == "message"] == [
        ("a", 6, "message", b"three"),
        ("a", 11, "message", b"four"),
        ("b", 3, "message", b"two"),
    ]
    assert any(row["kind"] == "gap" for row in found)


# --- objects and leases


@pytest.mark.parametrize("settings", [ARCHIVING, SEGMENTS_ONLY], ids=["archive", "segments"])
def test_sealed_data_does_not_pass_through_the_server(bucket, proxy, settings):
    made = bucket(settings)
    size = 0
    for stream in range(4):
        made.create(f"s{stream}", kind="application/octet-stream")
        for _ in range(4):
            body = bytes(range(256)) * 1024
            made.append(f"s{stream}", body, kind="application/octet-stream")
            size += len(body)
    made.settle()
    between = proxy(made.server.port)
    reader, parts = partitions({**made.where, "url": between.url}, readTier="direct", minPartitions="4")
    assert len(parts) == 4
    found = sum(batch.column("value").nbytes for part in parts for batch in reader.read(part))
    assert found >= size
    assert 0 < between.sent < 0.05 * size


def test_the_lease_is_kept_while_rows_are_read(bucket):
    made = bucket({**ARCHIVING, "lease_s": 1})
    made.create("a", b"one", b"two")
    made.settle()
    reader, parts = partitions(made.where, readTier="direct")
    (part,) = parts
    batches = reader.read(part)
    next(batches)
    time.sleep(1.6)  # Spark takes its time; the lease would be over
    with Asker(part.fetcher._server) as asker:
        assert asker.renew(part.fetcher._source.lease.url)
    assert list(batches) == []


@pytest.mark.parametrize("settings", [ARCHIVING, SEGMENTS_ONLY], ids=["archive", "segments"])
@pytest.mark.parametrize("root", ["nowhere", "another server's"])
def test_objects_out_of_reach_come_over_http_or_fail_by_name(bucket, settings, root):
    made = bucket(settings)
    made.create("a", b"one", b"two", b"three")
    made.create("ab", b"four")
    made.settle()
    whole = ordered(rows(made))
    store = Store("fs", "/nowhere/objects")
    if root != "nowhere":
        other = bucket({**settings, "lease_s": 100})
        other.create("a", b"not these", b"words")
        other.settle()
        store = Store("fs", str(other.server.data_dir / "objects"))
    for tier in ("auto", "direct"):
        reader, parts = partitions(made.where, readTier=tier)
        for part in parts:
            part.fetcher._source = replace(part.fetcher._source, store=store)
        if tier == "direct":
            with pytest.raises(StoreOutOfReach, match="every executor must reach the server's object store"):
                [batch for part in parts for batch in reader.read(part)]
        else:
            found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
            assert ordered(found) == whole


def test_batches_are_of_a_size_that_spark_likes(bucket):
    """All of it is one checkpoint, however long it took to write: there is none before the restart."""
    made = bucket({**SEGMENTS_ONLY, "checkpoint_age_s": 3600})
    for stream in range(30):
        made.create(f"s{stream:02d}", b"x")
    made.server.restart(SEGMENTS_ONLY)
    made.settle()
    reader, parts = partitions(made.where, readTier="direct")
    batches = [batch for part in parts for batch in reader.read(part)]
    assert [batch.num_rows for batch in batches] == [30]
    assert isinstance(batches[0], pa.RecordBatch)
