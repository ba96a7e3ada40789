"""Rows as an Arrow IPC stream: columns `stream`, `value` and perhaps `order`. Needs pyarrow, the extra `arrow`.

Sorting, grouping and measuring are a few calls for a whole run; no message becomes a Python object except to check
whether it is JSON.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any, BinaryIO

from ..checksum import crc32
from .parts import Group, Run
from .runs import RUN_BYTES, RUN_ROWS, STREAM_BYTES_MAX, bad_part, bad_row, json_fault

BATCH_BYTES_MAX = 64 << 20
_METADATA_BYTES_MAX = 16 << 20
_BODY_LENGTH_FIELD = 4 + 2 * 3  # in a Message's table: after version, header type and header


def is_available() -> bool:
    return find_spec("pyarrow") is not None


def give_memory_back_to_the_system() -> None:
    """Arrow's own allocator keeps what it has had; a process that is mostly idle had better not."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())


class ArrowRows:
    """Decodes a file batch by batch; a `parts.Rows`."""

    def __init__(self, source: BinaryIO, message_bytes_max: int) -> None:
        self._source = source
        self._message_bytes_max = message_bytes_max
        self._first_row = 1  # of the next run
        self.order = ""

    def runs(self) -> Iterator[Run]:
        import pyarrow as pa

        check_batch_sizes(self._source)
        self._source.seek(0)
        try:
            reader = pa.ipc.open_stream(self._source)
            self._check_schema(pa, reader.schema)
            waiting: list[Any] = []
            rows = size = 0
            for batch in reader:
                for piece in _pieces(self._columns(pa, batch)):
                    waiting.append(piece)
                    rows += len(piece)
                    size += piece.nbytes
                    if size >= RUN_BYTES or rows >= RUN_ROWS:
                        yield self._run(pa, waiting)
                        rows = size = 0
            if rows:
                yield self._run(pa, waiting)
        except (pa.ArrowException, OSError, MemoryError) as error:
            raise bad_part(f"it is no Arrow stream that can be read: {error}") from None

    def _check_schema(self, pa: Any, schema: Any) -> None:
        types = pa.types
        for name in ("stream", "value"):
            if schema.names.count(name) != 1:
                raise bad_part(f"it needs one column '{name}'")
        if not _is_text(types, schema.field("stream").type):
            raise bad_part(f"the column 'stream' must be a string, not {schema.field('stream').type}")
        value = schema.field("value").type
        if not (_is_text(types, value) or types.is_binary(value) or types.is_large_binary(value)):
            raise bad_part(f"the column 'value' must be binary or a string, not {value}")
        if "order" not in schema.names:
            return
        order = schema.field("order").type
        if types.is_integer(order) or types.is_timestamp(order):
            self.order = "int"
        elif _is_text(types, order):
            self.order = "text"
        else:
            raise bad_part(f"the column 'order' must be an integer, a timestamp or a string, not {order}")

    def _columns(self, pa: Any, batch: Any) -> Any:
        columns = {"stream": batch.column("stream").cast(pa.string()), "value": batch.column("value").cast(pa.binary())}
        if self.order:
            order = batch.column("order")
            if pa.types.is_timestamp(order.type):
                order = order.cast(pa.timestamp("ns", tz=order.type.tz)).cast(pa.int64())
            columns["order"] = order.cast(pa.int64() if self.order == "int" else pa.string())
        return pa.RecordBatch.from_pydict(columns)

    def _run(self, pa: Any, batches: list[Any]) -> Run:
        import pyarrow.compute as pc

        table = pa.Table.from_batches(batches).combine_chunks()
        batches.clear()  # each copy of a run is let go as soon as there is the next
        stream, value = table.column("stream").chunk(0), table.column("value").chunk(0)
        self._check_rows(pc, table)
        keys = [("stream", "ascending"), *([("order", "ascending")] if self.order else [])]
        rows = pc.sort_indices(table.select([name for name, _ in keys]), sort_keys=keys)  # stable: ties stay in order
        names = pc.run_end_encode(stream.take(rows))
        value = value.take(rows)
        orders = table.column("order").chunk(0).take(rows) if self.order else None
        del table, stream
        offsets = memoryview(value.buffers()[1]).cast("i")[value.offset : value.offset + len(value) + 1]
        payload = memoryview(value.buffers()[2])[offsets[0] : offsets[-1]]
        lengths = memoryview(pc.binary_length(value).buffers()[1])
        groups = []
        start = 0
        for name, end in zip(names.values.to_pylist(), names.run_ends.to_pylist(), strict=True):
            at, size = offsets[start] - offsets[0], offsets[end] - offsets[start]
            row_of = partial(_row_number, rows, start, self._first_row)
            fault = json_fault(value.slice(start, end - start).to_pylist(), row_of)
            crc = crc32(payload[at : at + size])
            sizes = bytes(lengths[4 * start : 4 * end])
            groups.append(Group(name, at, size, crc, sizes, self._orders(orders, start, end), fault))
            start = end
        self._first_row += len(rows)
        return Run(payload, groups)

    def _orders(self, orders: Any, start: int, end: int) -> bytes | list[str] | None:
        if orders is None:
            return None
        if self.order == "text":
            texts: list[str] = orders.slice(start, end - start).to_pylist()
            return texts
        return bytes(memoryview(orders.buffers()[1])[8 * start : 8 * end])

    def _check_rows(self, pc: Any, table: Any) -> None:
        for name in table.column_names:
            if table.column(name).null_count:
                row = pc.index(pc.is_null(table.column(name)), True).as_py()
                raise bad_row(self._first_row + row, f"'{name}' is null")
        for name, longest in (("stream", STREAM_BYTES_MAX), ("value", self._message_bytes_max)):
            sizes = pc.binary_length(table.column(name))
            span = pc.min_max(sizes).as_py()
            if span["min"] < 1 or span["max"] > longest:
                wrong = pc.or_(pc.less(sizes, 1), pc.greater(sizes, longest))
                row = pc.index(wrong, True).as_py()
                raise bad_row(self._first_row + row, f"'{name}' must have 1 to {longest} bytes")


