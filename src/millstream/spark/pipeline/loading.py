"""`load`: files into streams, exactly once and resumable, as a row of transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...client import AlreadyExists
from ...model.media import is_json
from ..asking import Asker
from .source_files import ROW_SCHEMA, Columns, LoadError, Piece, cut, find_files, fingerprint, grouped, read_piece
from .target import FORMAT, Target

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TRANSACTION_BYTES = 64 << 20
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load did. `skipped` transactions were committed by an earlier run of the same load."""

    name: str
    files: int
    file_bytes: int
    transactions: int
    skipped: int
    messages: int = 0
    bytes: int = 0
    dry_run: bool = False


def load(
    url: str,
    bucket: str,
    files: Sequence[str | Path],
    stream_column: str,
    *,
    value_column: str | None = None,
    format: str | None = None,
    content_type: str = JSON,
    create_bucket: bool = True,
    name: str | None = None,
    transaction_bytes: int = TRANSACTION_BYTES,
    token: str | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    dry_run: bool = False,
    show_progress: bool = False,
) -> LoadResult:
    """Append the rows of files to streams: JSONL, CSV or Parquet, by name, folder or glob.

    The column `stream_column` names each row's stream; streams that do not exist are created with `content_type`. The
    message is the row as JSON (of JSONL the line as it stands), or what is in `value_column`. Rows of one stream keep
    their order within and across files, which are taken in the order of their names.

    Each load has a name, made from the files and the settings unless one is given. Repeating a load under its name
    goes on where it stopped, and appends nothing twice. Executors must be able to open the files under their paths.

        load("http://127.0.0.1:4437", "agents", ["runs/*.jsonl"], "run")
    """
    target = Target(url, bucket, token=token)
    columns = Columns(stream_column, value_column, as_text=not is_json(content_type))
    found = find_files([str(file) for file in files], format)
    groups = grouped(cut(found, columns), transaction_bytes)
    loader = Loader(
        target, columns, content_type, name or f"load-{fingerprint(found, columns, content_type, transaction_bytes)}"
    )
    if not dry_run and create_bucket:
        loader.create_bucket()
    done = loader.committed(missing_bucket_is_fine=dry_run)
    _check_resumable(done, len(groups), loader.name)
    sizes = {
        "files": len(found),
        "file_bytes": sum(file.bytes for file in found),
        "transactions": len(groups),
        "skipped": done,
    }
    if not dry_run and done < len(groups):
        loader.run(groups, done, spark, master, conf, show_progress)
    return LoadResult(loader.name, **sizes, messages=loader.messages, bytes=loader.bytes, dry_run=dry_run)


class Loader:
    """One load: its name, and how far it has come."""

    def __init__(self, target: Target, columns: Columns, content_type: str, name: str) -> None:
        self._target = target
        self._columns = columns
        self._content_type = content_type
        self.name = name
        self.messages = 0
        self.bytes = 0

    def create_bucket(self) -> None:
        with self._target.client() as client:
            try:
                client.bucket(self._target.bucket).create()
            except AlreadyExists:
                return

    def committed(self, *, missing_bucket_is_fine: bool = False) -> int:
        """How many transactions of this load the server has."""
        with Asker(self._target.server) as asker:
            last = asker.last_committed(self.name, missing_bucket_is_fine=missing_bucket_is_fine)
        return 0 if last is None or last.version is None else last.version + 1

    def run(
        self,
        groups: Sequence[Sequence[Piece]],
        first: int,
        spark: SparkSession | None,
        master: str | None,
        conf: Mapping[str, str] | None,
        show_progress: bool,
    ) -> None:
        from .session import progress_bar, session  # here, so that what needs no Spark does not wait for a JVM

        spark = spark or session(master, conf)
        total = sum(piece.bytes for group in groups[first:] for piece in group)
        with progress_bar(spark, f"Loading into {self._target.bucket}", total, shown=show_progress) as bar:
            for version, pieces in enumerate(groups[first:], first):
                with bar.step(sum(piece.bytes for piece in pieces)):
                    self._write(self._rows(spark, pieces), version)

    def _rows(self, spark: SparkSession, pieces: Sequence[Piece]) -> DataFrame:
        """The rows of these pieces, each read by a task of its own."""
        schema = "stream string, value binary, `order` long"
        assert ROW_SCHEMA.names == ["stream", "value", "order"]
        return spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(_reading(pieces, self._columns), schema)

    def _write(self, rows: DataFrame, version: int) -> None:
        options = {
            **self._target.options(),
            "createStreams": "true",
            "contentType": self._content_type,
            "orderBy": "order",
            "txnAppId": self.name,
            "txnVersion": str(version),
        }
        rows.write.format(FORMAT).options(**options).mode("append").save()
        with Asker(self._target.server) as asker:
            done = asker.last_committed(self.name)
        if done is not None:
            self.messages += done.messages
            self.bytes += done.bytes


def _reading(
    pieces: Sequence[Piece], columns: Columns
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_piece(pieces[number], columns)

    return read


def _check_resumable(done: int, transactions: int, name: str) -> None:
    if done > transactions:
        raise LoadError(
            f"under the name {name!r} {done} transactions were committed, but these files make {transactions} only; "
            "this is another load: give it another --name"
        )
