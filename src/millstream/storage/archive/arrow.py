"""Rows as Arrow record batches, column by column: no message is touched on its own.

Needs pyarrow (the extra `arrow`). Whoever imports this module must be ready to go without.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...model.errors import TooLarge
from .chunk import LARGE_SNAPSHOT, MESSAGE
from .rows import Row, Rows, Selection

SCHEMA = pa.schema(
    [
        ("bucket", pa.string()),
        ("stream", pa.string()),
        ("offset", pa.int64()),
        ("next_offset", pa.int64()),
        ("position", pa.string()),
        ("id", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("content_type", pa.string()),
        ("kind", pa.string()),
        ("value", pa.binary()),
    ]
)
END = b"\xff\xff\xff\xff\0\0\0\0"
_BINARY_MAX = (1 << 31) - 1


def record_batch(rows: Rows, selection: Selection, incarnation: int) -> Any:
    """The wanted rows as one record batch of `SCHEMA`."""
    streams, kinds, offsets, lengths, times, ids, id_seqs, sequences = map(partial(_numbers, rows.size), rows.columns)
    values = _values(rows, lengths)
    wanted = _wanted(rows, selection, streams, offsets, sequences)
    if wanted is not None:
        streams, kinds, offsets, lengths, times, ids, id_seqs, sequences, values = (
            pc.filter(column, wanted)
            for column in (streams, kinds, offsets, lengths, times, ids, id_seqs, sequences, values)
        )
    count = len(sequences)
    words = pa.repeat(pa.scalar("message"), count)
    following = pc.add(offsets, lengths)
    names = pc.binary_join_element_wise(_text(ids), _text(id_seqs), "-")
    if selection.gone:
        kept_from = pa.array([selection.kept_from(stream.number) for stream in rows.streams], pa.int64())
        is_kept = pc.greater_equal(offsets, pc.take(kept_from, streams))
        words = pc.if_else(is_kept, words, "gap")
        values = pc.if_else(is_kept, values, pa.scalar(None, pa.binary()))
    if pc.max(kinds).as_py():
        is_message = pc.equal(kinds, MESSAGE)
        words = pc.if_else(is_message, words, "snapshot")
        following = pc.if_else(is_message, following, offsets)
        names = pc.if_else(is_message, names, pa.scalar(None, pa.string()))
        values = pc.if_else(pc.equal(kinds, LARGE_SNAPSHOT), pa.scalar(None, pa.binary()), values)
    return pa.record_batch(
        [
            pa.repeat(pa.scalar(rows.bucket), count),
            pc.take(pa.array([stream.name for stream in rows.streams], pa.string()), streams),
            offsets,
            following,
            pc.binary_join_element_wise(f"{incarnation:016x}", _text(sequences), "."),
            names,
            pc.multiply(times, 1000).cast(SCHEMA.field("timestamp").type),
            pc.take(pa.array([stream.content_type for stream in rows.streams], pa.string()), streams),
            words,
            values,
        ],
        schema=SCHEMA,
    )


def batch_of_rows(bucket: str, rows: Iterable[Row], incarnation: int) -> Any:
    """Rows that come one by one, as one record batch."""
    columns: list[list[Any]] = [[] for _ in SCHEMA]
    for row in rows:
        values = (
            bucket, row.stream, row.offset, row.next_offset, f"{incarnation:016x}.{row.sequence}", row.id,
            None if row.at_ms is None else row.at_ms * 1000, row.content_type, row.kind, row.value,
        )  # fmt: skip
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


def stream_start() -> bytes:
    """How an Arrow stream begins. Batches follow, each as `serialized`, and `END`."""
    return bytes(SCHEMA.serialize())


def serialized(batch: Any) -> bytes:
    data: bytes = batch.serialize().to_pybytes()
    return data


def _numbers(count: int, column: memoryview) -> Any:
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(column)])


def _values(rows: Rows, lengths: Any) -> Any:
    ends = pc.cumulative_sum(lengths)
    if rows.size and ends[-1].as_py() > _BINARY_MAX:
        raise TooLarge("A message of more than 2 GiB does not fit into an Arrow batch. Read it as NDJSON.")
    places = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    return pa.Array.from_buffers(pa.binary(), rows.size, [None, places.buffers()[1], pa.py_buffer(rows.payload)])


def _wanted(rows: Rows, selection: Selection, streams: Any, offsets: Any, sequences: Any) -> Any:
    """Which rows are wanted; None for all of them."""
    if not rows.size:
        return None
    conditions = []
    first, last = rows.columns.sequences[0], rows.columns.sequences[-1]
    if first <= selection.after:
        conditions.append(pc.greater(sequences, selection.after))
    if last > selection.until:
        conditions.append(pc.less_equal(sequences, selection.until))
    if selection.first_offset:
        conditions.append(pc.greater_equal(offsets, selection.first_offset))
    if selection.prefix:
        has_prefix = [stream.name.startswith(selection.prefix) for stream in rows.streams]
        conditions.append(pc.take(pa.array(has_prefix, pa.bool_()), streams))
    wanted = None
    for condition in conditions:
        wanted = condition if wanted is None else pc.and_(wanted, condition)
    return wanted


def _text(numbers: Any) -> Any:
    return numbers.cast(pa.string())
