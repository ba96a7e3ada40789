"""One contract for all table formats: what is committed is there once, whoever commits, and however often."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from millstream.spark.pipeline.tables import data_files
from millstream.spark.pipeline.tables.data_files import DataFile, by_partition, write_data_files
from millstream.spark.pipeline.tables.table import FORMATS, Table, TableError, open_table

LATE = datetime(2026, 3, 2, 23, 59, 59, tzinfo=UTC)
FIRST, SECOND, THIRD = (f"00c0ffee00c0ffee.{sequence}" for sequence in (10, 20, 30))
SOURCE_SCHEMA = pa.schema([field for field in data_files.TABLE_SCHEMA if field.name != "date"])


@pytest.fixture(params=FORMATS)
def format_name(request) -> str:
    return request.param


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "a table"


def rows(first: int, count: int, bucket: str = "agents", start: datetime = LATE) -> pa.RecordBatch:
    """Messages a second apart; with the default start they lie on two days."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "bucket": bucket,
                "stream": f"run-{n % 3}",
                "offset": n * 10,
                "next_offset": n * 10 + 10,
                "position": f"00c0ffee00c0ffee.{n}",
                "id": f"{n}-0",
                "timestamp": start + timedelta(seconds=n - first),
                "content_type": "text/plain",
                "kind": "message",
                "value": b"%d" % n,
            }
            for n in range(first, first + count)
        ],
        schema=SOURCE_SCHEMA,
    )


def write(table: Table, *batches: pa.RecordBatch) -> list[DataFile]:
    return list(write_data_files(batches, table.layout))


def values(folder: Path, format_name: str) -> list[tuple[str, date, bytes]]:
    """What a reader who knows only the format finds: (bucket, date, value)."""
    if format_name == "parquet":
        partitioning = ds.partitioning(pa.schema([("bucket", pa.string()), ("date", pa.date32())]), flavor="hive")
        found = ds.dataset(folder, format="parquet", partitioning=partitioning).to_table()
    elif format_name == "delta":
        found = pa.table(deltalake.DeltaTable(folder).to_pyarrow_table())
    else:
        catalog = SqlCatalog("millstream", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=f"file://{folder}")
        found = catalog.load_table("millstream.messages").scan().to_arrow()
    return sorted((row["bucket"], row["date"], row["value"]) for row in found.to_pylist())


def numbers(folder: Path, format_name: str) -> list[int]:
    return sorted(int(value) for _, _, value in values(folder, format_name))


def test_rows_are_found_by_bucket_and_day(folder, format_name):
    table = open_table(folder, format_name)
    assert table.position("agents") is None
    assert table.commit("agents", None, FIRST, write(table, rows(0, 3), rows(3, 1, bucket="others")))
    assert table.position("agents") == FIRST
    assert values(folder, format_name) == [
        ("agents", date(2026, 3, 2), b"0"),
        ("agents", date(2026, 3, 3), b"1"),
        ("agents", date(2026, 3, 3), b"2"),
        ("others", date(2026, 3, 2), b"3"),
    ]


def test_rows_without_a_time_are_there(folder, format_name):
    """Gaps older than the archive: their offsets are known and nothing else."""
    table = open_table(folder, format_name)
    untimed = rows(0, 2).set_column(
        SOURCE_SCHEMA.get_field_index("timestamp"),
        SOURCE_SCHEMA.field("timestamp"),
        pa.nulls(2, SOURCE_SCHEMA.field("timestamp").type),
    )
    assert table.commit("agents", None, FIRST, write(table, untimed, rows(2, 1)))
    assert numbers(folder, format_name) == [0, 1, 2]
    today = datetime.now(UTC).date()
    assert {day for _, day, value in values(folder, format_name) if value != b"2"} <= {today, today - timedelta(days=1)}


def test_a_batch_that_is_committed_is_recognised(folder, format_name):
    table = open_table(folder, format_name)
    assert table.commit("agents", None, FIRST, write(table, rows(0, 3)))
    again = open_table(folder, format_name)  # as after a crash between the commit and its acknowledgement
    assert not again.commit("agents", None, FIRST, write(again, rows(0, 3)))
    assert again.commit("agents", FIRST, SECOND, write(again, rows(3, 2)))
    assert not again.commit("agents", FIRST, THIRD, write(again, rows(3, 4)))
    assert again.position("agents") == SECOND
    assert numbers(folder, format_name) == [0, 1, 2, 3, 4]


def test_files_that_nobody_committed_are_not_seen(folder, format_name):
    table = open_table(folder, format_name)
    write(table, rows(100, 5))
    assert table.commit("agents", None, FIRST, write(table, rows(0, 1)))
    write(table, rows(200, 5))
    assert numbers(folder, format_name) == [0]


def test_sources_have_positions_of_their_own(folder, format_name):
    table = open_table(folder, format_name)
    assert table.commit("agents", None, SECOND, write(table, rows(0, 1)))
    assert table.commit("others", None, FIRST, write(table, rows(1, 1, bucket="others")))
    assert (table.position("agents"), table.position("others")) == (SECOND, FIRST)
    assert table.position("nobody") is None


