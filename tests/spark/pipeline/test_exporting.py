"""Exports through Spark from a real server: incremental, partitioned, once each, in every format."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.spark.conftest import SEGMENTS_ONLY

from millstream.spark.pipeline.exporting import Exporter, ExportResult, export
from millstream.spark.pipeline.session import progress_bar
from millstream.spark.pipeline.tables.parquet import ParquetTable
from millstream.spark.pipeline.tables.table import FORMATS, TableError, open_table
from millstream.spark.pipeline.target import Target


def table_of(folder: Path, format_name: str) -> pa.Table:
    """What a reader finds who knows the format and nothing of us."""
    if format_name == "delta":
        return pa.table(deltalake.DeltaTable(folder).to_pyarrow_table())
    if format_name == "iceberg":
        catalog = SqlCatalog("millstream", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=f"file://{folder}")
        return catalog.load_table("millstream.messages").scan().to_arrow()
    return ds.dataset(folder, format="parquet", partitioning="hive").to_table()


def values(folder: Path, format_name: str = "parquet", kind: str = "message") -> list[tuple[str, bytes]]:
    rows = table_of(folder, format_name).to_pylist()
    chosen = [row for row in rows if row["kind"] == kind]
    return [(row["stream"], row["value"]) for row in sorted(chosen, key=lambda row: (row["stream"], row["offset"]))]


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_export_adds_what_is_new_and_nothing_twice(spark, bucket, tmp_path, format_name):
    source = bucket()
    folder = tmp_path / "table"

    def run() -> ExportResult:
        return export(source.server.url, source.name, folder, format=format_name, spark=spark)

    source.create("a", b"one", b"two")
    source.create("b", b"three")
    first = run()
    assert (first.rows, first.batches) == (3, 1)
    assert run().batches == 0
    source.append("a", b"four")
    assert run().rows == 1
    assert values(folder, format_name) == [("a", b"one"), ("a", b"two"), ("a", b"four"), ("b", b"three")]
    (row,) = [row for row in table_of(folder, format_name).to_pylist() if row["value"] == b"four"]
    assert row["bucket"] == source.name
    assert str(row["date"]) == datetime.now(UTC).date().isoformat()
    assert (row["offset"], row["next_offset"], row["content_type"]) == (6, 10, "text/plain")


def test_a_dry_run_counts_and_writes_nothing(bucket, tmp_path):
    source = bucket()
    source.create("a", b"one", b"two")
    folder = tmp_path / "table"
    result = export(source.server.url, source.name, folder, dry_run=True)
    assert (result.rows, result.bytes, result.dry_run) == (2, 6, True)
    assert not folder.exists()


def test_small_batches_reach_the_end(spark, bucket, tmp_path):
    source = bucket()
    for stream in "abc":
        source.create(stream, *(b"%d" % n * 100 for n in range(4)))
    sums: list[int] = []
    result = export(
        source.server.url,
        source.name,
        tmp_path / "table",
        batch_bytes=500,
        spark=spark,
        on_batch=lambda done: sums.append(done.rows),
    )
    assert result.rows == 12
    assert result.batches > 1
    assert sums == sorted(sums)
    assert len(values(tmp_path / "table")) == 12


def test_one_table_holds_many_buckets_and_parts_of_buckets(spark, bucket, tmp_path):
    one, other = bucket(), bucket()
    folder = tmp_path / "table"
    one.create("a", b"1")
    other.create("b", b"2")
    other.create("c", b"3")
    export(one.server.url, one.name, folder, spark=spark)
    export(other.server.url, other.name, folder, prefix="b", spark=spark)
    assert values(folder) == [("a", b"1"), ("b", b"2")]
    folders = sorted(path.name for path in folder.glob("bucket=*"))
    assert folders == sorted(f"bucket={source.name}" for source in (one, other))


def test_trimmed_history_is_a_gap_and_snapshots_come_if_wanted(spark, bucket, tmp_path):
    source = bucket()
    source.create("a", b"one", b"two")
    source.publish("a", 6, b"state")
    source.append("a", b"three")
    export(source.server.url, source.name, tmp_path / "table", include_snapshots=True, spark=spark)
    assert values(tmp_path / "table") == [("a", b"three")]
    assert values(tmp_path / "table", kind="snapshot") == [("a", b"state")]
    assert values(tmp_path / "table", kind="gap")
    export(source.server.url, source.name, tmp_path / "without", spark=spark)
    assert values(tmp_path / "without", kind="snapshot") == []


def test_a_gap_that_is_older_than_the_archive_has_no_time(spark, bucket, tmp_path):
    source = bucket(SEGMENTS_ONLY)
    source.create("a", b"one", b"two")
    source.publish("a", 6, b"state")
    source.append("a", b"three")
    source.settle()
    export(source.server.url, source.name, tmp_path / "table", spark=spark)
    assert values(tmp_path / "table") == [("a", b"three")]
    (gap,) = [row for row in table_of(tmp_path / "table", "parquet").to_pylist() if row["kind"] == "gap"]
    assert (gap["offset"], gap["next_offset"], gap["timestamp"]) == (0, 6, None)


def test_a_crash_between_writing_and_commit_leaves_no_trace(spark, bucket, tmp_path, monkeypatch):
    source = bucket()
    source.create("a", b"one")
    folder = tmp_path / "table"
    with monkeypatch.context() as crash:
        crash.setattr(ParquetTable, "commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            export(source.server.url, source.name, folder, spark=spark)
    assert export(source.server.url, source.name, folder, spark=spark).rows == 1
    assert values(folder) == [("a", b"one")]


def test_of_two_exports_at_once_one_recognises_the_other(spark, bucket, tmp_path):
    source = bucket()
    source.create("a", b"one")
    target = Target(source.server.url, source.name)
    folder = tmp_path / "table"
    first, second = (Exporter(spark, target, open_table(folder, "parquet"), 1 << 20, False) for _ in range(2))
    with progress_bar(spark, "test", 1, shown=False) as bar:
        assert first.batch(bar)
        source.append("a", b"two")
        assert second.batch(bar)  # it believes that it is the first, and would write both messages
        assert (second.done.recognised, second.done.rows) == (1, 0)
        assert second.batch(bar)
        assert not second.batch(bar)
    assert values(folder) == [("a", b"one"), ("a", b"two")]


def test_a_continuous_export_follows(spark, bucket, tmp_path):
    source = bucket()
    source.create("a", b"one")
    folder = tmp_path / "table"
    seen: list[int] = []

    class Enough(Exception):
        pass

    def on_batch(done: ExportResult) -> None:
        seen.append(done.rows)
        if done.rows == 2:
            raise Enough
        threading.Timer(0.5, source.append, ("a", b"two")).start()

    with pytest.raises(Enough):
        export(source.server.url, source.name, folder, continuous=True, every_s=0.1, spark=spark, on_batch=on_batch)
    assert seen == [1, 2]
    assert values(folder) == [("a", b"one"), ("a", b"two")]


def test_a_table_of_another_log_is_refused(spark, bucket, tmp_path):
    source = bucket()
    source.create("a", b"one")
    folder = tmp_path / "table"
    export(source.server.url, source.name, folder, spark=spark)
    (commit,) = (folder / "_millstream" / "commits").glob("*.json")
    found = json.loads(commit.read_text())
    found["positions"] = {source.name: "0123456789abcdef.3"}
    commit.write_text(json.dumps(found))
    with pytest.raises(TableError, match="Export to a new folder"):
        export(source.server.url, source.name, folder, spark=spark)
