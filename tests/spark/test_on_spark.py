"""The source on a real session: registered by itself, read, followed, recovered after kill -9, JSON as columns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from tests.spark.cluster import run_job
from tests.spark.conftest import ARCHIVING, SEGMENTS_ONLY

from millstream.spark import json_view
from millstream.spark.errors import BadColumns

HERE = Path(__file__).parent


def table(spark, made, **options):
    return spark.read.format("millstream").options(**made.where, **options).load()


def test_a_bucket_is_a_table(spark, bucket):
    """Nothing was registered: Spark found the source by itself."""
    made = bucket(ARCHIVING)
    made.create("a", b"one", b"two")
    made.create("b", b'{"n": 1}', kind="application/json")
    made.settle()
    made.append("a", b"hot")
    for tier in ("http", "direct", "auto"):
        found = table(spark, made, readTier=tier, minPartitions="2").orderBy("stream", "offset").collect()
        assert [(row.stream, row.offset, row.next_offset, row.kind, bytes(row.value)) for row in found] == [
            ("a", 0, 3, "message", b"one"),
            ("a", 3, 6, "message", b"two"),
            ("a", 6, 9, "message", b"hot"),
            ("b", 0, 8, "message", b'{"n": 1}'),
        ]
        assert {row.bucket for row in found} == {made.name}
        assert all(abs(row.timestamp.timestamp() - time.time()) < 3600 for row in found)


def test_wrong_options_fail_when_the_table_is_made(spark, bucket):
    made = bucket()
    with pytest.raises(AnalysisException, match=r"There is no option startingoffset\. Did you mean startingOffsets"):
        table(spark, made, startingOffset="earliest")
    with pytest.raises(AnalysisException, match=r"The option readTier is 'warp'\. Allowed is auto, http or direct"):
        spark.readStream.format("millstream").options(**made.where, readTier="warp").load()


def test_the_columns_cannot_be_chosen_by_a_schema(spark, bucket):
    made = bucket()
    asked = spark.read.format("millstream").schema("value STRING").options(**made.where)
    with pytest.raises(AnalysisException, match="The columns are fixed: bucket, stream, offset"):
        asked.load().collect()


def test_a_query_follows_a_bucket(spark, bucket, tmp_path):
    made = bucket()
    made.create("a", b"1")
    read = spark.readStream.format("millstream").options(**made.where, startingOffsets="earliest")
    query = read.load().writeStream.format("memory").queryName("followed")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        made.append("a", b"2")
        made.create("b", b"3")
        query.processAllAvailable()
        found = spark.table("followed").selectExpr("stream", "cast(value AS STRING) AS value")
        assert sorted(tuple(row) for row in found.collect()) == [("a", "1"), ("a", "2"), ("b", "3")]
        progress = query.lastProgress["sources"][0]
        assert json.loads(progress["endOffset"])["position"] == made.now()
    finally:
        query.stop()


@pytest.mark.timeout(600)
def test_a_query_goes_on_after_kill_9(java, bucket, tmp_path):
    """A driver of its own is killed in the middle of its batches, another goes on: every message once, byte by byte."""
    made = bucket()
    for stream in range(3):
        made.create(f"in-{stream}", *(b"%d/%d " % (stream, number) for number in range(60)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE.parents[1])])}
    command = [sys.executable, str(HERE / "copying_job.py"), made.server.url, made.name, str(tmp_path / "checkpoint")]
    log = (tmp_path / "log").open("wb")
    with log, subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True) as driver:
        give_up = time.monotonic() + 240
        while len(made.streams()) == 3 or len(made.read("out-0")) < 40:
            assert driver.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < give_up, "nothing was copied"
            time.sleep(0.05)
        os.killpg(driver.pid, signal.SIGKILL)
    assert made.read("out-0") != made.read("in-0"), "it was killed too late to show anything"
    for stream in range(3):
        made.append(f"in-{stream}", b"after the kill")
    run_job(made.server.url, made.name, tmp_path / "checkpoint", "--partitions", 5)
    for stream in range(3):
        assert made.read(f"out-{stream}") == made.read(f"in-{stream}")


# --- json_view


@pytest.fixture
def events(bucket):
    made = bucket(SEGMENTS_ONLY)
    made.create(
        "a", b'{"user": "ann", "n": 1}', b'{"user": "bob", "n": 2.5, "more": {"x": [1]}}', kind="application/json"
    )
    made.create("b", b"{no json", b"[1, 2]", b'"text"', b"null", b'{"user": "cat"}', kind="text/plain")
    return made


def test_json_becomes_columns_and_the_rest_is_kept_aside(spark, events):
    rows, bad, schema = json_view(table(spark, events))
    assert schema.fieldNames() == ["more", "n", "user"]
    found = {(row._stream, row.user, row.n) for row in rows.collect()}
    assert found == {("a", "ann", 1.0), ("a", "bob", 2.5), ("b", "cat", None)}
    assert {bytes(row.value) for row in bad.collect()} == {b"{no json", b"[1, 2]", b'"text"', b"null"}
    assert bad.columns == table(spark, events).columns


def test_json_with_a_schema(spark, events):
    rows, bad, _ = json_view(table(spark, events, subscribe="a"), "user STRING, n INT")
    assert [(row.user, row.n) for row in rows.collect()] == [("ann", 1)]
    assert [bytes(row.value)[:14] for row in bad.collect()] == [b'{"user": "bob"']  # 2.5 is no INT


def test_json_that_cannot_be_viewed_says_why(spark, events):
    following = spark.readStream.format("millstream").options(**events.where).load()
    with pytest.raises(BadColumns, match="A streaming data frame has no messages yet"):
        json_view(following)
    assert json_view(following, "user STRING").rows.isStreaming
    with pytest.raises(BadColumns, match="names that the view uses itself: _stream"):
        json_view(following, "_stream STRING")
    with pytest.raises(BadColumns, match="None of 4 messages is a JSON object"):
        json_view(table(spark, events, startingOffsets='{"a": 1000, "b": 0}', endingOffsets='{"b": 24}'))
