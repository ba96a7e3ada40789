"""Rows as an Arrow IPC stream, written by hand: what a server sends needs no pyarrow, which would take 55 MB and half a
second at the first read, and the messages' bytes go out as they were read.

    stream   schema message | record batch message ... | end
    message  ff ff ff ff | metadata bytes i32 | metadata | body
    body     the buffers of each column, each padded to 8 bytes: validity (empty: all valid), data; for strings and
             bytes validity, offsets i32, data

The metadata of a batch is a flatbuffer with a fixed layout, because the schema never changes: see `_METADATA`. The
value column is the last one, so a message's bytes are the last buffer and need not be copied into place.

Hot code: measured by `bench/feed.py`.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from base64 import b64decode
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import add

from ...model.errors import TooLarge
from .chunk import LARGE_SNAPSHOT, MESSAGE
from .columns import (
    Texts,
    any_but_zero,
    are_all_alike,
    distances,
    ends_of,
    even_offsets,
    id_texts,
    offsets_of,
    position_texts,
    times_thousand,
)
from .rows import Row, Rows, Selection

Piece = bytes | memoryview
END = b"\xff\xff\xff\xff\0\0\0\0"
_BINARY_MAX = (1 << 31) - 1

# The schema's message as pyarrow writes it (`arrow.SCHEMA.serialize()`; a test compares them).
_SCHEMA = (
    b"eNptkj1Ow0AQhZ+NnZhA4YKCIgUFB0jBASLR5AAgUSBFJtkIK/GP8AaFjiNwBAoKjkJJ6ZKTsLzZXYlVYKy3f/5m1m9kY4yZxkAO"
    b"iRGOMUCKjCtGlHAP7jKOiR9h331FwBt1T00iYYGe0wt1S008e/NtjBSS+qf+TCKlHovNVnGekXl2XLrPybwu66WsWzLvAXcWcPKd"
    b"i6bWqtZz/dRKWbyS7R0/Ev484A8pXVaq00XVWo/i3DkFYssdUNdXlxib3ztPghpsG0p+WSY9DJhxwEi9tulKXTa17C/IbRwb77NH"
    b"VK12et6sVp3S+LQcoql4CXJC3wPK49ZDhqH34PJ6839fJa/TD6qogA8yOZ1lPB3aTub+f/jrR/Lutou13JfYx8UPtaliJg=="
)

_COLUMNS = 10
_BUFFERS = 27
# Offsets in this flatbuffer count from where they stand; a table starts with the way back to its vtable.
_METADATA = struct.Struct(
    "<I"  # 0: where the message is
    "6H"  # 4: its vtable: sizes, version, header type, header, body length
    "ihBxqI4x"  # 16: the message: vtable, version 5, record batch, body length, header
    "4x5H2x"  # 40: the batch's vtable at 44: sizes, length, nodes, buffers
    "iIqI"  # 56: the batch: vtable, nodes, length, buffers
    f"I{2 * _COLUMNS}q"  # 76: nodes: length and nulls of each column
    f"4xI{2 * _BUFFERS}q"  # 240: buffers: place and length
)
_V5, _RECORD_BATCH = 4, 3
assert _METADATA.size == 680


def stream_start() -> bytes:
    """How an Arrow stream begins. Batches follow, and `END`."""
    return zlib.decompress(b64decode(b"".join(_SCHEMA.split())))


def batch_pieces(rows: Rows, selection: Selection, incarnation: int) -> list[Piece]:
    """The wanted rows as one record batch message, in pieces."""
    rows = _only(rows, _wanted(rows, selection))
    columns = rows.columns
    kinds = columns.kinds.tolist() if any_but_zero(columns.kinds) else None  # None: messages only
    kept = _kept(rows, selection)
    body = _Body(rows.size)
    body.constant(rows.bucket.encode())
    body.chosen([stream.name.encode() for stream in rows.streams], columns.streams)
    body.numbers(columns.offsets.tobytes())
    body.numbers(_following(rows, kinds))
    body.texts(position_texts(incarnation, columns.sequences))
    is_message = None if kinds is None else [kind == MESSAGE for kind in kinds]  # snapshots have no id
    body.texts(id_texts(columns.ids_ms, columns.id_seqs, is_message), is_message)
    body.numbers(times_thousand(columns.times_ms))
    body.chosen([stream.content_type.encode() for stream in rows.streams], columns.streams)
    places = _places(rows, kinds)
    if kept is None and kinds is None:
        body.constant(b"message")
        return body.finished(places, rows.payload, None)
    kinds, kept = kinds or [MESSAGE] * rows.size, kept or [True] * rows.size
    body.chosen([b"message", b"gap", b"snapshot"], [_word(*pair) for pair in zip(kinds, kept, strict=True)])
    valid = [is_kept and kind != LARGE_SNAPSHOT for kind, is_kept in zip(kinds, kept, strict=True)]
    return body.finished(places, rows.payload, valid)


def single_pieces(bucket: str, rows: Sequence[Row], incarnation: int) -> list[Piece]:
    """Rows that come one by one, as one record batch message."""
    body = _Body(len(rows))
    body.constant(bucket.encode())
    body.strings([row.stream.encode() for row in rows])
    body.numbers(array("q", [row.offset for row in rows]).tobytes())
    body.numbers(array("q", [row.next_offset for row in rows]).tobytes())
    body.texts(position_texts(incarnation, memoryview(array("Q", [row.sequence for row in rows]))))
    body.strings([(row.id or "").encode() for row in rows], [row.id is not None for row in rows])
    times = [row.at_ms for row in rows]
    microseconds = array("q", [(at_ms or 0) * 1000 for at_ms in times]).tobytes()
    body.numbers(microseconds, [at_ms is not None for at_ms in times])
    body.strings([row.content_type.encode() for row in rows])
    body.strings([row.kind.encode() for row in rows])
    values = [bytes(row.value or b"") for row in rows]
    payload = memoryview(b"".join(values))
    return body.finished(offsets_of(map(len, values)), payload, [row.value is not None for row in rows])


class _Body:
    """The columns of a batch, one after the other, as their buffers."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._nodes: list[int] = []
        self._places: list[int] = []
        self._pieces: list[bytes] = []
        self._at = 0

    def numbers(self, values: bytes, valid: Sequence[bool] | None = None) -> None:
        """Of 64 bits each."""
        self._node(valid)
        self._buffer(values)

    def constant(self, value: bytes) -> None:
        """The same text, which is not empty, in every row."""
        self.texts(Texts(value * self._count, even_offsets(len(value), self._count)))

    def strings(self, values: Sequence[bytes], valid: Sequence[bool] | None = None) -> None:
        self.texts(Texts(b"".join(values), offsets_of(map(len, values))), valid)

    def chosen(self, values: Sequence[bytes], indexes: Iterable[int]) -> None:
        """A string for each index; often there is just one."""
        if len(values) == 1 and values[0]:
            self.constant(values[0])
        else:
            self.strings([values[index] for index in indexes])

    def texts(self, texts: Texts, valid: Sequence[bool] | None = None) -> None:
        self._node(valid)
        self._buffer(texts.offsets)
        self._buffer(texts.data)

    def finished(self, places: bytes, payload: memoryview, valid: Sequence[bool] | None) -> list[Piece]:
        """The whole message; the values are the last column, and their bytes the last piece but for its padding.
        Bytes of values that are not valid stay where they are: nothing looks at them."""
        if len(payload) > _BINARY_MAX:
            raise TooLarge("A message of more than 2 GiB does not fit into an Arrow batch. Read it as NDJSON.")
        self._node(valid)
        self._buffer(places)
        self._places += (self._at, len(payload))
        padding = -len(payload) % 8
        body_bytes = self._at + len(payload) + padding
        metadata = _METADATA.pack(
            16, 12, 20, 4, 6, 16, 8, 12, _V5, _RECORD_BATCH, body_bytes, 24,
            10, 20, 8, 4, 16, 12, 16, self._count, 172, _COLUMNS, *self._nodes, _BUFFERS, *self._places,
        )  # fmt: skip
        head = b"\xff\xff\xff\xff" + len(metadata).to_bytes(4, "little") + metadata
        return [b"".join([head, *self._pieces]), payload, b"\0" * padding]

    def _node(self, valid: Sequence[bool] | None) -> None:
        nulls = 0 if valid is None else valid.count(False)
        self._nodes += (self._count, nulls)
        self._buffer(_bitmap(valid) if valid is not None and nulls else b"")

    def _buffer(self, data: bytes) -> None:
        self._places += (self._at, len(data))
        padding = -len(data) % 8
        self._pieces += (data, b"\0" * padding) if padding else (data,)
        self._at += len(data) + padding


