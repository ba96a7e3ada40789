"""What `readStream` plans and reads, batch by batch, as Spark asks for it but without Spark."""

from __future__ import annotations

import json
import pickle
import time
from contextlib import closing
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from tests.spark.conftest import ARCHIVING, SEGMENTS_ONLY, Bucket

from millstream.spark import stream as stream_module
from millstream.spark.asking import Asker
from millstream.spark.errors import DataLoss
from millstream.spark.options import stream_read_options
from millstream.spark.stream import StreamReader


class Query:
    """Drives a reader as a streaming query does; offsets pass through JSON as in a checkpoint."""

    def __init__(self, bucket: Bucket, **options: str) -> None:
        self._options = {**bucket.where, **options}
        self.reader = self._made()
        self.offset: dict[str, Any] | None = None
        self.leases: set[str] = set()  # those that the last batch held

    def batch(self) -> list[dict[str, Any]] | None:
        """The next batch's rows; None when there is nothing new."""
        start = self.offset or _through_json(self.reader.initialOffset())
        self.offset = start
        end = _through_json(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))
        if end == start:
            return None
        found = self.between(start, end)
        self.offset = end
        self.leases = set(self.reader._leases)
        self.reader.commit(end)
        return found

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        parts = [pickle.loads(pickle.dumps(part)) for part in self.reader.partitions(start, end)]
        return [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]

    def batches(self) -> list[list[dict[str, Any]]]:
        found = []
        while (batch := self.batch()) is not None:
            found.append(batch)
        return found

    def restart(self, **options: str) -> None:
        self._options.update(options)
        self.reader.stop()
        self.reader = self._made()

    def _made(self) -> StreamReader:
        return pickle.loads(pickle.dumps(StreamReader(stream_read_options(self._options))))


def _through_json(offset: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(offset))


@pytest.fixture
def query():
    started: list[Query] = []

    def start(bucket: Bucket, **options: str) -> Query:
        started.append(Query(bucket, **options))
        return started[-1]

    yield start
    for one in started:
        one.reader.stop()


def values(batch: list[dict[str, Any]] | None) -> list[bytes]:
    assert batch is not None, "there was no batch"
    return [row["value"] for row in sorted(batch, key=lambda row: int(row["position"].partition(".")[2]))]


@pytest.mark.parametrize("settings", [None, ARCHIVING, SEGMENTS_ONLY], ids=["memory", "archive", "segments"])
def test_history_first_then_what_comes(bucket, query, settings):
    made = bucket(settings)
    made.create("a", b"1", b"2")
    if settings is not None:
        made.settle()
    following = query(made, startingOffsets="earliest")
    assert sorted(values(following.batch())) == [b"1", b"2"]
    assert following.batch() is None
    made.append("a", b"3")
    made.create("b", b"4")  # a new stream is found by itself
    assert values(following.batch()) == [b"3", b"4"]
    assert following.batch() is None


def test_from_latest_only_what_comes(bucket, query):
    made = bucket()
    made.create("a", b"1")
    following = query(made)
    assert following.batch() is None
    made.append("a", b"2")
    assert values(following.batch()) == [b"2"]


def test_an_offset_is_as_small_for_many_streams_as_for_one(bucket, query):
    made = bucket()
    for number in range(50):
        made.create(f"s{number}", b"x")
    following = query(made, startingOffsets="earliest")
    following.batch()
    assert len(json.dumps(following.offset)) < 200


def test_changes_of_other_streams_make_no_batch(bucket, query):
    made = bucket()
    made.create("wanted", b"1")
    following = query(made, subscribe="wanted", startingOffsets="earliest")
    assert values(following.batch()) == [b"1"]
    before = following.offset
    made.create("other", b"x")
    made.create("wanted-not", b"y")
    made.http.put("wanted-empty", headers={"Content-Type": "text/plain"}).raise_for_status()
    assert following.batch() is None
    assert following.offset == before
    made.append("wanted", b"2")
    assert values(following.batch()) == [b"2"]


@pytest.mark.parametrize("settings", [None, ARCHIVING], ids=["memory", "archive"])
def test_batches_are_cut_in_commit_order(bucket, query, settings):
    """By messages and by bytes; every stream has its turn."""
    made = bucket(settings)
    for number in range(10):
        for stream in ("a", "b", "c"):
            if number == 0:
                made.create(stream)
            made.append(stream, b"%s%d" % (stream.encode(), number))
    if settings is not None:
        made.settle()
    by_count = query(made, startingOffsets="earliest", maxOffsetsPerTrigger="7")
    assert isinstance(by_count.reader.getDefaultReadLimit(), ReadMaxRows)
    batches = by_count.batches()
    assert [len(batch) for batch in batches] == [7, 7, 7, 7, 2]
    assert {row["stream"] for row in batches[0]} == {"a", "b", "c"}
    in_order = [value for batch in batches for value in values(batch)]
    assert in_order == [b"%s%d" % (stream, number) for number in range(10) for stream in (b"a", b"b", b"c")]
    by_bytes = query(made, startingOffsets="earliest", maxBytesPerTrigger="10")
    assert isinstance(by_bytes.reader.getDefaultReadLimit(), ReadMaxBytes)
    assert [len(batch) for batch in by_bytes.batches()] == [5] * 6
    both = query(made, startingOffsets="earliest", maxBytesPerTrigger="100", maxOffsetsPerTrigger="20")
    assert [len(batch) for batch in both.batches()] == [20, 10]
    without = query(made, startingOffsets="earliest")
    assert isinstance(without.reader.getDefaultReadLimit(), ReadAllAvailable)
    assert [len(batch) for batch in without.batches()] == [30]


