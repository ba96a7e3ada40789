"""Rows as NDJSON: a line for each message, `{"stream", "value" (base64) or "json", "order"}`."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import BinaryIO

import msgspec

from ..checksum import crc32
from .parts import Group, Run
from .runs import RUN_BYTES, RUN_ROWS, STREAM_BYTES_MAX, bad_row, json_fault

_READ_BYTES = 4 << 20
_INT64 = range(-(1 << 63), 1 << 63)


class _Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    stream: str
    value: bytes | None = None  # base64 on the wire
    json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    order: int | str | None = None


_line = msgspec.json.Decoder(_Line)
# Stream, order, row, message. A plain tuple, because it sorts as it should.
_Row = tuple[str, int | str, int, bytes]


class NdjsonRows:
    """Decodes a file line by line; a `parts.Rows`."""

    def __init__(self, source: BinaryIO, message_bytes_max: int) -> None:
        self._source = source
        self._message_bytes_max = message_bytes_max
        self._line_bytes_max = 2 * message_bytes_max + (64 << 10)  # base64, escapes and the rest of the line
        self._has_rows = False
        self.order = ""

    def runs(self) -> Iterator[Run]:
        rows: list[_Row] = []
        size = 0
        for number, line in enumerate(self._lines(), 1):
            if not line.strip():
                continue
            rows.append(self._row(number, line))
            size += len(rows[-1][3])
            if size >= RUN_BYTES or len(rows) >= RUN_ROWS:
                yield self._run(rows)
                rows, size = [], 0
        if rows:
            yield self._run(rows)

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        number = 1
        while data := self._source.read(_READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
            number += len(lines)
            if len(rest) > self._line_bytes_max:
                raise bad_row(number, "the line is too long")
        yield rest

    def _row(self, number: int, data: bytes) -> _Row:
        try:
            line = _line.decode(data)
            message = _message(line)
        except (ValueError, RecursionError) as error:  # also what msgspec raises, and wrong UTF-8
            raise bad_row(number, str(error)) from None
        if not line.stream or len(line.stream.encode()) > STREAM_BYTES_MAX:
            raise bad_row(number, f"stream must have 1 to {STREAM_BYTES_MAX} bytes")
        if not 1 <= len(message) <= self._message_bytes_max:
            raise bad_row(number, f"a message has 1 to {self._message_bytes_max} bytes, this one {len(message)}")
        self._note_order(number, line.order)
        return line.stream, 0 if line.order is None else line.order, number, message

    def _note_order(self, number: int, order: int | str | None) -> None:
        kind = "" if order is None else "int" if isinstance(order, int) else "text"
        if isinstance(order, int) and order not in _INT64:
            raise bad_row(number, "order must fit into 64 bits")
        if self._has_rows and kind != self.order:
            raise bad_row(number, "order must be in all rows or in none, and always an integer or always a string")
        self._has_rows, self.order = True, kind

    def _run(self, rows: list[_Row]) -> Run:
        rows.sort()
        payload = b"".join([row[3] for row in rows])
        groups = []
        at = 0
        for stream, members in groupby(rows, key=itemgetter(0)):
            _, orders, numbers, messages = zip(*members, strict=True)
            size = sum(map(len, messages))
            lengths = array("I", map(len, messages)).tobytes()
            crc = crc32(memoryview(payload)[at : at + size])
            keys = None if not self.order else array("q", orders).tobytes() if self.order == "int" else list(orders)
            groups.append(Group(stream, at, size, crc, lengths, keys, json_fault(messages, numbers.__getitem__)))
            at += size
        return Run(payload, groups)


def _message(line: _Line) -> bytes:
    if isinstance(line.json, msgspec.UnsetType):
        if line.value is None:
            raise ValueError('it has neither "value" nor "json"')
        return line.value
    if line.value is not None:
        raise ValueError('it has both "value" and "json"')
    return bytes(line.json)
