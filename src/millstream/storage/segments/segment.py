"""One segment: an immutable object of many blocks, about sorted by stream, with an index at its end.

    segment  "MILLSEGM" | version u16 | zeros up to 16 | block | block | ... | index | trailer (32)
    index    msgpack array of extents, as arrays of their fields
    trailer  index at u64 | index bytes u32 | crc32 of the index u32 | zeros u64 | "MILLSEGM"

The catalog knows every block as an extent, or several if streams share it, so the server never needs the index; it is
there for readers without a catalog, for the doctor, and to rebuild the catalog.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise

import msgspec
from msgspec.structs import replace

from ...model.errors import CorruptData, UnknownFormat
from ...model.records import Extent
from ..checksum import crc32
from ..ports import ObjectStore
from .block import Block, Columns, Message, encode_block, encode_message, encode_shared, join_blocks

FOLDER = "segments"
VERSION = 2  # 1: no block was shared, and rows of the index had fewer fields
_MAGIC = b"MILLSEGM"
_HEAD = struct.Struct("<8sH6x")
_TRAILER = struct.Struct("<QII8x8s")
_WRITE_BYTES = 1 << 20  # in one go: a segment may hold a hundred thousand tiny blocks
_SHARING_PART = 32  # of a block: a stream with less than that shares one
_SHARED_PART = 8  # of a block: how much is shared. A read of a few messages reads all of it
_extents = msgspec.msgpack.Decoder(list[Extent])
_rows_of_1 = msgspec.msgpack.Decoder(list[tuple[int, int, int, int, int, int, int, int]])


def segment_name(segment: int) -> str:
    return f"{FOLDER}/{segment:012d}"


def segment_number(name: str) -> int:
    return int(name.rpartition("/")[2])


def damaged(extent: Extent, stream: int | str, error: Exception) -> CorruptData:
    """The error that says which block cannot be read."""
    place = f"{segment_name(extent.segment)} at byte {extent.at}"
    why = str(error).rstrip(".")
    return CorruptData(f"Stream {stream}: the block in {place} cannot be read: {why}.", place=place)


class SegmentBuilder:
    """Makes blocks; `write` stores the object while they are made, and `extents` says where everything went."""

    def __init__(self, segment: int, block_bytes: int) -> None:
        self.segment = segment
        self.extents: list[Extent] = []
        self._block_bytes = block_bytes
        self._shared = _Shared()
        self._shared_bytes = block_bytes // _SHARED_PART
        self._share_below = block_bytes // _SHARING_PART
        self._pieces: list[bytes | bytearray | memoryview] = [_HEAD.pack(_MAGIC, VERSION)]
        self._at = _HEAD.size
        self._written = 0

    @property
    def size(self) -> int:
        return self._at

    def add(self, stream: int, first_offset: int, messages: Sequence[Message], total: int | None = None) -> None:
        """Messages of one stream that follow each other: few share a block, many are cut into blocks of about the
        wanted size. `total` is that of their payloads, where it is known."""
        if total is None:
            total = sum([len(message[0]) for message in messages])
        if total < self._share_below:
            self._share(stream, first_offset, messages, total)
            return
        columns = Columns.of(messages)
        payloads = columns.payloads
        if len(payloads) == 1 or total <= self._block_bytes:
            self._add_block(stream, first_offset, columns)
            return
        start, size = 0, 0
        for index, payload in enumerate(payloads):
            if size and size + len(payload) > self._block_bytes:
                self._add_block(stream, first_offset, columns.part(start, index))
                first_offset += size
                start, size = index, 0
            size += len(payload)
        self._add_block(stream, first_offset, columns.part(start, len(payloads)))

    def add_snapshot(self, stream: int, offset: int, payload: bytes, at_ms: int, sequence: int) -> None:
        """A small snapshot: the one block of the stream with the number turned negative."""
        block = encode_message(stream, offset, payload, at_ms, at_ms, 0, sequence)
        self._note(-stream, offset, block, 1, sequence, at_ms, at_ms, 0)

    def add_joined(self, stream: int, blocks: Sequence[Block]) -> None:
        """Blocks of one stream that follow each other, as one, or as part of one."""
        total = sum(len(block.payload) for block in blocks)
        if total < self._share_below:
            self._share(stream, blocks[0].first_offset, _messages_of(blocks), total)
            return
        messages, last = sum(len(block.lengths) for block in blocks), blocks[-1]
        newest = (last.sequences[-1], last.times_ms[-1], last.ids_ms[-1], last.id_seqs[-1])
        self._note(stream, blocks[0].first_offset, join_blocks(blocks), messages, *newest)

    def add_encoded(self, extent: Extent, block: bytes) -> None:
        """A block as it lies in another segment."""
        self.extents.append(replace(extent, segment=self.segment, at=self._at, size=len(block)))
        self._pieces.append(block)
        self._at += len(block)

    def write(self, store: ObjectStore, filling: Iterable[object] = ()) -> int:
        """Write the object durably. `filling` adds to it step by step, and what is ready is written in between. The
        object's size; 0, and there is none, if nothing was added."""
        pieces = self._pieces_of(filling)
        first = next(pieces, None)
        return 0 if first is None else store.put(segment_name(self.segment), chain([first], pieces))

    def _pieces_of(self, filling: Iterable[object]) -> Iterator[bytes]:
        for _ in filling:
            if self._at - self._written >= _WRITE_BYTES:
                yield self._ready()
        self._finish_shared()
        if self.extents:
            yield self._ready()
            index = msgspec.msgpack.encode(self.extents)
            yield index + _TRAILER.pack(self._at, len(index), crc32(index), _MAGIC)

    def _ready(self) -> bytes:
        pieces, self._pieces, self._written = self._pieces, [], self._at
        return b"".join(pieces)

    def _add_block(self, stream: int, first_offset: int, columns: Columns) -> None:
        block = encode_block(stream, first_offset, columns)
        newest = (columns.sequences[-1], columns.times_ms[-1], columns.ids_ms[-1], columns.id_seqs[-1])
        self._note(stream, first_offset, block, len(columns.payloads), *newest)

    def _share(self, stream: int, first_offset: int, messages: Iterable[Message], size: int) -> None:
        shared = self._shared
        if shared.size + size > self._shared_bytes or (shared.streams and stream <= shared.streams[-1][0]):
            self._finish_shared()
            shared = self._shared
        shared.messages += messages
        shared.streams.append((stream, first_offset, first_offset + size, len(shared.messages)))
        shared.size += size

    def _finish_shared(self) -> None:
        shared, self._shared = self._shared, _Shared()
        if not shared.streams:
            return
        columns = Columns.of(shared.messages)
        streams, first_offsets, _, ends = zip(*shared.streams, strict=True)
        if len(streams) == 1:
            self._add_block(streams[0], first_offsets[0], columns)
        else:
            counts = [end - start for start, end in pairwise((0, *ends))]
            block = encode_shared(streams, first_offsets, counts, columns)
            size = sum(map(len, block))
            self.extents += shared.extents(counts, self.segment, self._at, size)
            self._pieces += block
            self._at += size

    def _note(self, stream: int, offset: int, block: list[bytes], messages: int, *newest: int) -> None:
        """`newest` is what an extent says of its last message."""
        head, payload = block
        self._pieces += block
        size, following = len(head) + len(payload), offset + len(payload)
        extent = Extent(stream, offset, following, self.segment, self._at, size, messages, *newest)
        self.extents.append(extent)
        self._at += size