def test_a_batch_without_rows_moves_the_position(folder, format_name):
    table = open_table(folder, format_name)
    assert table.commit("agents", None, FIRST, [])
    assert table.commit("agents", FIRST, SECOND, write(table, rows(0, 1)))
    assert table.commit("agents", SECOND, THIRD, [])
    assert open_table(folder, format_name).position("agents") == THIRD


def test_of_many_who_commit_the_same_batch_one_wins(folder, format_name):
    tables = [open_table(folder, format_name) for _ in range(4)]
    written = [write(table, rows(0, 3)) for table in tables]
    start = threading.Barrier(len(tables))
    won: list[bool] = []

    def commit(table: Table, files: list[DataFile]) -> None:
        start.wait()
        won.append(table.commit("agents", None, FIRST, files))

    threads = [threading.Thread(target=commit, args=pair) for pair in zip(tables, written, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False, False, False, True]
    assert numbers(folder, format_name) == [0, 1, 2]


def test_of_two_sources_at_once_both_win(folder, format_name):
    tables = [open_table(folder, format_name) for _ in range(3)]
    written = [write(table, rows(n, 1, bucket=f"bucket-{n}")) for n, table in enumerate(tables)]
    won: list[bool] = []

    def commit(n: int) -> None:
        won.append(tables[n].commit(f"bucket-{n}", None, FIRST, written[n]))

    threads = [threading.Thread(target=commit, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [True, True, True]
    assert numbers(folder, format_name) == [0, 1, 2]


def test_a_folder_with_other_things_is_left_alone(folder, format_name):
    folder.mkdir()
    (folder / "thesis.txt").write_text("do not touch")
    with pytest.raises(TableError, match="empty or a new folder"):
        open_table(folder, format_name)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]


def test_an_unknown_format_is_refused(folder):
    with pytest.raises(TableError, match="parquet, delta, iceberg"):
        open_table(folder, "orc")


# --- parquet alone


def test_a_crash_between_commit_and_placing_is_repaired(folder, monkeypatch):
    table = open_table(folder, "parquet")
    files = write(table, rows(0, 3))
    with monkeypatch.context() as power_cut:
        power_cut.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            table.commit("agents", None, FIRST, files)
    again = open_table(folder, "parquet")
    assert again.position("agents") == FIRST
    assert numbers(folder, "parquet") == [0, 1, 2]


def test_a_committed_file_that_is_missing_is_missed(folder):
    table = open_table(folder, "parquet")
    (file,) = write(table, rows(0, 1))
    assert table.commit("agents", None, FIRST, [file])
    (folder / file.partition_folder / file.name).unlink()
    with pytest.raises(TableError, match="is missing"):
        open_table(folder, "parquet")


# --- data files


def test_a_failure_removes_what_was_begun(folder):
    table = open_table(folder, "delta")

    def broken():
        yield rows(0, 3)
        raise RuntimeError("the network is gone")

    with pytest.raises(RuntimeError):
        list(write_data_files(broken(), table.layout))
    assert list(folder.rglob("*.parquet")) == []


def test_files_are_cut_by_size_and_few_are_open_at_once(folder, monkeypatch):
    monkeypatch.setattr(data_files, "WRITERS_MAX", 2)
    monkeypatch.setattr(data_files, "FILE_BYTES", 1500)
    table = open_table(folder, "parquet")
    days = [rows(n, 1, start=LATE + timedelta(days=n)) for n in range(5)]
    many = [rows(n, 50, start=LATE - timedelta(hours=9)) for n in range(100, 400, 50)]
    files = write(table, *days, *many)
    assert len(files) > 5 + 2
    assert table.commit("agents", None, FIRST, files)
    assert numbers(folder, "parquet") == [0, 1, 2, 3, 4, *range(100, 400)]


def test_statistics_cover_the_rows(folder):
    table = open_table(folder, "parquet")
    (file,) = write(table, rows(0, 3, start=LATE - timedelta(hours=1)))
    assert (file.rows, file.first_stream, file.last_stream) == (3, "run-0", "run-2")
    assert file.last_ms - file.first_ms == 2000
    assert file == replace(file, date="2026-03-02")


def test_a_bucket_of_any_name_makes_one_folder():
    assert data_files.partition_folder("a/b=c", "2026-03-02") == "bucket=a%2Fb%3Dc/date=2026-03-02"


def test_days_are_those_of_utc():
    shifted = rows(0, 2).set_column(
        SOURCE_SCHEMA.get_field_index("timestamp"),
        pa.field("timestamp", pa.timestamp("us", tz="America/New_York")),
        rows(0, 2).column("timestamp").cast(pa.timestamp("us", tz="America/New_York")),
    )
    assert [key for key, _ in by_partition(shifted)] == [("agents", date(2026, 3, 2)), ("agents", date(2026, 3, 3))]
