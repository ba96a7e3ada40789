"""Record batches out of segment blocks, column by column; no message is touched by itself.

What a block holds is the layout of an Arrow binary column already: lengths, and the bytes one behind the other. Small
blocks are gathered until they make a batch worth handing to Spark. (Archive chunks make batches of their own, see
`storage.archive.arrow`.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..storage.segments.block import OpenBlock
from .plan import PlanRow
from .schema import ARROW_SCHEMA, MESSAGE

BATCH_BYTES = 4 << 20
BATCH_ROWS = 20_000
_TYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Span:
    """Which sequences count: those behind `after`, up to `until`."""

    after: int
    until: int


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Rows of one block that count, as columns, with the stream they are of."""

    stream: str
    content_type: str
    offsets: _Numbers
    lengths: _Numbers
    times_ms: _Numbers
    ids_ms: _Numbers
    id_seqs: _Numbers
    sequences: _Numbers
    payload: memoryview


def block_rows(block: OpenBlock, stream: str, content_type: str, first_offset: int, span: Span) -> BlockRows | None:
    """The part of a block that counts. Offsets and sequences never go back, so that it is one slice."""
    lengths = _column(block.lengths, block.messages)
    sequences = _column(block.sequences, block.messages, block.base_sequence)
    ends = np.cumsum(lengths)
    offsets = ends - lengths + block.first_offset
    low, high = 0, block.messages
    if first_offset > block.first_offset or span.after >= block.base_sequence:
        by_offset, by_sequence = np.searchsorted(offsets, first_offset), np.searchsorted(sequences, span.after, "right")
        low = max(int(by_offset), int(by_sequence))
    if span.until < sequences[-1]:
        high = int(np.searchsorted(sequences, span.until, "right"))
    if low >= high:
        return None
    begins = int(offsets[low]) - block.first_offset
    part = slice(low, high)
    return BlockRows(
        stream,
        content_type,
        offsets[part],
        lengths[part],
        _column(block.times_ms, block.messages, block.base_ms)[part],
        _column(block.ids_ms, block.messages, block.base_id_ms)[part],
        _column(block.id_seqs, block.messages)[part],
        sequences[part],
        block.payload[begins : int(ends[high - 1])],
    )


def _column(stored: tuple[int, memoryview], count: int, base: int = 0) -> _Numbers:
    width, data = stored
    if width == 0:
        return np.full(count, base, dtype=np.int64)
    numbers = np.frombuffer(data, dtype=_TYPES[width]).astype(np.int64)
    return numbers + base if base else numbers


class Gatherer:
    """Puts the rows of small blocks together into batches of a good size."""

    def __init__(self, bucket: str, incarnation: str) -> None:
        self._bucket = bucket
        self._incarnation = incarnation
        self._parts: list[BlockRows] = []
        self._rows = 0
        self._bytes = 0

    def add(self, rows: BlockRows) -> pa.RecordBatch | None:
        """Take rows; a batch when there is enough."""
        self._parts.append(rows)
        self._rows += len(rows.offsets)
        self._bytes += len(rows.payload)
        return self.flush() if self._bytes >= BATCH_BYTES or self._rows >= BATCH_ROWS else None

    def flush(self) -> pa.RecordBatch | None:
        """What was gathered, if anything."""
        parts, self._parts, self._rows, self._bytes = self._parts, [], 0, 0
        if not parts:
            return None
        counts = np.array([len(part.offsets) for part in parts])
        indexes = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
        lengths = _joined([part.lengths for part in parts])
        return _batch(
            bucket=self._bucket,
            incarnation=self._incarnation,
            streams=_looked_up([part.stream for part in parts], indexes),
            content_types=_looked_up([part.content_type for part in parts], indexes),
            offsets=_joined([part.offsets for part in parts]),
            lengths=lengths,
            times_ms=_joined([part.times_ms for part in parts]),
            ids_ms=_joined([part.ids_ms for part in parts]),
            id_seqs=_joined([part.id_seqs for part in parts]),
            sequences=_joined([part.sequences for part in parts]),
            kinds=_repeated(MESSAGE, len(indexes)),
            values=_values(lengths, b"".join([part.payload for part in parts])),
        )


def plan_rows_batch(rows: Sequence[PlanRow]) -> pa.RecordBatch:
    """Rows that came with the plan."""
    columns = {
        name: [getattr(row, name) for row in rows] for name in ARROW_SCHEMA.names if name not in ("timestamp", "value")
    }
    columns["timestamp"] = [row.timestamp and datetime.fromisoformat(row.timestamp) for row in rows]
    columns["value"] = [row.value for row in rows]
    return pa.RecordBatch.from_pydict(columns, schema=ARROW_SCHEMA)


def sized(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are not larger than Spark likes them."""
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(start, BATCH_ROWS)


def _batch(
    *,
    bucket: str,
    incarnation: str,
    streams: pa.Array,
    content_types: pa.Array,
    offsets: _Numbers,
    lengths: _Numbers,
    times_ms: _Numbers,
    ids_ms: _Numbers,
    id_seqs: _Numbers,
    sequences: _Numbers,
    kinds: pa.Array,
    values: pa.Array,
) -> pa.RecordBatch:
    arrays = [
        _repeated(bucket, len(offsets)),
        streams,
        pa.array(offsets),
        pa.array(offsets + lengths),
        _positions(incarnation, sequences),
        pc.binary_join_element_wise(pa.array(ids_ms).cast(pa.string()), pa.array(id_seqs).cast(pa.string()), "-"),
        pa.array(times_ms * 1000).cast(pa.timestamp("us", tz="UTC")),
        content_types,
        kinds,
        values,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _positions(incarnation: str, sequences: _Numbers) -> pa.Array:
    """Texts are costly: messages of one append share theirs."""
    is_new = np.concatenate(([True], sequences[1:] != sequences[:-1]))
    texts = pc.binary_join_element_wise(incarnation, pa.array(sequences[is_new]).cast(pa.string()), ".")
    return texts if len(texts) == len(sequences) else texts.take(pa.array(np.cumsum(is_new) - 1))


def _values(lengths: _Numbers, payload: bytes) -> pa.Array:
    ends = np.zeros(len(lengths) + 1, dtype=np.int32)
    ends[1:] = np.cumsum(lengths)
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(payload)])


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _looked_up(texts: Sequence[str], indexes: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(texts, pa.string()).take(pa.array(indexes))


def _joined(columns: Sequence[_Numbers]) -> _Numbers:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)
