"""One archive object: chunks of many buckets, with an index at its end.

    archive  "MILLARCH" | version u16 | zeros up to 16 | chunk | chunk | ... | index | trailer (32)
    index    msgpack array of [bucket, at, size, first_sequence, last_sequence, last_ms, facts, rows, bytes]
    trailer  index at u64 | index bytes u32 | crc32 of the index u32 | zeros u64 | "MILLARCH"

The catalog knows every chunk, so the server never needs the index; it is there for readers without a catalog.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ...model.errors import CorruptData, UnknownFormat
from ...model.facts import Appended
from ..checksum import crc32
from ..objects import gathered
from ..ports import ObjectStore
from .chunk import Chunk, ChunkStream, Logged, encode_chunk

FOLDER = "journal"
VERSION = 1
CHUNK_BYTES = 512 << 10  # of payload
CHUNK_FACTS = 2048  # a page of a feed decodes a whole chunk
_FACT_BYTES = 64  # what a fact counts for besides its payload
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


class Part(NamedTuple):
    """Facts of one bucket in commit order, and the names of the streams they are about."""

    bucket: str
    happened: Iterable[Logged]
    names: Mapping[int, ChunkStream]


class StoredChunk(NamedTuple):
    """A chunk as it lies in another object."""

    row: ChunkRow
    data: bytes


_rows = msgspec.msgpack.Decoder(list[ChunkRow])


def archive_name(archive: int) -> str:
    return f"{FOLDER}/{archive:012d}"


def archive_number(name: str) -> int:
    return int(name.rpartition("/")[2])


class ArchiveBuilder:
    """Writes one object, bucket by bucket; `rows` says afterwards where everything went.

    What it is given is encoded while the object is written, a chunk at a time.
    """

    def __init__(self, archive: int) -> None:
        self.archive = archive
        self.rows: list[ChunkRow] = []
        self._at = 0

    def write(self, store: ObjectStore, parts: Iterable[Part | StoredChunk]) -> int:
        """Store the object; its size. The parts of a bucket follow each other in commit order."""
        return store.put(archive_name(self.archive), gathered(self._pieces(parts)))

    def _pieces(self, parts: Iterable[Part | StoredChunk]) -> Iterator[bytes]:
        yield _HEAD.pack(_MAGIC, VERSION)
        self._at = _HEAD.size
        for part in parts:
            if isinstance(part, StoredChunk):
                self.rows.append(part.row._replace(at=self._at))
                self._at += part.row.size
                yield part.data
            else:
                for run in cut_into_chunks(part.happened):
                    yield from self._chunk(part.bucket, run, part.names)
        index = msgspec.msgpack.encode(self.rows)
        yield index
        yield _TRAILER.pack(self._at, len(index), crc32(index), _MAGIC)

    def _chunk(self, bucket: str, run: Sequence[Logged], names: Mapping[int, ChunkStream]) -> Iterator[bytes]:
        chunk = encode_chunk(bucket, run, names)
        span = (run[0][0], *run[-1][:2])  # its first sequence, its last and that one's time
        self.rows.append(ChunkRow(bucket, self._at, chunk.size, *span, len(run), chunk.rows, chunk.payload_bytes))
        self._at += chunk.size
        yield from chunk.pieces


def cut_into_chunks(happened: Iterable[Logged]) -> Iterator[list[Logged]]:
    run: list[Logged] = []
    size = 0
    for logged in happened:
        fact = logged[3]
        added = _FACT_BYTES + len(fact.payload if type(fact) is Appended else getattr(fact, "payload", b""))
        if run and (size + added > CHUNK_BYTES or len(run) == CHUNK_FACTS):
            yield run
            run, size = [], 0
        run.append(logged)
        size += added
    if run:
        yield run


def read_chunk(store: ObjectStore, archive: int, at: int, size: int) -> Chunk:
    return Chunk(store.get_range(archive_name(archive), at, size))


def read_index(store: ObjectStore, name: str) -> list[ChunkRow]:
    """The chunks of an archive object, from the object alone."""
    size = store.size(name)
    if size < _HEAD.size + _TRAILER.size:
        raise CorruptData(f"{name} is too short to be an archive object.")
    magic, version = _HEAD.unpack(store.get_range(name, 0, _HEAD.size))
    if magic == _MAGIC and version != VERSION:
        raise UnknownFormat(f"{name} has format {version}; this version reads format {VERSION}.")
    at, length, crc, end = _TRAILER.unpack(store.get_range(name, size - _TRAILER.size, _TRAILER.size))
    if magic != _MAGIC or end != _MAGIC or at + length + _TRAILER.size != size:
        raise CorruptData(f"{name} is not a complete archive object.")
    index = store.get_range(name, at, length)
    if crc32(index) != crc:
        raise CorruptData(f"The index of {name} does not match its checksum.")
    return _rows.decode(index)
