"""One block: about 128 KiB of one stream, or less of several, readable with one ranged read.

    block      header (88) | columns | directory | payload
    header     "MSBK" | crc32 u32 | flags u16 | column widths 5 x u8 | pad u8 | stream u64 | first_offset u64
               | messages u32 | columns_bytes u32 (with the directory) | payload_bytes u64 | base_ms u64
               | base_id_ms u64 | base_sequence u64 | digest 16                     (all little-endian)
    columns    lengths | ms - base_ms | id_ms - base_id_ms | id_seq | sequence - base_sequence
    flags      1: every id_ms is the message's ms, and their column is absent
               2: the block is shared; `stream` says by how many, `first_offset` is 0
    directory  of a shared block only: streams u64 each, ascending | their first offsets u64 each | how many messages
               each has u32. The messages come in the same order

Streams that were hardly written to share blocks: with a hundred thousand of them, a header, a checksum and a digest
for each would be most of what a checkpoint costs.

Each column is an array of little-endian unsigned integers of the width the header names (1, 2, 4 or 8 bytes), or
absent with width 0 when it is all zeros. Lengths and the contiguous payload are what an Arrow binary column is
made of. The crc covers everything after itself. The digest is the sum of the digests of the messages, mod 2^128:
two ways to the same messages can be compared without reading either again.

Readers name the stream they want, and need not know whether it has the block for itself.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import accumulate, chain
from typing import NamedTuple

from ...model.errors import CorruptData
from ..checksum import crc32

HEADER_BYTES = 88
MAGIC = b"MSBK"
_HEADER = struct.Struct("<4sIH5sBQQIIQQQQ16s")
_CHECKED = struct.Struct("<H5sBQQIIQQQQ16s")  # the header after its checksum
_SALT = struct.Struct("<QQ")
_IDS_ARE_TIMES = 1
_IS_SHARED = 2
_DIRECTORY_BYTES = 20  # for each stream
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_DIGEST_MASK = (1 << 128) - 1
assert _HEADER.size == HEADER_BYTES
assert sys.byteorder == "little", "columns are written in the machine's own byte order"


Message = tuple[bytes, int, int, int, int]  # a row of `Columns`


class Columns(NamedTuple):
    """Messages as parallel lists: what a block is made from. Those of one stream follow each other."""

    payloads: list[bytes]
    times_ms: list[int]  # never going back within a stream
    ids_ms: list[int]
    id_seqs: list[int]
    sequences: list[int]  # never going back within a stream

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Columns:
        return cls(*map(list, zip(*messages, strict=True)))

    def part(self, start: int, end: int) -> Columns:
        payloads, times, ids, id_seqs, sequences = self
        return Columns(payloads[start:end], times[start:end], ids[start:end], id_seqs[start:end], sequences[start:end])


class Block(NamedTuple):
    """A decoded block. Columns are plain sequences of integers."""

    stream: int
    first_offset: int
    lengths: Sequence[int]
    times_ms: Sequence[int]
    ids_ms: Sequence[int]
    id_seqs: Sequence[int]
    sequences: Sequence[int]
    payload: memoryview
    digest: int | None  # None: of a shared block, which has one for all of it

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.payload)


def message_digest(offset: int, payload: bytes | memoryview) -> int:
    """What one message adds to a digest: blake2b-128 of its bytes, salted with its offset and length."""
    salt = _SALT.pack(offset, len(payload))
    return int.from_bytes(blake2b(payload, digest_size=16, salt=salt).digest(), "little")


def encode_block(stream: int, first_offset: int, columns: Columns) -> list[bytes]:
    """The block's bytes, in pieces."""
    payloads, times, ids, id_seqs, sequences = columns
    if len(payloads) == 1:
        return encode_message(stream, first_offset, payloads[0], times[0], ids[0], id_seqs[0], sequences[0])
    lengths = list(map(len, payloads))
    digest = _digest(accumulate(lengths, initial=first_offset), payloads, lengths)
    return _encode(stream, first_offset, lengths, times, ids, id_seqs, sequences, b"".join(payloads), digest)


def encode_shared(
    streams: Sequence[int], first_offsets: Sequence[int], counts: list[int], columns: Columns
) -> list[bytes]:
    """The bytes of a block of several streams, in ascending order, like their messages in `columns`."""
    payloads, times, ids, id_seqs, sequences = columns
    lengths = list(map(len, payloads))
    offsets: list[int] = []
    for first_offset, count in zip(first_offsets, counts, strict=True):
        at = len(offsets)
        offsets += accumulate(lengths[at : at + count - 1], initial=first_offset)
    digest, payload = _digest(offsets, payloads, lengths), b"".join(payloads)
    directory = array("Q", (*streams, *first_offsets)).tobytes() + array("I", counts).tobytes()
    return _encode(len(streams), 0, lengths, times, ids, id_seqs, sequences, payload, digest, directory)


