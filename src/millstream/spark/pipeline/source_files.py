"""Files to load, cut into pieces that executors read: lines of JSONL and CSV, row groups of Parquet.

The cuts depend on the files alone, so a load that is repeated makes the same pieces, the same transactions and the
same order: that is what makes it exactly once.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ...model.errors import MillstreamError

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
PIECE_BYTES = 8 << 20
PIECE_ROWS = 100_000
BATCH_ROWS = 5_000
BATCH_BYTES = 4 << 20
SAMPLE_BYTES = 64 << 10
LINE_BYTES_MAX = 64 << 20

ROW_SCHEMA = pa.schema([("stream", pa.string()), ("value", pa.binary()), ("order", pa.int64())])


class LoadError(MillstreamError):
    """A file cannot be loaded as it is. The message names the file and the place."""

    code = "load"


@dataclass(frozen=True, slots=True)
class SourceFile:
    path: str
    format: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one file: bytes of JSONL and CSV, row groups of Parquet. `number` counts through all files."""

    number: int
    path: str
    format: str
    begin: int
    end: int
    bytes: int
    header: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column names the stream, and which one is the message; without the latter the whole row is.

    With `as_text`, for streams that are not JSON, a member of a JSON line that is a string goes without its quotes.
    """

    stream: str
    value: str | None = None
    as_text: bool = False


# --- finding and cutting


def find_files(patterns: Sequence[str], format_name: str | None = None) -> list[SourceFile]:
    """Files by name, folder or glob, each once, in the order of their names."""
    found: dict[str, SourceFile] = {}
    for pattern in patterns:
        paths = _paths(pattern)
        if not paths:
            raise LoadError(f"there is no file {pattern}")
        for path in paths:
            kind = format_name or FORMATS.get(path.suffix.lower())
            if kind is None:
                raise LoadError(f"{path}: the format is not known by this name; say --format jsonl, csv or parquet")
            full_path = str(path.absolute())
            found[full_path] = SourceFile(full_path, kind, path.stat().st_size)
    return [found[path] for path in sorted(found)]


def _paths(pattern: str) -> list[Path]:
    if os.path.isdir(pattern):
        return [path for path in Path(pattern).iterdir() if path.suffix.lower() in FORMATS]
    if os.path.isfile(pattern):
        return [Path(pattern)]
    return [Path(path) for path in glob(pattern, recursive=True) if os.path.isfile(path)]


def fingerprint(files: Iterable[SourceFile], *settings: object) -> str:
    """A name for this set of files: their names, sizes, beginnings and ends, and the settings that shape the load.
    Not their times, which change when a file is copied."""
    digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
    for file in files:
        digest.update(repr((Path(file.path).name, file.format, file.bytes)).encode())
        with open(file.path, "rb") as opened:
            digest.update(opened.read(SAMPLE_BYTES))
            opened.seek(max(0, file.bytes - SAMPLE_BYTES))
            digest.update(opened.read(SAMPLE_BYTES))
    return digest.hexdigest()


def cut(files: Iterable[SourceFile], columns: Columns) -> list[Piece]:
    """All pieces, in order. Checks that the columns are there, as far as that can be seen without reading all."""
    pieces: list[Piece] = []
    for file in files:
        if file.bytes == 0:
            continue
        with open(file.path, "rb") as opened:
            pieces += _CUTTERS[file.format](file, opened, columns, len(pieces))
    return pieces


def _cut_lines(file: SourceFile, opened: BinaryIO, columns: Columns, first: int) -> list[Piece]:
    """At any byte: a line belongs to the piece that holds its first byte."""
    starts = range(0, file.bytes, PIECE_BYTES)
    ends = [min(start + PIECE_BYTES, file.bytes) for start in starts]
    return [
        Piece(first + n, file.path, file.format, start, end, end - start)
        for n, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _cut_csv(file: SourceFile, opened: BinaryIO, columns: Columns, first: int) -> list[Piece]:
    """Only where a row ends: a line break counts when the quotes before it are even in number."""
    header_line = opened.readline(LINE_BYTES_MAX)
    header = next(csv.reader([header_line.decode("utf-8-sig")]), [])
    _require(file.path, header, columns)
    pieces: list[Piece] = []
    begin = opened.tell()
    while begin < file.bytes:
        end = _row_end(opened, begin)
        number = first + len(pieces)
        pieces.append(Piece(number, file.path, file.format, begin, end, end - begin, tuple(header)))
        begin = end
    return pieces


def _row_end(opened: BinaryIO, begin: int) -> int:
    """The first end of a row that is a piece's length or more behind `begin`."""
    opened.seek(begin)
    quotes_open = opened.read(PIECE_BYTES).count(b'"') % 2
    while line := opened.readline(LINE_BYTES_MAX):
        quotes_open ^= line.count(b'"') % 2
        if not quotes_open and line.endswith(b"\n"):
            break
    return opened.tell()


def _cut_parquet(file: SourceFile, opened: BinaryIO, columns: Columns, first: int) -> list[Piece]:
    try:
        metadata = pq.ParquetFile(opened).metadata
    except pa.ArrowInvalid as error:
        raise LoadError(f"{file.path} is no Parquet file: {error}") from None
    _require(file.path, metadata.schema.to_arrow_schema().names, columns)
    pieces: list[Piece] = []
    begin = rows = size = 0
    for group in range(metadata.num_row_groups):
        rows += metadata.row_group(group).num_rows
        size += metadata.row_group(group).total_byte_size
        if rows >= PIECE_ROWS or size >= PIECE_BYTES or group == metadata.num_row_groups - 1:
            pieces.append(Piece(first + len(pieces), file.path, file.format, begin, group + 1, size))
            begin, rows, size = group + 1, 0, 0
    return pieces


