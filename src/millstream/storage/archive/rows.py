"""Rows of bulk reads, from whatever holds them: a chunk, a block, or facts that are in neither yet.

Rows stay columns as long as they can; `selected` takes them apart, `arrow` makes arrays of them without doing so.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..segments.block import Block
from .chunk import LARGE_SNAPSHOT, MESSAGE, Chunk, ChunkStream, RowCollector, RowColumns

KEPT_NOTHING = (1 << 63) - 1


class Rows(NamedTuple):
    """Messages and snapshots of one bucket."""

    bucket: str
    streams: list[ChunkStream]
    columns: RowColumns
    payload: memoryview

    @property
    def size(self) -> int:
        return len(self.columns.sequences)


class Selection(NamedTuple):
    """Which rows are wanted, and which of them are gaps."""

    after: int  # sequences behind this one
    until: int  # and not behind this one
    prefix: str = ""
    first_offset: int = 0
    # Of streams that have lost messages: the first offset that they have kept, None for nothing.
    gone: Mapping[int, int | None] = {}

    def kept_from(self, number: int) -> int:
        """The first offset that the stream with this number has kept."""
        kept = self.gone.get(number, 0)
        return KEPT_NOTHING if kept is None else kept


class Row(NamedTuple):
    stream: str
    offset: int
    next_offset: int
    sequence: int
    id: str | None
    at_ms: int | None
    content_type: str
    kind: str
    value: bytes | memoryview | None


def rows_of_chunk(chunk: Chunk) -> Rows:
    bucket, streams = chunk.names()
    return Rows(bucket, streams, chunk.columns(), chunk.payload())


def rows_of_block(block: Block, bucket: str, stream: ChunkStream) -> Rows:
    count = len(block.lengths)
    offsets, offset = [], block.first_offset
    for length in block.lengths:
        offsets.append(offset)
        offset += length
    nothing = _column([0] * count)
    columns = RowColumns(
        nothing,
        nothing,
        *map(_column, (offsets, block.lengths, block.times_ms, block.ids_ms, block.id_seqs, block.sequences)),
    )
    return Rows(bucket, [stream], columns, block.payload)


def rows_of_facts(bucket: str, collected: RowCollector) -> Rows:
    columns = RowColumns(*[memoryview(column) for column in collected.columns()])
    return Rows(bucket, collected.streams, columns, memoryview(collected.payload()))


def _column(values: Sequence[int]) -> memoryview:
    return memoryview(array("Q", values))


def selected(rows: Rows, selection: Selection) -> Iterator[Row]:
    """The wanted rows, one by one."""
    wanted = [stream.name.startswith(selection.prefix) for stream in rows.streams]
    kept_from = [selection.kept_from(stream.number) for stream in rows.streams]
    at = 0
    for index, kind, offset, length, at_ms, id_ms, id_seq, sequence in zip(*rows.columns, strict=True):
        start, at = at, at + length
        if not (wanted[index] and selection.after < sequence <= selection.until and offset >= selection.first_offset):
            continue
        _, name, content_type = rows.streams[index]
        is_kept = offset >= kept_from[index]
        value = rows.payload[start:at] if is_kept and kind != LARGE_SNAPSHOT else None
        if kind == MESSAGE:
            word = "message" if is_kept else "gap"
            yield Row(
                name, offset, at - start + offset, sequence, f"{id_ms}-{id_seq}", at_ms, content_type, word, value
            )
        else:
            yield Row(name, offset, offset, sequence, None, at_ms, content_type, "snapshot", value)