def _row_number(rows: Any, start: int, first_row: int, index: int) -> int:
    """A message's row as the client counts it."""
    return first_row + int(rows[start + index].as_py())


def _is_text(types: Any, kind: Any) -> bool:
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _pieces(batch: Any) -> Iterator[Any]:
    """A batch in slices of about a run each."""
    if not len(batch):
        return
    count = max(-(-batch.nbytes // RUN_BYTES), -(-len(batch) // RUN_ROWS), 1)
    step = -(-len(batch) // count)
    for start in range(0, len(batch), step):
        yield batch.slice(start, step)


def check_batch_sizes(source: BinaryIO) -> None:
    """Walk over the messages of the stream: pyarrow would take a batch of any size into memory before we see it.

    message   0xffffffff | metadata length i32 | metadata (a flatbuffer) | body
    """
    while True:
        head = source.read(8)
        if len(head) < 8 or head[:4] != b"\xff\xff\xff\xff":
            return  # the end; or what pyarrow will explain better
        (length,) = struct.unpack("<i", head[4:])
        if length == 0:
            return
        if not 0 < length <= _METADATA_BYTES_MAX:
            raise bad_part("a message of the Arrow stream has metadata of an impossible size")
        body = _body_length(source.read(length))
        if not 0 <= body <= BATCH_BYTES_MAX:
            raise bad_part(f"a record batch has {body} bytes; send batches of at most {BATCH_BYTES_MAX}")
        source.seek(body, 1)


def _body_length(metadata: bytes) -> int:
    try:
        (table,) = struct.unpack_from("<I", metadata, 0)
        (back,) = struct.unpack_from("<i", metadata, table)
        vtable = table - back
        (vtable_bytes,) = struct.unpack_from("<H", metadata, vtable)
        if vtable_bytes <= _BODY_LENGTH_FIELD:
            return 0
        (field,) = struct.unpack_from("<H", metadata, vtable + _BODY_LENGTH_FIELD)
        return int(struct.unpack_from("<q", metadata, table + field)[0]) if field else 0
    except struct.error:
        raise bad_part("a message of the Arrow stream has damaged metadata") from None