class _Shared:
    """What becomes a shared block: messages of streams that got few."""

    __slots__ = ("messages", "size", "streams")

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.streams: list[tuple[int, int, int, int]] = []  # with their offsets, and where their messages end
        self.size = 0

    def extents(self, counts: Iterable[int], segment: int, at: int, size: int) -> Iterator[Extent]:
        for (stream, first_offset, next_offset, end), count in zip(self.streams, counts, strict=True):
            _, ms, id_ms, id_seq, sequence = self.messages[end - 1]
            yield Extent(stream, first_offset, next_offset, segment, at, size, count, sequence, ms, id_ms, id_seq)


def _messages_of(blocks: Iterable[Block]) -> Iterator[Message]:
    for block in blocks:
        ends = accumulate(block.lengths)
        payloads = (bytes(block.payload[end - n : end]) for end, n in zip(ends, block.lengths, strict=True))
        yield from zip(payloads, block.times_ms, block.ids_ms, block.id_seqs, block.sequences, strict=True)


def read_index(store: ObjectStore, name: str) -> list[Extent]:
    """The blocks of a segment, from the object alone."""
    size = store.size(name)
    if size < _HEAD.size + _TRAILER.size:
        raise CorruptData(f"{name} is too short to be a segment.")
    magic, version = _HEAD.unpack(store.get_range(name, 0, _HEAD.size))
    if magic == _MAGIC and version not in range(1, VERSION + 1):
        raise UnknownFormat(
            f"{name} has format {version}; this version reads formats up to {VERSION}. Use the version that wrote it."
        )
    at, length, crc, end = _TRAILER.unpack(store.get_range(name, size - _TRAILER.size, _TRAILER.size))
    if magic != _MAGIC or end != _MAGIC or at + length + _TRAILER.size != size:
        raise CorruptData(f"{name} is not a complete segment.")
    index = store.get_range(name, at, length)
    if crc32(index) != crc:
        raise CorruptData(f"The index of {name} does not match its checksum.")
    if version == 1:
        return [Extent(*row[:3], segment_number(name), *row[3:]) for row in _rows_of_1.decode(index)]
    return _extents.decode(index)
