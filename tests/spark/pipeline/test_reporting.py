"""Reports through Spark on a real bucket: the figures are those of what was written."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow.parquet as pq
import pytest

from millstream.spark.pipeline import report


def test_a_report_counts_what_is_there(spark, bucket, tmp_path):
    source = bucket()
    source.create("big", b"x" * 1000, b"y" * 3000)
    source.create("small", *(b"%d" % n for n in range(5)))
    source.create("empty")
    source.create("done", b"z" * 100)
    source.http.post("done", headers={"Stream-Closed": "true"}).raise_for_status()
    source.create("trimmed", b"old", b"new")
    source.publish("trimmed", 3, b"state")

    result = report(source.server.url, source.name, tmp_path, silent_after_s=0, spark=spark)
    totals = result.figures.totals
    assert (totals.streams, totals.closed, totals.snapshots) == (5, 1, 1)
    assert (totals.messages, totals.bytes) == (9, 4108)
    assert totals.gaps == 1
    assert (totals.median_bytes, totals.largest_bytes) == (1, 3000)
    assert [one.stream for one in result.figures.hottest] == ["small", "big", "done", "trimmed"]
    assert {one.stream for one in result.figures.silent} == {"big", "small", "empty", "trimmed"}
    assert sum(one.messages for one in result.figures.intervals) == 9
    assert [(one.low, one.messages) for one in result.figures.sizes if one.messages] == [
        (1, 5),
        (2, 1),
        (64, 1),
        (512, 1),
        (2048, 1),
    ]

    streams = {row["stream"]: row for row in pq.read_table(tmp_path / "streams.parquet").to_pylist()}
    assert streams["big"]["bytes"] == 4000
    assert (streams["empty"]["messages"], streams["empty"]["first_at"]) == (0, None)
    assert sum(pq.read_table(tmp_path / "sizes.parquet")["bytes"].to_pylist()) == 4108
    assert sum(pq.read_table(tmp_path / "intervals.parquet")["messages"].to_pylist()) == 9
    page = result.page.read_text()
    assert "<svg" in page
    assert source.name in page


def test_a_report_is_replaced_and_may_be_on_a_part(spark, bucket, tmp_path):
    source = bucket()
    source.create("a-1", b"1")
    source.create("b-1", b"1")
    report(source.server.url, source.name, tmp_path, spark=spark)
    result = report(source.server.url, source.name, tmp_path, prefix="a-", spark=spark)
    assert result.messages == 1
    assert pq.read_table(tmp_path / "streams.parquet")["stream"].to_pylist() == ["a-1"]


def test_times_may_be_those_that_messages_say(spark, bucket, tmp_path):
    source = bucket()
    kind = "application/json"
    source.create("a", b'{"at":"2026-03-02T08:00:00Z"}', b'{"at":"2026-03-02T08:00:10.500Z"}', b'{"at":7}', kind=kind)
    result = report(source.server.url, source.name, tmp_path, time_member="at", spark=spark)
    assert result.figures.totals.first_at == datetime(2026, 3, 2, 8, tzinfo=UTC)
    assert result.figures.totals.last_at > datetime(2026, 3, 3, tzinfo=UTC)
    assert result.figures.intervals[0].messages == 2
    assert sum(one.messages for one in result.figures.intervals) == 3
    with pytest.raises(ValueError, match="quote"):
        report(source.server.url, source.name, tmp_path, time_member="a'", spark=spark)


def test_an_empty_bucket_and_a_dry_run(spark, bucket, tmp_path):
    source = bucket()
    planned = report(source.server.url, source.name, tmp_path / "none", dry_run=True)
    assert (planned.messages, planned.page) == (0, None)
    assert not (tmp_path / "none").exists()
    result = report(source.server.url, source.name, tmp_path / "empty", spark=spark)
    assert "holds no messages" in result.page.read_text()
    assert result.messages == 0