def join_blocks(blocks: Sequence[Block]) -> list[bytes]:
    """Blocks of one stream that follow each other, as the bytes of one. Digests add up, so that only messages out of
    shared blocks are looked at."""
    lengths, times, ids, id_seqs, sequences = (
        list(chain.from_iterable(columns)) for columns in zip(*[block[2:7] for block in blocks], strict=True)
    )
    payload, digest = b"".join([block.payload for block in blocks]), sum(map(_digest_of, blocks))
    first = blocks[0]
    return _encode(first.stream, first.first_offset, lengths, times, ids, id_seqs, sequences, payload, digest)


def _encode(
    stream: int, first_offset: int, lengths: list[int], times: list[int], ids: list[int], id_seqs: list[int],
    sequences: list[int], payload: bytes, digest: int, directory: bytes = b"",
) -> list[bytes]:  # fmt: skip
    base_ms, base_sequence = min(times), min(sequences)
    ids_are_times = ids == times
    base_id = base_ms if ids_are_times else min(ids)
    packed = [
        _column(lengths, max(lengths)),
        _delta_column(times, base_ms, max(times)),
        (0, b"") if ids_are_times else _delta_column(ids, base_id, max(ids)),
        _column(id_seqs, max(id_seqs)),
        _delta_column(sequences, base_sequence, max(sequences)),
    ]
    body = b"".join([*(column for _, column in packed), directory])
    checked = _CHECKED.pack(
        ids_are_times * _IDS_ARE_TIMES | bool(directory) * _IS_SHARED, bytes([width for width, _ in packed]), 0, stream,
        first_offset, len(lengths), len(body), len(payload), base_ms, base_id, base_sequence,
        (digest & _DIGEST_MASK).to_bytes(16, "little"),
    )  # fmt: skip
    crc = crc32(payload, crc32(body, crc32(checked)))
    return [b"%b%b%b%b" % (MAGIC, crc.to_bytes(4, "little"), checked, body), payload]


def encode_message(
    stream: int, offset: int, payload: bytes, at_ms: int, id_ms: int, id_seq: int, sequence: int
) -> list[bytes]:
    """`encode_block` for a single message, or a snapshot."""
    length = len(payload)
    length_width, seq_width = _width(length), _width(id_seq)
    columns = length.to_bytes(length_width, "little") + id_seq.to_bytes(seq_width, "little")
    head = _CHECKED.pack(
        _IDS_ARE_TIMES if id_ms == at_ms else 0, bytes((length_width, 0, 0, seq_width, 0)), 0, stream, offset, 1,
        length_width + seq_width, length, at_ms, id_ms, sequence,
        blake2b(payload, digest_size=16, salt=_SALT.pack(offset, length)).digest(),
    ) + columns  # fmt: skip
    return [MAGIC + crc32(payload, crc32(head)).to_bytes(4, "little") + head, payload]


class OpenBlock(NamedTuple):
    """A checked block whose columns are still as they are stored: each a width and its bytes, to be added to a base."""

    stream: int
    first_offset: int
    messages: int
    lengths: tuple[int, memoryview]
    times_ms: tuple[int, memoryview]
    ids_ms: tuple[int, memoryview]
    id_seqs: tuple[int, memoryview]
    sequences: tuple[int, memoryview]
    base_ms: int
    base_id_ms: int
    base_sequence: int
    payload: memoryview
    digest: int | None  # None: of a shared block, which has one for all of it


