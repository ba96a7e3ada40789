"""One chunk: facts of one bucket that follow each other, readable with one ranged read.

    chunk    header (48) | names | facts | columns | payload
    header   "MSAC" | crc32 u32 | flags u16 | zero u16 | facts u32 | messages u32 | bytes of names, facts and columns
             3 x u32 | stored payload bytes u64 | payload bytes u64                   (all little-endian)
    names    zstd of msgpack [bucket, [[number, name, content_type], ...]]
    facts    zstd of msgpack [[sequence, at_ms, offset, fact], ...]
    columns  zstd of seven arrays of u64: stream, offset, length, at_ms, id_ms, id_seq, sequence
    payload  the messages' bytes; zstd if flag 1 is set

The same appends stand there twice on purpose: as facts, without their payload, for those who want to know what
happened (the feed, a restore), and as columns for those who want the messages: columns and payload are what Arrow
arrays are made of. The crc covers everything after itself.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
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
_COLUMNS = 7
_LEVEL = 1  # written by every checkpoint, kept for a day
_WORTH = 0.9  # a payload that shrinks by less is stored plain
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


class MessageColumns(NamedTuple):
    """Messages as parallel columns of u64; `streams` are indexes into the names."""

    streams: memoryview
    offsets: memoryview
    lengths: memoryview
    times_ms: memoryview
    ids_ms: memoryview
    id_seqs: memoryview
    sequences: memoryview


_T = TypeVar("_T")
_Names = tuple[str, list[ChunkStream]]
_names: msgspec.msgpack.Decoder[_Names] = msgspec.msgpack.Decoder(tuple[str, list[ChunkStream]])
_facts = msgspec.msgpack.Decoder(list[ArchivedFact])
_encode = msgspec.msgpack.Encoder().encode


class EncodedChunk(NamedTuple):
    pieces: list[bytes]
    size: int
    messages: int
    payload_bytes: int


def encode_chunk(bucket: str, happened: Sequence[ArchivedFact], names: Mapping[int, ChunkStream]) -> EncodedChunk:
    """The chunk's bytes. `names` has every stream that the facts are about; appends carry their whole payload."""
    used: dict[int, int] = {}
    bare: list[ArchivedFact] = []
    rows: list[list[int]] = [[] for _ in range(_COLUMNS)]
    payloads: list[bytes] = []
    for row in happened:
        number = subject_of(row)
        if number and number not in used:
            used[number] = len(used)
        if type(row.fact) is facts.Appended:
            payloads.append(row.fact.payload)
            _add_messages(rows, used[number], row.sequence, row.at_ms, row.fact)
            row = ArchivedFact(row.sequence, row.at_ms, row.offset, without_payload(row.fact))
        bare.append(row)
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    sections = [
        compressor.compress(_encode((bucket, [names[number] for number in used]))),
        compressor.compress(_encode(bare)),
        compressor.compress(b"".join([array("Q", column).tobytes() for column in rows])),
    ]
    raw = b"".join(payloads)
    payload = compressor.compress(raw)
    compressed = len(payload) < len(raw) * _WORTH
    if not compressed:
        payload = raw
    checked = _CHECKED.pack(
        _PAYLOAD_IS_COMPRESSED if compressed else 0, 0, len(bare), len(rows[0]),
        *map(len, sections), len(payload), len(raw),
    )  # fmt: skip
    crc = crc32(checked)
    for section in (*sections, payload):
        crc = crc32(section, crc)
    pieces = [MAGIC + crc.to_bytes(4, "little") + checked, *sections, payload]
    return EncodedChunk(pieces, sum(map(len, pieces)), len(rows[0]), len(raw))


def subject_of(row: ArchivedFact) -> int:
    """The number of the stream a fact is about; 0 for facts about the bucket."""
    fact = row.fact
    if isinstance(fact, facts.StreamCreated):
        return row.sequence
    return getattr(fact, "stream", 0)


def without_payload(fact: facts.Appended) -> facts.Appended:
    return facts.Appended(
        fact.stream, fact.offset, fact.id_ms, fact.id_seq, b"", fact.lengths, fact.closes, fact.producer,
        fact.stream_seq,
    )  # fmt: skip


def _add_messages(rows: list[list[int]], index: int, sequence: int, at_ms: int, fact: facts.Appended) -> None:
    streams, offsets, lengths, times, ids, id_seqs, sequences = rows
    offset = fact.offset
    for place, length in enumerate([len(fact.payload)] if fact.lengths is None else fact.lengths):
        streams.append(index)
        offsets.append(offset)
        lengths.append(length)
        times.append(at_ms)
        ids.append(fact.id_ms)
        id_seqs.append(fact.id_seq + place)
        sequences.append(sequence)
        offset += length


class Chunk:
    """A checked chunk; its sections are opened when they are asked for."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        if len(view) < HEADER_BYTES:
            raise CorruptData("An archive chunk is shorter than its header.")
        magic, crc, flags, _, self.facts_count, self.messages, *sizes, payload_bytes = _HEADER.unpack_from(view)
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

    def columns(self) -> MessageColumns:
        data = memoryview(self._open(2))
        if len(data) != self.messages * 8 * _COLUMNS:
            raise CorruptData("An archive chunk's columns have another length than it says.")
        numbers, count = data.cast("Q"), self.messages
        return MessageColumns(*(numbers[index * count : (index + 1) * count] for index in range(_COLUMNS)))

    def payload(self) -> memoryview:
        payload = memoryview(self._open(3)) if self._compressed else self._sections[3]
        if len(payload) != self._payload_bytes:
            raise CorruptData("An archive chunk's payload has another length than it says.")
        return payload

    def whole_facts(self) -> list[ArchivedFact]:
        """The facts with their payloads, as `encode_chunk` took them."""
        payload, lengths, message, at = self.payload(), self.columns().lengths, 0, 0
        whole: list[ArchivedFact] = []
        for row in self.facts():
            if type(row.fact) is facts.Appended:
                count = facts.message_count(row.fact)
                size = sum(lengths[message : message + count])
                fact = msgspec.structs.replace(row.fact, payload=bytes(payload[at : at + size]))
                row = ArchivedFact(row.sequence, row.at_ms, row.offset, fact)
                message, at = message + count, at + size
            whole.append(row)
        return whole

    def _open(self, section: int) -> bytes:
        try:
            return zstandard.ZstdDecompressor().decompress(self._sections[section])
        except zstandard.ZstdError as error:
            raise CorruptData(f"A section of an archive chunk cannot be decompressed: {error}.") from None


def _decoded(decoder: msgspec.msgpack.Decoder[_T], data: bytes) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(f"An archive chunk with a valid checksum cannot be decoded: {error}") from None
