"""One chunk: facts of one bucket that follow each other, readable with one ranged read.

    chunk    header (48) | names | facts | columns | payload
    header   "MSAC" | crc32 u32 | flags u16 | zero u16 | facts u32 | rows u32 | bytes of names, facts and columns
             3 x u32 | stored payload bytes u64 | payload bytes u64                   (all little-endian)
    names    zstd of msgpack [bucket, [[number, name, content_type], ...]]
    facts    zstd of msgpack [[sequence, at_ms, offset, fact], ...]
    columns  zstd of eight arrays of u64: stream, kind, offset, length, at_ms, id_ms, id_seq, sequence
    payload  the bytes of messages and small snapshots
    flags    1: the payload is zstd too; 2: plain appends are not among the facts

Rows are for those who want the messages: columns and payload are what Arrow arrays are made of. Facts are for those who
want to know what happened (the feed, a restore). A plain append is one message and nothing else, so that its row says
all there is; `Chunk.facts` makes the fact from it. The crc covers everything after itself.
"""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

import msgspec
import zstandard

from ...model import facts
from ...model.errors import CorruptData
from ...model.facts import Fact
from ..checksum import crc32
from ..segments.block import Message

HEADER_BYTES = 48
MAGIC = b"MSAC"
_HEADER = struct.Struct("<4sIHHIIIIIQQ")
_CHECKED = struct.Struct("<HHIIIIIQQ")  # the header after its checksum
_PAYLOAD_IS_COMPRESSED = 1
_PLAIN_APPENDS_ARE_ROWS = 2
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


def encode_chunk(bucket: str, rows: RowCollector, happened: Sequence[Logged], count: int) -> EncodedChunk:
    """The chunk's bytes: so many facts, of which all but plain appends have `happened`, without payloads."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    sections = [
        compressor.compress(_encode((bucket, rows.streams))),
        compressor.compress(_encode(happened)),
        compressor.compress(b"".join([column.tobytes() for column in rows.columns()])),
    ]
    raw = rows.payload()
    sample = raw[:_SAMPLE_BYTES]
    compressed = len(compressor.compress(sample)) < len(sample) * _WORTH
    payload = compressor.compress(raw) if compressed else raw
    flags = _PLAIN_APPENDS_ARE_ROWS | (_PAYLOAD_IS_COMPRESSED if compressed else 0)
    checked = _CHECKED.pack(flags, 0, count, len(rows.messages), *map(len, sections), len(payload), len(raw))
    crc = crc32(checked)
    for section in (*sections, payload):
        crc = crc32(section, crc)
    pieces = [MAGIC + crc.to_bytes(4, "little") + checked, *sections, payload]
    return EncodedChunk(pieces, sum(map(len, pieces)), len(rows.messages), len(raw))


class RowCollector:
    """Rows, and the streams they are of."""

    __slots__ = ("_indexes", "_kinds", "_offsets", "_places", "messages", "streams")

    def __init__(self) -> None:
        self.streams: list[ChunkStream] = []
        self.messages: list[Message] = []
        self._places: list[int] = []  # of each row's stream in `streams`
        self._offsets: list[int] = []
        self._kinds: dict[int, int] = {}  # of rows that are not messages
        self._indexes: dict[int | ChunkStream, int] = {}

    def add(self, stream: ChunkStream, offset: int, message: Message) -> None:
        """A message. Every append comes through here."""
        number = stream[0]
        place = self._indexes.get(number)
        if place is None:
            place = self._indexes[number] = len(self.streams)
            self.streams.append(stream)
        self._places.append(place)
        self._offsets.append(offset)
        self.messages.append(message)

    def take(self, stream: ChunkStream, logged: Logged) -> Logged:
        """Any fact about a stream; the fact without its payload, which is in the rows."""
        sequence, at_ms, behind, fact = logged
        self.meet(stream)
        if type(fact) is facts.Appended:
            offset = fact.offset
            for message in messages_of(fact, at_ms, sequence):
                self.add(stream, offset, message)
                offset += len(message[0])
        elif type(fact) is facts.SnapshotPublished:
            self._add_snapshot(stream, sequence, at_ms, fact)
        elif type(fact) is facts.ContentTypeTaken:
            self.streams[self.meet(stream)] = stream  # it has had no message by another type
            return logged
        else:
            return logged
        return sequence, at_ms, behind, msgspec.structs.replace(fact, payload=b"")

    def meet(self, stream: ChunkStream) -> int:
        """Which of the chunk's streams it is."""
        return self._place(stream.number, stream)

    def columns(self) -> list[array[int]]:
        """The columns of `RowColumns`."""
        payloads, *rest = zip(*self.messages, strict=True) if self.messages else [()] * 5
        kinds = array("Q", bytes(8 * len(self.messages)))
        for row, kind in self._kinds.items():
            kinds[row] = kind
        numbers = (self._offsets, list(map(len, payloads)), *rest)
        return [array("Q", self._places), kinds, *(array("Q", column) for column in numbers)]

    def payload(self) -> bytes:
        return b"".join([message[0] for message in self.messages])

    def _add_snapshot(self, stream: ChunkStream, sequence: int, at_ms: int, fact: facts.SnapshotPublished) -> None:
        """A snapshot has a type of its own: it stands under its stream's name with that. One of an empty stream stands
        alone in any case: the stream may yet take another type."""
        named = stream._replace(content_type=fact.content_type)
        self._kinds[len(self.messages)] = SNAPSHOT if fact.object is None else LARGE_SNAPSHOT
        is_shared = named == stream and fact.offset > 0
        self._places.append(self.meet(stream) if is_shared else self._place(named, named))
        self._offsets.append(fact.offset)
        self.messages.append((fact.payload, at_ms, 0, 0, sequence))

    def _place(self, key: int | ChunkStream, stream: ChunkStream) -> int:
        place = self._indexes.get(key)
        if place is None:
            place = self._indexes[key] = len(self.streams)
            self.streams.append(stream)
        return place