def open_block(data: bytes | bytearray | memoryview, stream: int) -> OpenBlock:
    """Check a block and find the stream's columns; nothing is copied."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        raise CorruptData("A segment block is shorter than its header.")
    magic, crc, flags, widths, _, owner, first_offset, count, *rest = _HEADER.unpack_from(view)
    columns_bytes, payload_bytes, base_ms, base_id, base_sequence, digest = rest
    if magic != MAGIC or crc != crc32(view[8:]):
        raise CorruptData("A segment block does not match its checksum.")
    if len(view) != HEADER_BYTES + columns_bytes + payload_bytes:
        raise CorruptData("A segment block has another length than it says.")
    at = HEADER_BYTES
    columns: list[tuple[int, memoryview]] = []
    for width in widths:
        if width and width not in _CODES:
            raise CorruptData("A segment block names a column width that does not exist.")
        columns.append((width, view[at : at + width * count]))
        at += width * count
    lengths, times, ids, id_seqs, sequences = columns
    if flags & _IDS_ARE_TIMES:
        ids, base_id = times, base_ms
    payload = view[HEADER_BYTES + columns_bytes :]
    block = OpenBlock(
        stream, first_offset, count, lengths, times, ids, id_seqs, sequences, base_ms, base_id, base_sequence, payload,
        int.from_bytes(digest, "little"),
    )  # fmt: skip
    if flags & _IS_SHARED:
        return _part(block, view[at : HEADER_BYTES + columns_bytes], owner)
    _check_owner(owner, stream)
    return block


def _part(block: OpenBlock, directory: memoryview, count: int) -> OpenBlock:
    """What a shared block, whose directory has so many streams, holds of its stream."""
    if len(directory) != count * _DIRECTORY_BYTES:
        raise CorruptData("A segment block has another directory than it says.")
    streams, first_offsets = directory[: count * 8].cast("Q"), directory[count * 8 : count * 16].cast("Q")
    index = bisect_left(streams, block.stream)
    if index == count or streams[index] != block.stream:
        raise _not_here(block.stream)
    counts = directory[count * 16 :].cast("I")
    start = sum(counts[:index])
    end = start + counts[index]
    lengths = _decode_column(block.lengths[1], block.lengths[0], block.messages)
    skipped, size = sum(lengths[:start]), sum(lengths[start:end])

    def cut(column: tuple[int, memoryview]) -> tuple[int, memoryview]:
        width, data = column
        return width, data[start * width : end * width]

    return block._replace(
        first_offset=first_offsets[index],
        messages=end - start,
        lengths=cut(block.lengths),
        times_ms=cut(block.times_ms),
        ids_ms=cut(block.ids_ms),
        id_seqs=cut(block.id_seqs),
        sequences=cut(block.sequences),
        payload=block.payload[skipped : skipped + size],
        digest=None,
    )


def _check_owner(owner: int, stream: int) -> None:
    if owner != abs(stream):  # snapshots are found under the number turned negative
        raise _not_here(stream)


def _not_here(stream: int) -> CorruptData:
    return CorruptData(f"A segment block holds nothing of stream {stream}.")


def decode_block(data: bytes | bytearray | memoryview, stream: int) -> Block:
    """Check and open a block; the payload is not copied."""
    block = open_block(data, stream)
    count = block.messages
    return Block(
        block.stream,
        block.first_offset,
        _decode_column(block.lengths[1], block.lengths[0], count),
        [block.base_ms + delta for delta in _decode_column(block.times_ms[1], block.times_ms[0], count)],
        [block.base_id_ms + delta for delta in _decode_column(block.ids_ms[1], block.ids_ms[0], count)],
        _decode_column(block.id_seqs[1], block.id_seqs[0], count),
        [block.base_sequence + delta for delta in _decode_column(block.sequences[1], block.sequences[0], count)],
        block.payload,
        block.digest,
    )


def decode_payload(data: bytes | bytearray | memoryview, stream: int) -> tuple[int, Sequence[int], memoryview]:
    """First offset, lengths and payload: all that a catch-up read needs of a block."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        raise CorruptData("A segment block is shorter than its header.")
    magic, crc, flags, widths, _, owner, first_offset, count, *sizes = _HEADER.unpack_from(view)[:10]
    if flags & _IS_SHARED:
        block = open_block(view, stream)  # which also checks whether the flag is true
        return block.first_offset, _decode_column(block.lengths[1], block.lengths[0], block.messages), block.payload
    columns_bytes, payload_bytes = sizes
    if magic != MAGIC or crc != crc32(view[8:]):
        raise CorruptData("A segment block does not match its checksum.")
    lengths = _decode_column(view[HEADER_BYTES : HEADER_BYTES + widths[0] * count], widths[0], count)
    _check_owner(owner, stream)
    payload = view[HEADER_BYTES + columns_bytes :]
    if len(payload) != payload_bytes:
        raise CorruptData("A segment block has another length than it says.")
    return first_offset, lengths, payload


def _digest_of(block: Block) -> int:
    if block.digest is not None:
        return block.digest
    ends = accumulate(block.lengths)
    messages = ((end - length, length) for end, length in zip(ends, block.lengths, strict=True))
    return sum(message_digest(block.first_offset + at, block.payload[at : at + length]) for at, length in messages)


def _digest(offsets: Iterable[int], payloads: list[bytes], lengths: list[int]) -> int:
    """The sum of `message_digest` over all of them; half of what a block costs, and so spelled for speed."""
    salts = map(_SALT.pack, offsets, lengths)
    digests = [
        blake2b(payload, digest_size=16, salt=salt).digest() for payload, salt in zip(payloads, salts, strict=True)
    ]
    halves = array("Q", b"".join(digests))
    return sum(halves[::2]) + (sum(halves[1::2]) << 64)


def _delta_column(values: list[int], base: int, highest: int) -> tuple[int, bytes]:
    if highest == base:
        return 0, b""
    return _column([value - base for value in values], highest - base)


def _column(values: list[int], highest: int) -> tuple[int, bytes]:
    width = _width(highest)
    if width <= 1:
        return width, bytes(values) if width else b""
    return width, array(_CODES[width], values).tobytes()


def _width(highest: int) -> int:
    """How many bytes each number of a column takes."""
    if highest < 1 << 8:
        return 1 if highest else 0
    return 2 if highest < 1 << 16 else 4 if highest < 1 << 32 else 8


def _decode_column(data: memoryview, width: int, count: int) -> Sequence[int]:
    if width == 0:
        return [0] * count
    if width not in _CODES:
        raise CorruptData("A segment block names a column width that does not exist.")
    column = array(_CODES[width])
    column.frombytes(data)
    return column.tolist()
