"""One chunk: facts of one bucket that follow each other, readable with one ranged read.

    chunk    header (48) | names | facts | columns | payload
    header   "MSAC" | crc32 u32 | flags u16 | zero u16 | facts u32 | rows u32 | bytes of names, facts and columns
             3 x u32 | stored payload bytes u64 | payload bytes u64                   (all little-endian)
    names    zstd of msgpack [bucket, [[number, name, content_type], ...]]
    facts    zstd of msgpack [[sequence, at_ms, offset, fact], ...]
    columns  zstd of eight arrays of u64: stream, kind, offset, length, at_ms, id_ms, id_seq, sequence
    payload  the bytes of messages and small snapshots; zstd if flag 1 is set

The same appends stand there twice on purpose: as facts, without their payload, for those who want to know what
happened (the feed, a restore), and as rows for those who want the messages: columns and payload are what Arrow arrays
are made of. The crc covers everything after itself.
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import zstandard

from ...model import facts
from ...model.errors import CorruptData
from ...model.facts import Fact
from ..checksum import crc32

HEADER_BYTES = 48
MAGIC = b"MSAC"
_HEADER = struct.Struct("<4sIHHIIIIIQQ")
_CHECKED = struct.Struct("<HHIIIIIQQ")  # the header after its checksum
_PAYLOAD_IS_COMPRESSED = 1
_COLUMNS = 8
_LEVEL = 1  # written by every checkpoint, kept for a day
# A payload that shrinks by less is stored plain, and a sample tells: the archive lies on a local disk for a day, and a
# bulk read sends plain bytes as they were read.
_WORTH = 0.5
_SAMPLE_BYTES = 32 << 10
MESSAGE, SNAPSHOT, LARGE_SNAPSHOT = 0, 1, 2  # kinds of rows; the bytes of a large snapshot are not here
assert _HEADER.size == HEADER_BYTES


class ChunkStream(NamedTuple):
    """A stream as a chunk names it."""

    number: int
    name: str
    content_type: str


class ArchivedFact(NamedTuple):
    """What happened, when, and the tail of the fact's stream behind it (0 for facts about the bucket)."""

    sequence: int
    at_ms: int
    offset: int
    fact: Fact


# The same as a plain tuple: a checkpoint makes one for every append, and a named one takes six times as long.
Logged = tuple[int, int, int, Fact]


class RowColumns(NamedTuple):
    """Messages and snapshots as parallel columns of u64; `streams` are indexes into the names."""

    streams: memoryview
    kinds: memoryview
    offsets: memoryview
    lengths: memoryview
    times_ms: memoryview
    ids_ms: memoryview
    id_seqs: memoryview
    sequences: memoryview


class _OfThread(threading.local):
    """Making a decompressor takes longer than opening a section with it, and no two threads may use one at a time."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()


_of_thread = _OfThread()
_T = TypeVar("_T")
_Names = tuple[str, list[ChunkStream]]
_names: msgspec.msgpack.Decoder[_Names] = msgspec.msgpack.Decoder(tuple[str, list[ChunkStream]])
_facts = msgspec.msgpack.Decoder(list[ArchivedFact])
_encode = msgspec.msgpack.Encoder().encode


class EncodedChunk(NamedTuple):
    pieces: list[bytes]
    size: int
    rows: int
    payload_bytes: int


def encode_chunk(bucket: str, happened: Sequence[Logged], names: Mapping[int, ChunkStream]) -> EncodedChunk:
    """The chunk's bytes. `names` has every stream that the facts are about; facts carry their whole payload."""
    rows = RowCollector(names)
    bare = rows.take(happened)
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    columns = rows.columns
    sections = [
        compressor.compress(_encode((bucket, list(rows.streams)))),
        compressor.compress(_encode(bare)),
        compressor.compress(b"".join([array("Q", column).tobytes() for column in columns])),
    ]
    count, raw = len(columns[0]), b"".join(rows.payloads)
    sample = raw[:_SAMPLE_BYTES]
    compressed = len(compressor.compress(sample)) < len(sample) * _WORTH
    payload = compressor.compress(raw) if compressed else raw
    flags = _PAYLOAD_IS_COMPRESSED if compressed else 0
    checked = _CHECKED.pack(flags, 0, len(bare), count, *map(len, sections), len(payload), len(raw))
    crc = crc32(checked)
    for section in (*sections, payload):
        crc = crc32(section, crc)
    pieces = [MAGIC + crc.to_bytes(4, "little") + checked, *sections, payload]
    return EncodedChunk(pieces, sum(map(len, pieces)), count, len(raw))