_CUTTERS: dict[str, Callable[[SourceFile, BinaryIO, Columns, int], list[Piece]]] = {
    "jsonl": _cut_lines,
    "csv": _cut_csv,
    "parquet": _cut_parquet,
}


def _require(path: str, names: Sequence[str], columns: Columns) -> None:
    for column in (columns.stream, columns.value):
        if column is not None and column not in names:
            raise LoadError(f"{path} has no column {column!r}; it has {', '.join(names)}")


def grouped(pieces: Iterable[Piece], group_bytes: int) -> list[list[Piece]]:
    """Neighbours together up to so many bytes: each group is one transaction."""
    groups: list[list[Piece]] = []
    size = 0
    for piece in pieces:
        if not groups or size + piece.bytes > group_bytes:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += piece.bytes
    return groups


# --- reading, where the executors are


def read_piece(piece: Piece, columns: Columns) -> Iterator[pa.RecordBatch]:
    """The rows of a piece as (stream, value, order). `order` goes through all pieces as the rows stand in the files."""
    streams: list[str] = []
    values: list[bytes] = []
    size, start = 0, piece.number << 32
    with open(piece.path, "rb") as opened:
        for stream, value in _READERS[piece.format](piece, opened, columns):
            if not value:
                raise LoadError(f"{piece.path}: a row of stream {stream} is empty, and no message can be")
            streams.append(stream)
            values.append(value)
            size += len(value)
            if len(values) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield _batch(streams, values, start)
                start += len(values)
                streams, values, size = [], [], 0
    if values:
        yield _batch(streams, values, start)


def _batch(streams: list[str], values: list[bytes], start: int) -> pa.RecordBatch:
    order = range(start, start + len(values))
    return pa.RecordBatch.from_arrays(
        [pa.array(streams, pa.string()), pa.array(values, pa.binary()), pa.array(order, pa.int64())], schema=ROW_SCHEMA
    )


def _read_lines(piece: Piece, opened: BinaryIO, columns: Columns) -> Iterator[tuple[str, bytes]]:
    decode = _line_decoder(columns)
    if piece.begin:
        opened.seek(piece.begin - 1)
        opened.readline()  # the rest of a line of the piece before, or just its line break
    while (at := opened.tell()) < piece.end:
        line = opened.readline(LINE_BYTES_MAX).strip()
        if not line:
            continue
        try:
            row = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LoadError(f"{piece.path}, at byte {at}: {error}") from None
        yield _stream_name(row.stream, piece, at), _member(row.value, columns) if columns.value else line


def _line_decoder(columns: Columns) -> Callable[[bytes], Any]:
    """Decodes of a line only what is needed."""
    wanted: list[tuple[str, Any]] = [("stream", Any)] + ([("value", msgspec.Raw)] if columns.value else [])
    names = {"stream": columns.stream, "value": columns.value or ""}
    return msgspec.json.Decoder(msgspec.defstruct("Row", wanted, rename=names)).decode


def _member(value: msgspec.Raw, columns: Columns) -> bytes:
    raw = bytes(value)
    return msgspec.json.decode(raw, type=str).encode() if columns.as_text and raw[:1] == b'"' else raw


def _read_csv(piece: Piece, opened: BinaryIO, columns: Columns) -> Iterator[tuple[str, bytes]]:
    opened.seek(piece.begin)
    text = io.StringIO(_decoded(opened.read(piece.end - piece.begin), piece), newline="")
    encode = msgspec.json.Encoder().encode
    for number, fields in enumerate(csv.reader(text, strict=True), 1):
        if not fields:
            continue
        if len(fields) != len(piece.header):
            raise LoadError(
                f"{piece.path}, row {number} behind byte {piece.begin}: "
                f"{len(fields)} fields instead of {len(piece.header)}"
            )
        row = dict(zip(piece.header, fields, strict=True))
        value = encode(row) if columns.value is None else row[columns.value].encode()
        yield _stream_name(row[columns.stream], piece, number), value


def _decoded(data: bytes, piece: Piece) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise LoadError(f"{piece.path}, at byte {piece.begin + error.start}: not UTF-8") from None


def _read_parquet(piece: Piece, opened: BinaryIO, columns: Columns) -> Iterator[tuple[str, bytes]]:
    file = pq.ParquetFile(opened)
    encode = msgspec.json.Encoder().encode
    wanted = None if columns.value is None else [columns.stream, columns.value]
    groups = list(range(piece.begin, piece.end))
    for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=wanted):
        for number, row in enumerate(batch.to_pylist()):
            value = row if columns.value is None else row[columns.value]
            yield _stream_name(row[columns.stream], piece, number), _message(value, encode)


def _message(value: Any, encode: Callable[[Any], bytes]) -> bytes:
    """Bytes and text go as they are; anything else as JSON."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else encode(value)


_READERS: dict[str, Callable[[Piece, BinaryIO, Columns], Iterator[tuple[str, bytes]]]] = {
    "jsonl": _read_lines,
    "csv": _read_csv,
    "parquet": _read_parquet,
}


def _stream_name(value: Any, piece: Piece, place: int) -> str:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise LoadError(f"{piece.path}, at {place}: {value!r} cannot name a stream; it takes a text or a whole number")
