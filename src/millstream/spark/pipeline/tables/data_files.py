"""Data files: what executors write. Parquet, one set of files for each bucket and day, named so that no attempt of a
task meets another one's."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...schema import ARROW_SCHEMA

FILE_BYTES = 128 << 20
WRITERS_MAX = 32

# The columns of the data source, and the day to partition by.
TABLE_SCHEMA = ARROW_SCHEMA.insert(1, pa.field("date", pa.date32()))
PARTITION_COLUMNS = ("bucket", "date")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where files go: `folder` below the table's root. Formats whose readers take the partition from the folder's name
    leave its columns out of the files."""

    root: str
    folder: str
    partition_columns_in_files: bool

    @property
    def schema(self) -> pa.Schema:
        if self.partition_columns_in_files:
            return TABLE_SCHEMA
        return pa.schema([field for field in TABLE_SCHEMA if field.name not in PARTITION_COLUMNS])


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file that is written and synced. `path` is below the root; the rest is for statistics. `untimed` rows have no
    time: gaps of which only the offsets are known."""

    path: str
    bucket: str
    date: str
    rows: int
    bytes: int
    first_stream: str
    last_stream: str
    first_ms: int
    last_ms: int
    untimed: int

    @property
    def partition_folder(self) -> str:
        return partition_folder(self.bucket, self.date)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


# What tasks hand to the driver: names and numbers, never data.
FILE_SCHEMA = pa.schema([(one.name, pa.string() if one.type == "str" else pa.int64()) for one in fields(DataFile)])


def partition_folder(bucket: str, day: str) -> str:
    return f"bucket={quote(bucket, safe='')}/date={day}"


def write_data_files(batches: Iterable[pa.RecordBatch], layout: Layout) -> Iterator[DataFile]:
    """Write all rows; gives each file when it is complete. A failure removes what was begun."""
    writers: dict[tuple[str, date], _Writer] = {}
    try:
        for batch in batches:
            for key, rows in by_partition(batch):
                writer = writers.pop(key, None)
                if writer is None:
                    if len(writers) >= WRITERS_MAX:
                        yield writers.pop(next(iter(writers))).finished()  # the one that was not used for longest
                    writer = _Writer(layout, *key)
                writer.write(rows)
                if writer.size >= FILE_BYTES:
                    yield writer.finished()
                else:
                    writers[key] = writer
        while writers:
            yield writers.popitem()[1].finished()
    finally:
        for writer in writers.values():
            writer.abandon()


def by_partition(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, date], pa.Table]]:
    """The rows of each bucket and day, in the columns and types of the table. Rows without a time count as today's."""
    times = batch.column("timestamp").cast(TABLE_SCHEMA.field("timestamp").type)
    today = pa.scalar(datetime.now(UTC).date(), pa.date32())
    table = pa.table(
        [
            pc.fill_null(times.cast(pa.timestamp("us")).cast(pa.date32(), safe=False), today)
            if field.name == "date"
            else times
            if field.name == "timestamp"
            else batch.column(field.name).cast(field.type)
            for field in TABLE_SCHEMA
        ],
        schema=TABLE_SCHEMA,
    )
    for bucket in pc.unique(table["bucket"]).to_pylist():
        of_bucket = table.filter(pc.equal(table["bucket"], bucket))
        for day in sorted(pc.unique(of_bucket["date"]).to_pylist()):
            yield (bucket, day), of_bucket.filter(pc.equal(of_bucket["date"], pa.scalar(day)))


class _Writer:
    """One file in the making."""

    def __init__(self, layout: Layout, bucket: str, day: date) -> None:
        self._layout = layout
        self._bucket = bucket
        self._day = day.isoformat()
        folder = Path(layout.folder, partition_folder(bucket, self._day))
        self._path = folder / f"part-{uuid.uuid4().hex}.parquet"
        self._full_path = Path(layout.root) / self._path
        self._full_path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._full_path.open("xb")
        self._parquet = pq.ParquetWriter(self._file, layout.schema, compression="zstd")
        self._rows = 0
        self._streams: tuple[str, str] | None = None
        self._times: tuple[int, int] | None = None
        self._untimed = 0

    @property
    def size(self) -> int:
        return self._file.tell()

    def write(self, rows: pa.Table) -> None:
        self._parquet.write_table(rows.select(self._layout.schema.names))
        self._rows += rows.num_rows
        self._untimed += rows["timestamp"].null_count
        self._streams = _wider(self._streams, rows["stream"])
        self._times = _wider(self._times, rows["timestamp"].cast(pa.int64()))

    def finished(self) -> DataFile:
        """Complete and on the disk, before anybody learns its name."""
        assert self._streams is not None, "a file has a row"
        first_us, last_us = self._times or (0, 0)
        self._parquet.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        sync_folder(self._full_path.parent)
        return DataFile(
            path=self._path.as_posix(),
            bucket=self._bucket,
            date=self._day,
            rows=self._rows,
            bytes=self._full_path.stat().st_size,
            first_stream=self._streams[0],
            last_stream=self._streams[1],
            first_ms=first_us // 1000,
            last_ms=-(-last_us // 1000),
            untimed=self._untimed,
        )

    def abandon(self) -> None:
        with suppress(OSError):
            self._parquet.close()  # otherwise it would try to, later, on a file that is closed
            self._file.close()
        self._full_path.unlink(missing_ok=True)


def _wider(seen: tuple[Any, Any] | None, column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    found = pc.min_max(column).as_py()
    low, high = found["min"], found["max"]
    if low is None:
        return seen
    return (low, high) if seen is None else (min(low, seen[0]), max(high, seen[1]))


def files_as_batch(files: Iterable[DataFile]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([asdict(file) for file in files], schema=FILE_SCHEMA)


def remove_data_files(root: str, files: Iterable[DataFile]) -> None:
    """Take back files that were never committed."""
    for file in files:
        Path(root, file.path).unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
