"""`df.write` and `df.writeStream`: tasks stage parts, the driver commits them in one transaction.

Exactly once rests on three things. Parts are seen only when a commit lists them, and each attempt of a task stages
under names of its own, so retries, speculative tasks and zombies leave parts that nobody lists. A commit carries the
application and its version, in a streaming query the query and the micro-batch: a version that is committed already is
acknowledged again and changes nothing, a lower one is refused. And the server orders each stream's messages by the
column that `orderBy` names, so that another partitioning or a shuffle changes no byte.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ..client.errors import ClientError, Conflict
from .asking import FENCED, Asker, TransactionRefused
from .errors import BadColumns, BadOption
from .options import WriteOptions

PART_BYTES = 16 << 20
_BATCH_BYTES = 4 << 20
# Spark's own names for these, undocumented: tests/spark/test_sink.py notices if they go.
BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
_ORDERS = (ByteType, ShortType, IntegerType, LongType, StringType, TimestampType, TimestampNTZType)


@dataclass(frozen=True)
class StagedParts(WriterCommitMessage):
    """What one task has staged."""

    app: str
    version: int
    partition: int
    parts: tuple[tuple[str, str | None], ...]  # names and etags, in the order of rows


class RowStager:
    """Turns a task's rows into parts. Plain values only: it travels to the executors."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        _check_columns(options, schema)
        self._options = options

    def stage(self, batches: Iterator[pa.RecordBatch], app: str, version: int) -> StagedParts:
        context = TaskContext.get()
        assert context is not None, "rows are staged by tasks"
        # Attempts are numbered within one application only; the random part tells restarts and zombies apart.
        prefix = f"{context.partitionId()}-{context.taskAttemptId()}-{uuid.uuid4().hex[:16]}"
        staged: list[tuple[str, str | None]] = []
        with Asker(self._options.server) as asker:
            for number, body in enumerate(self._bodies(batches)):
                name = f"{prefix}-{number}"
                part = asker.stage(app, version, name, body)
                if part is None or part.duplicate:
                    break  # this version is over, and so is this task; the commit says which way
                staged.append((name, part.etag))
        return StagedParts(app, version, context.partitionId(), tuple(staged))

    def _bodies(self, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
        """The rows as Arrow streams, each small enough to be kept for a retry."""
        sink: pa.BufferOutputStream | None = None
        writer: pa.ipc.RecordBatchStreamWriter | None = None
        for batch in batches:
            for part in _sliced(self._columns(batch)):
                if sink is None or writer is None:
                    sink = pa.BufferOutputStream()
                    writer = pa.ipc.new_stream(sink, part.schema)
                writer.write_batch(part)
                if sink.tell() >= PART_BYTES:
                    writer.close()
                    yield sink.getvalue().to_pybytes()
                    sink = writer = None
        if sink is not None and writer is not None:
            writer.close()
            yield sink.getvalue().to_pybytes()

    def _columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        options = self._options
        value = batch.column("value").cast(pa.binary())
        _refuse_nulls("value", value, "A row without a value cannot be a message: filter such rows out first.")
        if value.type == pa.binary() and len(value) and pc.min(pc.binary_length(value)).as_py() == 0:
            raise BadColumns("The column value has an empty message; a message has one byte or more.")
        columns = {"value": value}
        if options.stream is None:
            columns["stream"] = batch.column("stream").cast(pa.string())
            _refuse_nulls("stream", columns["stream"], "Every row needs the name of its stream.")
        else:
            columns["stream"] = pa.repeat(pa.scalar(options.stream), batch.num_rows)
        if options.order_by is not None:
            order = batch.column(options.order_by)
            columns["order"] = order.cast(pa.int64()) if pa.types.is_integer(order.type) else order
            _refuse_nulls(options.order_by, order, "The column of orderBy must have a value in every row.")
        return pa.RecordBatch.from_pydict(columns)


class BatchWriter(DataSourceArrowWriter):
    """One batch write is one transaction: of the application that is named, or of one made up for it alone."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _refuse_overwriting(overwrite)
        self._options = options
        self._stager = RowStager(options, schema)
        self._app = options.app or f"spark-{uuid.uuid4().hex}"
        self._version = options.version or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedParts:
        return self._stager.stage(iterator, self._app, self._version)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with Asker(self._options.server) as asker:
            commit_parts(asker, self._options, self._app, self._version, messages)
            if self._options.app is None:
                asker.forget(self._app)  # nobody will ever name it again

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # A named application may be at work elsewhere under the same version: its next commit clears up, or time does.
        if self._options.app is None:
            with Asker(self._options.server) as asker:
                asker.forget(self._app)


class StreamWriter(DataSourceStreamArrowWriter):
    """Each micro-batch is one transaction: the query is the application, the batch its version."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _refuse_overwriting(overwrite)
        self._options = options
        self._stager = RowStager(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedParts:
        app, version = batch_in_progress(self._options.app)
        return self._stager.stage(iterator, app, version)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = _staged(messages)
        if not staged:
            return  # not one task ran, so there is nothing to be made visible
        app, version = staged[0].app, staged[0].version
        if version != batchId:
            raise BadOption(f"Tasks staged batch {version}, but Spark commits batch {batchId}. Nothing was written.")
        with Asker(self._options.server) as asker:
            commit_parts(asker, self._options, app, version, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Parts stay: another driver may be at work on this very batch. Its commit clears up, or time does."""


def batch_in_progress(app: str | None) -> tuple[str, int]:
    """Application and version of the micro-batch that this task belongs to."""
    context = TaskContext.get()
    assert context is not None, "rows are staged by tasks"
    batch, query = context.getLocalProperty(BATCH_ID), context.getLocalProperty(QUERY_ID)
    if batch is None or (app is None and query is None):
        raise BadOption(
            "Spark does not say which micro-batch this is, so that it could not be written exactly once. Use "
            "foreachBatch with df.write and the options txnAppId and txnVersion."
        )
    return app or f"spark-{query}", int(batch)


def commit_parts(
    asker: Asker, options: WriteOptions, app: str, version: int, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Make everything that was staged visible, once."""
    parts: list[dict[str, str]] = []
    for staged in sorted(_staged(messages), key=lambda message: message.partition):
        parts += [{"part": name, "etag": etag} if etag else {"part": name} for name, etag in staged.parts]
    order: dict[str, object] = {"parts": parts, "create": options.create_streams}
    if options.content_type is not None:
        order["content_type"] = options.content_type
    try:
        asker.commit(app, version, order)
    except Conflict as error:
        raise _explained(error, app, version) from error


def _explained(error: ClientError, app: str, version: int) -> ClientError:
    if error.code == FENCED:
        advice = (
            f"A later version of {app!r} than {version} is committed: another run of this query is ahead of this one, "
            "or its checkpoint was deleted while txnAppId stayed the same. Stop one, or choose another txnAppId."
        )
    elif isinstance(error, TransactionRefused) and "stream_not_found" in error.reasons:
        advice = "To create streams that are missing, set createStreams to true, and contentType to their type."
    else:
        advice = "Nothing was written."
    return Conflict(f"{error.message} {advice}", code=error.code, status=error.status, url=error.url)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedParts]:
    return [message for message in messages if isinstance(message, StagedParts)]


def _check_columns(options: WriteOptions, schema: StructType) -> None:
    types = {field.name: field.dataType for field in schema}
    if not isinstance(types.get("value"), BinaryType | StringType):
        raise BadColumns(
            f"The sink needs a column value of type binary or string, but has {_shown(schema)}. To write rows as JSON: "
            'df.selectExpr("stream", "to_json(struct(*)) AS value").'
        )
    if options.stream is None and not isinstance(types.get("stream"), StringType):
        raise BadColumns(
            f"The sink needs to know the stream: a column stream of type string, or the option stream. There is "
            f"{_shown(schema)}."
        )
    if options.order_by is not None and not isinstance(types.get(options.order_by), _ORDERS):
        raise BadColumns(
            f"The option orderBy is {options.order_by!r}. Allowed is a column with whole numbers, times or strings; "
            f"there is {_shown(schema)}."
        )


def _shown(schema: StructType) -> str:
    return ", ".join(f"{field.name} ({field.dataType.simpleString()})" for field in schema)


def _refuse_nulls(name: str, column: pa.Array, advice: str) -> None:
    if column.null_count:
        raise BadColumns(f"The column {name} is null in {column.null_count} of {len(column)} rows. {advice}")


def _refuse_overwriting(overwrite: bool) -> None:
    if overwrite:
        raise BadOption("Streams are append-only: use mode('append').")


def _sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Batches small enough for one part, however large Spark made them."""
    if batch.nbytes <= _BATCH_BYTES or batch.num_rows <= 1:
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from _sliced(batch.slice(0, half))
    yield from _sliced(batch.slice(half))