def is_plain(fact: facts.Appended) -> bool:
    """Whether the fact is one message and nothing else."""
    if fact.lengths is not None or fact.closes or fact.stream_seq is not None:
        return False
    return fact.producer is None and fact.payload != b""


def messages_of(fact: facts.Appended, at_ms: int, sequence: int) -> Iterator[Message]:
    """The messages of an append; their ids follow each other."""
    if fact.lengths is None:
        yield fact.payload, at_ms, fact.id_ms, fact.id_seq, sequence
        return
    at = 0
    for index, size in enumerate(fact.lengths):
        yield fact.payload[at : at + size], at_ms, fact.id_ms, fact.id_seq + index, sequence
        at += size


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
        self._has_plain = bool(flags & _PLAIN_APPENDS_ARE_ROWS)
        self._payload_bytes = payload_bytes
        self._names: _Names | None = None
        at = HEADER_BYTES
        self._sections: list[memoryview] = []
        for size in sizes:
            self._sections.append(view[at : at + size])
            at += size

    def names(self) -> _Names:
        """The bucket, and the chunk's streams."""
        if self._names is None:
            self._names = _decoded(_names, self._open(0))
        return self._names

    def facts(self) -> list[ArchivedFact]:
        """What happened, in commit order, without payloads."""
        others = _decoded(_facts, self._open(1))
        return list(self._with_plain(others)) if self._has_plain else others

    def _with_plain(self, others: Iterable[ArchivedFact]) -> Iterator[ArchivedFact]:
        """The facts, and between them the appends that are only rows: those whose sequence no fact has."""
        numbers = [stream.number for stream in self.names()[1]]
        remaining = iter(others)
        other = next(remaining, None)
        for place, _, offset, length, at_ms, id_ms, id_seq, sequence in zip(*self.columns(), strict=True):
            while other is not None and other.sequence < sequence:
                yield other
                other = next(remaining, None)
            if other is None or other.sequence != sequence:
                fact = facts.Appended(numbers[place], offset, id_ms, id_seq, b"")
                yield ArchivedFact(sequence, at_ms, offset + length, fact)
        if other is not None:
            yield from chain((other,), remaining)

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
