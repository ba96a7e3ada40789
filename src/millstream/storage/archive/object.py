"""One archive object: chunks of many buckets, with an index at its end.

    archive  "MILLARCH" | version u16 | zeros up to 16 | chunk | chunk | ... | index | trailer (32)
    index    msgpack array of [bucket, at, size, first_sequence, last_sequence, last_ms, facts, rows, bytes]
    trailer  index at u64 | index bytes u32 | crc32 of the index u32 | zeros u64 | "MILLARCH"

The catalog knows every chunk, so the server never needs the index; it is there for readers without a catalog.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ...model.errors import CorruptData, UnknownFormat
from ...model.facts import Appended
from ..checksum import crc32
from ..ports import ObjectStore, Piece
from ..segments.block import Message
from .chunk import Chunk, ChunkStream, Logged, RowCollector, encode_chunk, is_plain

FOLDER = "journal"
VERSION = 2  # 1: plain appends stood among the facts of their chunk too
CHUNK_BYTES = 512 << 10  # of payload
CHUNK_FACTS = 2048  # a page of a feed decodes a whole chunk
_FACT_BYTES = 64  # what a fact counts for besides its payload
_WRITE_BYTES = 1 << 20  # in one go
_MAGIC = b"MILLARCH"
_HEAD = struct.Struct("<8sH6x")
_TRAILER = struct.Struct("<QII8x8s")


class ChunkRow(NamedTuple):
    """Where a chunk lies and what it holds."""

    bucket: str
    at: int
    size: int
    first_sequence: int
    last_sequence: int
    last_ms: int
    facts: int
    rows: int
    bytes: int  # of payload


class StoredChunk(NamedTuple):
    """A chunk as it lies in another object."""

    row: ChunkRow
    data: bytes


_rows = msgspec.msgpack.Decoder(list[ChunkRow])


def archive_name(archive: int) -> str:
    return f"{FOLDER}/{archive:012d}"


class ArchiveWriter:
    """Writes one object while its chunks are made; `rows` says afterwards where everything went.

    Facts come in commit order, in whatever order their buckets do. Leaving the context without `finish` leaves nothing.
    """

    def __init__(self, store: ObjectStore, archive: int) -> None:
        self.archive = archive
        self.rows: list[ChunkRow] = []
        self._buckets: dict[str, BucketWriter] = {}
        self._object = store.begin(archive_name(archive))
        self._pieces: list[Piece] = [_HEAD.pack(_MAGIC, VERSION)]
        self._at = _HEAD.size

    def __enter__(self) -> ArchiveWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._object.abort()
        self._buckets.clear()  # they know this one: without, all of it would wait for the collector

    def bucket(self, name: str) -> BucketWriter:
        """Where the facts of a bucket go."""
        writer = self._buckets.get(name)
        if writer is None:
            writer = self._buckets[name] = BucketWriter(self, name)
        return writer

    def add_stored(self, chunk: StoredChunk) -> None:
        """A chunk as it is; the facts of its bucket that came before it stay before it."""
        self.bucket(chunk.row.bucket).end_chunk()
        self.add_chunk(chunk.row, [chunk.data])

    def add_chunk(self, row: ChunkRow, pieces: Iterable[Piece]) -> None:
        self.rows.append(row._replace(at=self._at))
        self._at += row.size
        self._pieces += pieces
        if self._at - self._object.size >= _WRITE_BYTES:
            self._write()

    def finish(self) -> int:
        """Store the object; its size. 0, and there is none, if nothing was added."""
        for bucket in self._buckets.values():
            bucket.end_chunk()
        if not self.rows:
            return 0
        index = msgspec.msgpack.encode(self.rows)
        self._pieces += (index, _TRAILER.pack(self._at, len(index), crc32(index), _MAGIC))
        self._write()
        self._object.finish()
        return self._object.size

    def _write(self) -> None:
        pieces, self._pieces = self._pieces, []
        self._object.write(b"".join(pieces))


class BucketWriter:
    """Cuts the facts of one bucket into chunks. Streams come with the names they have in them."""

    __slots__ = ("_archive", "_bucket", "_facts_left", "_happened", "_room", "_rows")

    def __init__(self, archive: ArchiveWriter, bucket: str) -> None:
        self._archive = archive
        self._bucket = bucket
        self._start_chunk()

    def add_message(self, stream: ChunkStream, offset: int, message: Message) -> None:
        """A plain append, which is its message. Hot: measured by `bench/appends.py`."""
        self._room -= len(message[0]) + _FACT_BYTES
        if self._room < 0 or not self._facts_left:
            self._next_chunk(len(message[0]))
        self._facts_left -= 1
        self._rows.add(stream, offset, message)

    def add(self, stream: ChunkStream | None, logged: Logged) -> None:
        """Any fact with its whole payload; `stream` is None if it is about the bucket."""
        sequence, at_ms, _, fact = logged
        if stream is not None and type(fact) is Appended and is_plain(fact):
            self.add_message(stream, fact.offset, (fact.payload, at_ms, fact.id_ms, fact.id_seq, sequence))
            return
        size = len(getattr(fact, "payload", b""))
        self._room -= size + _FACT_BYTES
        if self._room < 0 or not self._facts_left:
            self._next_chunk(size)
        self._facts_left -= 1
        self._happened.append(logged if stream is None else self._rows.take(stream, logged))

    def end_chunk(self) -> None:
        """What comes next goes into another chunk."""
        count = CHUNK_FACTS - self._facts_left
        if count:
            chunk = encode_chunk(self._bucket, self._rows, self._happened, count)
            span = _span(self._rows.messages, self._happened)
            row = ChunkRow(self._bucket, 0, chunk.size, *span, count, chunk.rows, chunk.payload_bytes)
            self._archive.add_chunk(row, chunk.pieces)
            self._start_chunk()

    def _start_chunk(self) -> None:
        self._rows = RowCollector()
        self._happened: list[Logged] = []  # but for plain appends
        self._room = CHUNK_BYTES
        self._facts_left = CHUNK_FACTS

    def _next_chunk(self, size: int) -> None:
        """A fact with so much payload does not fit any more."""
        self.end_chunk()
        self._room = CHUNK_BYTES - size - _FACT_BYTES


def _span(messages: list[Message], happened: list[Logged]) -> tuple[int, int, int]:
    """The first sequence, the last and that one's time."""
    ends = [(message[4], message[1]) for message in (*messages[:1], *messages[-1:])]
    ends += [(logged[0], logged[1]) for logged in (*happened[:1], *happened[-1:])]
    return min(ends)[0], *max(ends)


def read_chunk(store: ObjectStore, archive: int, at: int, size: int) -> Chunk:
    return Chunk(store.get_range(archive_name(archive), at, size))


def read_index(store: ObjectStore, name: str) -> list[ChunkRow]:
    """The chunks of an archive object, from the object alone."""
    size = store.size(name)
    if size < _HEAD.size + _TRAILER.size:
        raise CorruptData(f"{name} is too short to be an archive object.")
    magic, version = _HEAD.unpack(store.get_range(name, 0, _HEAD.size))
    if magic == _MAGIC and version not in range(1, VERSION + 1):
        raise UnknownFormat(f"{name} has format {version}; this version reads formats up to {VERSION}.")
    at, length, crc, end = _TRAILER.unpack(store.get_range(name, size - _TRAILER.size, _TRAILER.size))
    if magic != _MAGIC or end != _MAGIC or at + length + _TRAILER.size != size:
        raise CorruptData(f"{name} is not a complete archive object.")
    index = store.get_range(name, at, length)
    if crc32(index) != crc:
        raise CorruptData(f"The index of {name} does not match its checksum.")
    return _rows.decode(index)