def test_what_other_streams_do_does_not_count_for_limits(bucket, query):
    made = bucket()
    made.create("in", b"1")
    following = query(made, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="2")
    assert values(following.batch()) == [b"1"]
    made.create("out", *(b"%d" % number for number in range(9)))
    made.append("in", b"2")
    assert [values(batch) for batch in following.batches()] == [[b"2"]]
    # A batch that is repeated, and planned anew, has the same rows.
    made.append("out", b"x", b"y", b"z")
    made.append("in", b"3")
    start = following.offset
    assert values(following.batch()) == [b"3"]
    following.restart()
    assert [row["value"] for row in following.between(start, following.offset)] == [b"3"]


def test_an_append_larger_than_the_limit_is_one_batch(bucket, query):
    made = bucket()
    made.create("a", b"x" * 1000, b"y")
    following = query(made, startingOffsets="earliest", maxBytesPerTrigger="10")
    assert [len(batch) for batch in following.batches()] == [1, 1]


def test_available_now_ends_at_what_was_there(bucket, query):
    made = bucket()
    made.create("a", *(b"%d" % number for number in range(5)))
    following = query(made, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    following.reader.prepareForTriggerAvailableNow()
    first = following.batch()
    made.append("a", b"later")
    rest = following.batches()
    assert [len(batch) for batch in (first, *rest)] == [2, 2, 1]
    following.restart()
    assert values(following.batch()) == [b"later"]


@pytest.mark.parametrize("start", ["latest", "earliest", "snapshot"])
def test_the_first_batch_is_repeated_as_it_was(bucket, query, start):
    """Spark asks for the initial offset again when it repeats the first batch: the batch's end tells what it was."""
    made = bucket()
    made.create("a", b"1", b"2")
    made.publish("a", 1, b"state", trim=False)
    following = query(made, startingOffsets=start)
    initial = _through_json(following.reader.initialOffset())
    made.append("a", b"3")
    end = _through_json(following.reader.latestOffset(initial, ReadAllAvailable()))
    first = following.between(initial, end)
    made.append("a", b"4")
    following.restart()
    again = _through_json(following.reader.initialOffset())
    key = ("position", "offset", "kind")
    repeated = following.between(again, end)
    assert sorted(repeated, key=lambda row: [row[name] for name in key]) == sorted(
        first, key=lambda row: [row[name] for name in key]
    )
    following.offset = end
    following.batch()


def test_a_batch_is_repeated_as_it_was(bucket, query):
    made = bucket()
    made.create("a", b"1")
    following = query(made, startingOffsets="earliest", maxOffsetsPerTrigger="1")
    following.batch()
    start = following.offset
    made.append("a", b"2", b"3")
    assert values(following.batch()) == [b"2"]
    end = following.offset
    following.restart(maxOffsetsPerTrigger="10")
    assert [row["value"] for row in following.between(start, end)] == [b"2"]
    assert values(following.batch()) == [b"3"]


def test_offsets_of_streams_count_for_history_only(bucket, query):
    made = bucket()
    made.create("a", b"1", b"2", b"3")
    made.create("b", b"4")
    following = query(made, startingOffsets='{"a": 2}', maxOffsetsPerTrigger="2")
    found = [value for batch in following.batches() for value in values(batch)]
    assert found == [b"3", b"4"]
    made.http.delete("a").raise_for_status()
    made.create("a", b"anew")
    assert [value for batch in following.batches() for value in values(batch)] == [b"anew"]
    assert "offsets" not in following.offset


def test_from_a_time_on(bucket, query):
    made = bucket()
    made.create("a", b"1")
    at_ms = 1 + int(made.http.get("streams/feed").json()["entries"][-1]["timestamp_ms"])
    while made.http.get("streams/feed", params={"after": str(at_ms)}).json()["entries"] == []:
        made.append("a", b"2")
    following = query(made, startingTimestamp=str(at_ms))
    assert set(values(following.batch())) == {b"2"}


def test_from_snapshots_on(bucket, query):
    made = bucket()
    made.create("a", b"1", b"2")
    made.create("b", b"3")
    made.publish("a", 1, b"state of a")
    following = query(made, startingOffsets="snapshot", maxOffsetsPerTrigger="1")
    first = following.batch()
    assert sorted((row["stream"], row["kind"], row["value"]) for row in first) == [
        ("a", "message", b"2"),
        ("a", "snapshot", b"state of a"),
        ("b", "message", b"3"),
    ]
    made.append("a", b"4")
    assert values(following.batch()) == [b"4"]
    assert "snapshots" not in following.offset


def test_retention_that_overtakes_a_reader_is_a_loss(bucket, query):
    made = bucket()
    made.create("a", b"1")
    following = query(made, startingOffsets="earliest")
    assert values(following.batch()) == [b"1"]
    made.append("a", b"2", b"3")
    made.publish("a", 2, b"state")
    with pytest.raises(DataLoss, match="Messages of 'a' from offset 1 to 2 were trimmed or deleted"):
        following.batch()
    following.restart(failOnDataLoss="false")
    found = following.batch()
    assert [(row["kind"], row["offset"], row["value"]) for row in found] == [("gap", 1, None), ("message", 2, b"3")]


def test_what_was_gone_before_the_start_is_no_loss(bucket, query):
    made = bucket()
    made.create("a", b"1", b"2")
    made.publish("a", 1, b"state")
    following = query(made, startingOffsets="earliest")
    assert [row["kind"] for row in following.batch()] == ["gap", "message"]


def test_a_checkpoint_older_than_the_archive_goes_on(bucket, query):
    made = bucket(SEGMENTS_ONLY)
    made.create("a", b"1")
    made.settle()
    following = query(made, startingOffsets="earliest")
    assert values(following.batch()) == [b"1"]
    made.append("a", b"2")
    made.settle()
    made.append("a", b"3")
    made.settle()
    following.restart()
    assert sorted(values(following.batch())) == [b"2", b"3"]
    assert following.batch() is None


def test_available_now_with_limits_ends_where_blocks_and_archive_go_on(server, query):
    """Blocks are merged meanwhile: they reach from before the archive over the end of what is to be read."""
    running = server({**SEGMENTS_ONLY, "merge_segments_min": 2})
    made = Bucket(running)
    with closing(made.http):
        written = [b"%040d" % number for number in range(60)]
        made.create("a", *written[:20])
        made.settle()
        running.restart({"archive_age_s": 3600})
        made.append("a", *written[20:40])
        limits = (10, 59, 60, 61, 70, 80)
        readers = [query(made, startingOffsets="earliest", maxOffsetsPerTrigger=str(limit)) for limit in limits]
        for following in readers:
            following.reader.prepareForTriggerAvailableNow()
        made.append("a", *written[40:])
        wait_until_merged(made, len(written))
        for following in readers:
            rows = [row for batch in following.batches() for row in batch]
            assert values(rows) == written[:40]
            assert following.offset["position"] == following.reader._target
            following.restart()
            rows = [row for batch in following.batches() for row in batch]
            assert values(rows) == written[40:]


def test_available_now_does_not_end_among_what_other_streams_did(bucket, query, monkeypatch):
    """Spark ends such a query at the first asking without news, and would begin it at the same place again."""
    monkeypatch.setattr(stream_module, "_PAGE", 2)
    monkeypatch.setattr(stream_module, "_PAGES_PER_ASKING", 3)
    made = bucket()
    made.create("other", *(b"%d" % number for number in range(20)))
    made.create("wanted", b"here")
    following = query(made, startingOffsets="earliest", subscribePattern="wan.*")
    following.reader.prepareForTriggerAvailableNow()
    assert values(following.batch()) == [b"here"]
    assert following.batch() is None


def wait_until_merged(made: Bucket, messages: int) -> None:
    give_up = time.monotonic() + 20
    while True:
        made.settle()
        ranges = made.http.get("streams/plan").json()["ranges"]
        if [part["messages"] for part in ranges if part["kind"] == "segment"] == [messages]:
            return
        assert time.monotonic() < give_up, ranges
        time.sleep(0.05)


def test_leases_are_given_back(bucket, query):
    made = bucket(ARCHIVING)
    made.create("a", b"1")
    made.settle()
    following = query(made, startingOffsets="earliest")
    taken: set[str] = set()
    for number in range(3):
        assert following.batch() is not None
        taken |= following.leases
        made.append("a", b"%d" % number)
        made.settle()
    start = following.offset
    following.between(start, following.reader.latestOffset(start, ReadAllAvailable()))
    taken |= set(following.reader._leases)  # of a batch that is never committed
    following.reader.stop()
    assert len(taken) == 4
    with Asker(stream_read_options(made.where).server) as asker:
        assert not any(asker.renew(url) for url in taken)