def _bitmap(valid: Sequence[bool]) -> bytes:
    """One bit each, the lowest first."""
    number = int("".join(["1" if is_valid else "0" for is_valid in reversed(valid)]), 2)
    return number.to_bytes((len(valid) + 7) // 8, "little")


def _wanted(rows: Rows, selection: Selection) -> list[int] | None:
    """Which rows are wanted; None for all of them."""
    if not rows.size:
        return None
    columns = rows.columns
    first, last = columns.sequences[0], columns.sequences[-1]
    inside = selection.after < first and last <= selection.until and not selection.first_offset
    if inside and not selection.prefix:
        return None
    has_prefix = [stream.name.startswith(selection.prefix) for stream in rows.streams]
    if inside and all(has_prefix):
        return None
    return [
        place
        for place, (index, offset, sequence) in enumerate(
            zip(columns.streams, columns.offsets, columns.sequences, strict=True)
        )
        if has_prefix[index] and selection.after < sequence <= selection.until and offset >= selection.first_offset
    ]


def _only(rows: Rows, wanted: list[int] | None) -> Rows:
    if wanted is None or len(wanted) == rows.size:
        return rows
    starts = list(accumulate(rows.columns.lengths, initial=0))
    payload = b"".join([rows.payload[starts[place] : starts[place + 1]] for place in wanted])
    columns = (memoryview(array("Q", [column[place] for place in wanted])) for column in rows.columns)
    return rows._replace(columns=type(rows.columns)(*columns), payload=memoryview(payload))


def _following(rows: Rows, kinds: Sequence[int] | None) -> bytes:
    """Where the next message of each row's stream starts."""
    offsets, lengths = rows.columns.offsets, rows.columns.lengths
    if (end := _end_of_run(rows, kinds)) is not None:
        return ends_of(offsets, end)
    ends = list(map(add, offsets.tolist(), lengths.tolist()))
    if kinds is not None:
        ends = [end if kind == MESSAGE else at for kind, at, end in zip(kinds, offsets, ends, strict=True)]
    return array("q", ends).tobytes()


def _places(rows: Rows, kinds: Sequence[int] | None) -> bytes:
    """Where in the payload each row's bytes start, and the last one's end."""
    lengths = rows.columns.lengths
    if are_all_alike(lengths):
        return even_offsets(lengths[0], rows.size)
    end = _end_of_run(rows, kinds)
    return offsets_of(lengths.tolist()) if end is None else distances(rows.columns.offsets, end)


def _end_of_run(rows: Rows, kinds: Sequence[int] | None) -> int | None:
    """Where the last message ends if all rows are messages of one stream without a gap: each starts where one ends."""
    if kinds is not None or not rows.size or len(rows.streams) != 1:
        return None
    offsets = rows.columns.offsets
    end: int = offsets[-1] + rows.columns.lengths[-1]
    return end if end - offsets[0] == len(rows.payload) else None


def _kept(rows: Rows, selection: Selection) -> list[bool] | None:
    """Which rows have not been lost since; None for all of them."""
    if selection.gone.keys().isdisjoint(stream.number for stream in rows.streams):
        return None
    kept_from = [selection.kept_from(stream.number) for stream in rows.streams]
    columns = rows.columns
    return [offset >= kept_from[index] for index, offset in zip(columns.streams, columns.offsets, strict=True)]


def _word(kind: int, is_kept: bool) -> int:
    """Which of message, gap and snapshot a row is."""
    return 2 if kind != MESSAGE else 0 if is_kept else 1