class RowCollector:
    """Rows, payloads and the streams they are of, taken out of facts."""

    def __init__(self, names: Mapping[int, ChunkStream]) -> None:
        self.streams: dict[ChunkStream, int] = {}
        self.payloads: list[bytes] = []
        self._names = names
        self._indexes: dict[int, int] = {}
        self._rows: list[tuple[int, int, int, int, int, int, int, int]] = []  # one tuple: eight appends cost more

    @property
    def columns(self) -> list[Sequence[int]]:
        return list(zip(*self._rows, strict=True)) if self._rows else [()] * _COLUMNS

    def take(self, happened: Iterable[Logged]) -> list[Logged]:
        """The facts without their payloads."""
        bare: list[Logged] = []
        for logged in happened:
            sequence, at_ms, behind, fact = logged
            if type(fact) is facts.Appended:
                bare.append((sequence, at_ms, behind, self._taken(sequence, at_ms, fact)))
            elif type(fact) is facts.SnapshotPublished:
                self._add_snapshot(sequence, at_ms, fact)
                bare.append((sequence, at_ms, behind, msgspec.structs.replace(fact, payload=b"")))
            else:
                if number := subject_of(sequence, fact):
                    self._index(number)
                bare.append(logged)
        return bare

    def _taken(self, sequence: int, at_ms: int, fact: facts.Appended) -> facts.Appended:
        """The append without its payload. Most of what a chunk costs goes through here."""
        stream, offset, id_ms, id_seq, lengths = fact.stream, fact.offset, fact.id_ms, fact.id_seq, fact.lengths
        index = self._indexes.get(stream)
        if index is None:
            index = self._index(stream)
        payload = fact.payload
        self.payloads.append(payload)
        if lengths is None:
            self._rows.append((index, MESSAGE, offset, len(payload), at_ms, id_ms, id_seq, sequence))
        else:
            for place, length in enumerate(lengths):
                self._rows.append((index, MESSAGE, offset, length, at_ms, id_ms, id_seq + place, sequence))
                offset += length
        return facts.Appended(
            stream, fact.offset, id_ms, id_seq, b"", lengths, fact.closes, fact.producer, fact.stream_seq
        )

    def _index(self, number: int) -> int:
        index = self._indexes[number] = self.streams.setdefault(self._names[number], len(self.streams))
        return index

    def _add_snapshot(self, sequence: int, at_ms: int, fact: facts.SnapshotPublished) -> None:
        """A snapshot has a type of its own: it stands under its stream's name with that."""
        self._index(fact.stream)
        named = self._names[fact.stream]._replace(content_type=fact.content_type)
        index = self.streams.setdefault(named, len(self.streams))
        kind = SNAPSHOT if fact.object is None else LARGE_SNAPSHOT
        self.payloads.append(fact.payload)
        self._rows.append((index, kind, fact.offset, len(fact.payload), at_ms, 0, 0, sequence))


def subject_of(sequence: int, fact: Fact) -> int:
    """The number of the stream a fact is about; 0 for facts about the bucket."""
    if type(fact) is facts.StreamCreated:
        return sequence
    return getattr(fact, "stream", 0)


def row_count(fact: Fact) -> int:
    """How many rows a fact has."""
    if type(fact) is facts.Appended:
        return facts.message_count(fact)
    return 1 if type(fact) is facts.SnapshotPublished else 0


class Chunk:
    """A checked chunk; its sections are opened when they are asked for."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        if len(view) < HEADER_BYTES:
            raise CorruptData("An archive chunk is shorter than its header.")
        magic, crc, flags, _, self.fact_count, self.row_count, *sizes, payload_bytes = _HEADER.unpack_from(view)
        if magic != MAGIC or crc != crc32(view[8:]):
            raise CorruptData("An archive chunk does not match its checksum.")
        if len(view) != HEADER_BYTES + sum(sizes):
            raise CorruptData("An archive chunk has another length than it says.")
        self._compressed = bool(flags & _PAYLOAD_IS_COMPRESSED)
        self._payload_bytes = payload_bytes
        at = HEADER_BYTES
        self._sections: list[memoryview] = []
        for size in sizes:
            self._sections.append(view[at : at + size])
            at += size

    def names(self) -> _Names:
        """The bucket, and the chunk's streams."""
        return _decoded(_names, self._open(0))

    def facts(self) -> list[ArchivedFact]:
        """What happened, in commit order, without payloads."""
        return _decoded(_facts, self._open(1))

    def columns(self) -> RowColumns:
        data = memoryview(self._open(2))
        if len(data) != self.row_count * 8 * _COLUMNS:
            raise CorruptData("An archive chunk's columns have another length than it says.")
        numbers, count = data.cast("Q"), self.row_count
        return RowColumns(*(numbers[index * count : (index + 1) * count] for index in range(_COLUMNS)))

    def payload(self) -> memoryview:
        payload = memoryview(self._open(3)) if self._compressed else self._sections[3]
        if len(payload) != self._payload_bytes:
            raise CorruptData("An archive chunk's payload has another length than it says.")
        return payload

    def whole_facts(self) -> list[ArchivedFact]:
        """The facts with their payloads, as `encode_chunk` took them."""
        payload, lengths, place, at = self.payload(), self.columns().lengths, 0, 0
        whole: list[ArchivedFact] = []
        for row in self.facts():
            count = row_count(row.fact)
            size = sum(lengths[place : place + count])
            if size:
                fact = msgspec.structs.replace(row.fact, payload=bytes(payload[at : at + size]))
                row = ArchivedFact(row.sequence, row.at_ms, row.offset, fact)
            whole.append(row)
            place, at = place + count, at + size
        return whole

    def _open(self, section: int) -> bytes:
        try:
            return _of_thread.decompressor.decompress(self._sections[section])
        except zstandard.ZstdError as error:
            raise CorruptData(f"A section of an archive chunk cannot be decompressed: {error}.") from None


def _decoded(decoder: msgspec.msgpack.Decoder[_T], data: bytes) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(f"An archive chunk with a valid checksum cannot be decoded: {error}") from None
