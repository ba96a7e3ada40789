"""`export`: streams to tables, batch by batch, each from where the table stands up to a position of the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...client.errors import Gone
from ..asking import Asker, Extent
from ..plan import Plan
from .tables.data_files import (
    FILE_SCHEMA,
    DataFile,
    Layout,
    files_as_batch,
    remove_data_files,
    write_data_files,
)
from .tables.table import Table, TableError, open_table
from .target import Target

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from .session import Bar

BATCH_BYTES = 256 << 20
NEWS_WAIT_MS = 10_000


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What an export did. `position` is up to where the table has the bucket now; `recognised` counts batches that
    turned out to be committed by another export."""

    rows: int = 0
    bytes: int = 0
    files: int = 0
    batches: int = 0
    recognised: int = 0
    position: str | None = None
    dry_run: bool = False


def export(
    url: str,
    bucket: str,
    path: str | Path,
    *,
    format: str = "parquet",
    prefix: str = "",
    include_snapshots: bool = False,
    continuous: bool = False,
    every_s: float = 10.0,
    batch_bytes: int = BATCH_BYTES,
    token: str | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    dry_run: bool = False,
    show_progress: bool = False,
    on_batch: Callable[[ExportResult], None] | None = None,
) -> ExportResult:
    """Append everything that came into a bucket since the last export to a table, partitioned by bucket and day.

    The table remembers how far it has come, so an export can be stopped, killed and repeated, and two may run at once:
    every message is in the table once. One table may hold many buckets. What was trimmed before it was exported
    is a row of kind `gap`. With `continuous` it goes on until it is interrupted, looking for news every `every_s`
    seconds. `on_batch` is called with the sums so far after every commit.

        export("http://127.0.0.1:4437", "agents", "tables/agents", format="delta")
    """
    target = Target(url, bucket, prefix, token)
    folder = Path(path)
    table = None if dry_run and not folder.exists() else open_table(folder, format)
    if dry_run:
        position = table.position(target.source) if table is not None else None
        plan = _plan(target, position, None)
        return ExportResult(plan.messages, plan.bytes, position=position, dry_run=True)
    assert table is not None
    from .session import progress_bar, session  # here, so that a dry run does not wait for a JVM

    spark = spark or session(master, conf)
    exporter = Exporter(spark, target, table, batch_bytes, include_snapshots)
    ahead = exporter.bytes_ahead() if show_progress else 1
    with progress_bar(spark, f"Exporting {target.source}", ahead, shown=show_progress) as bar:
        while True:
            more = exporter.batch(bar)
            if more and on_batch is not None:
                on_batch(exporter.done)
            if not more:
                if not continuous:
                    return exporter.done
                exporter.wait_for_news(every_s)


class Exporter:
    """One export in progress."""

    def __init__(
        self, spark: SparkSession, target: Target, table: Table, batch_bytes: int, include_snapshots: bool
    ) -> None:
        self._spark = spark
        self._target = target
        self._table = table
        self._batch_bytes = batch_bytes
        self._snapshots = "true" if include_snapshots else "false"
        position = table.position(target.source)
        self._read_from = position  # may be ahead of the table: where nothing was found there is nothing to commit
        self.done = ExportResult(position=position)

    def bytes_ahead(self) -> int:
        return _plan(self._target, self._read_from, None).bytes

    def batch(self, bar: Bar) -> bool:
        """Export the next batch. False when there is no more for now."""
        plan = _plan(self._target, self._read_from, self._batch_bytes)
        if plan.until == self._read_from:
            return False
        files: list[DataFile] = []
        if plan.messages or plan.rows:
            with bar.step(plan.bytes):
                files = self._write(plan)
        if not files:
            self._read_from = plan.until
            return not plan.up_to_date
        self._commit(plan.until, files)
        return True

    def wait_for_news(self, every_s: float) -> None:
        """Return when the bucket may have news, not before `every_s` have passed."""
        earliest = time.monotonic() + every_s
        with Asker(self._target.server) as asker:
            after = self._read_from or "earliest"
            try:
                while not asker.feed(after, self._target.prefix, limit=1, wait_ms=NEWS_WAIT_MS).entries:
                    pass
            except Gone:
                pass  # older than the feed goes back: there may be news
        time.sleep(max(0.0, earliest - time.monotonic()))

    def _write(self, plan: Plan) -> list[DataFile]:
        """Executors write; what comes back are names."""
        options = {
            "startingOffsets": self._read_from or "earliest",
            "endingOffsets": plan.until,
            "includeSnapshots": self._snapshots,
        }
        layout = self._table.layout
        rows = self._target.read(self._spark, options)
        return [DataFile(**row.asDict()) for row in rows.mapInArrow(_writing_to(layout), _file_columns()).collect()]

    def _commit(self, until: str, files: list[DataFile]) -> None:
        if self._table.commit(self._target.source, self.done.position, until, files):
            self._read_from = until
            self.done = replace(
                self.done,
                rows=self.done.rows + sum(file.rows for file in files),
                bytes=self.done.bytes + sum(file.bytes for file in files),
                files=self.done.files + len(files),
                batches=self.done.batches + 1,
                position=until,
            )
            return
        remove_data_files(self._table.layout.root, files)
        self._read_from = self._table.position(self._target.source)
        self.done = replace(self.done, recognised=self.done.recognised + 1, position=self._read_from)


def _plan(target: Target, after: str | None, batch_bytes: int | None) -> Plan:
    """What is there behind a position. Its lease is given back: the data source takes one of its own."""
    with Asker(target.server) as asker:
        try:
            plan = asker.plan(Extent(after or "earliest", "now", target.prefix, batch_bytes))
        except Gone as gone:
            raise TableError(
                f"The table has {target.source} up to {after}, which the server does not know: its log was restored or "
                f"is another one. Export to a new folder. ({gone})"
            ) from gone
        asker.release(plan.lease.url)
        return plan


def _writing_to(layout: Layout) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # All names at once, at the end: a task that fails has told nobody of its files.
        yield files_as_batch(list(write_data_files(batches, layout)))

    return write


def _file_columns() -> str:
    return ", ".join(f"`{field.name}` {'string' if str(field.type) == 'string' else 'long'}" for field in FILE_SCHEMA)
