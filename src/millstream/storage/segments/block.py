"""One block: about 128 KiB of one stream, readable with one ranged read.

    block    header (88) | columns | payload
    header   "MSBK" | crc32 u32 | flags u16 | column widths 5 x u8 | pad u8 | stream u64 | first_offset u64
             | messages u32 | columns_bytes u32 | payload_bytes u64 | base_ms u64 | base_id_ms u64
             | base_sequence u64 | digest 16                                        (all little-endian)
    columns  lengths | ms - base_ms | id_ms - base_id_ms | id_seq | sequence - base_sequence
    flags    1: every id_ms is the message's ms, and their column is absent

Each column is an array of little-endian unsigned integers of the width the header names (1, 2, 4 or 8 bytes), or
absent with width 0 when it is all zeros. Lengths and the contiguous payload are what an Arrow binary column is
made of. The crc covers everything after itself. The digest is the sum of the digests of the messages, mod 2^128:
two ways to the same messages can be compared without reading either again.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
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
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_DIGEST_MASK = (1 << 128) - 1
assert _HEADER.size == HEADER_BYTES
assert sys.byteorder == "little", "columns are written in the machine's own byte order"


class Columns(NamedTuple):
    """Messages of one stream that follow each other, as parallel lists: what a block is made from."""

    payloads: list[bytes]
    times_ms: list[int]  # never going back
    ids_ms: list[int]
    id_seqs: list[int]
    sequences: list[int]  # never going back

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
    digest: int

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
    digest = _digest(first_offset, payloads, lengths)
    return _encode(stream, first_offset, lengths, times, ids, id_seqs, sequences, b"".join(payloads), digest)


def join_blocks(blocks: Sequence[Block]) -> list[bytes]:
    """Blocks of one stream that follow each other, as the bytes of one. No message is looked at: digests add up."""
    lengths, times, ids, id_seqs, sequences = (
        list(chain.from_iterable(columns)) for columns in zip(*[block[2:7] for block in blocks], strict=True)
    )
    payload, digest = b"".join([block.payload for block in blocks]), sum(block.digest for block in blocks)
    first = blocks[0]
    return _encode(first.stream, first.first_offset, lengths, times, ids, id_seqs, sequences, payload, digest)


def _encode(
    stream: int, first_offset: int, lengths: list[int], times: list[int], ids: list[int], id_seqs: list[int],
    sequences: list[int], payload: bytes, digest: int,
) -> list[bytes]:  # fmt: skip
    base_ms, base_sequence = times[0], sequences[0]
    ids_are_times = ids == times
    base_id = base_ms if ids_are_times else min(ids)
    packed = [
        _column(lengths, max(lengths)),
        _delta_column(times, base_ms, times[-1]),
        (0, b"") if ids_are_times else _delta_column(ids, base_id, max(ids)),
        _column(id_seqs, max(id_seqs)),
        _delta_column(sequences, base_sequence, sequences[-1]),
    ]
    body = b"".join([column for _, column in packed])
    checked = _CHECKED.pack(
        _IDS_ARE_TIMES if ids_are_times else 0, bytes([width for width, _ in packed]), 0, stream, first_offset,
        len(lengths), len(body), len(payload), base_ms, base_id, base_sequence,
        (digest & _DIGEST_MASK).to_bytes(16, "little"),
    )  # fmt: skip
    crc = crc32(payload, crc32(body, crc32(checked)))
    return [b"%b%b%b%b" % (MAGIC, crc.to_bytes(4, "little"), checked, body), payload]


def encode_message(
    stream: int, offset: int, payload: bytes, at_ms: int, id_ms: int, id_seq: int, sequence: int
) -> list[bytes]:
    """`encode_block` for a single message: with many quiet streams most blocks are that."""
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
    digest: int


def open_block(data: bytes | bytearray | memoryview) -> OpenBlock:
    """Check a block and find its columns; nothing is copied."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        raise CorruptData("A segment block is shorter than its header.")
    magic, crc, flags, widths, _, stream, first_offset, count, *rest = _HEADER.unpack_from(view)
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
    bases = (base_ms, base_id, base_sequence)
    named = (lengths, times, ids, id_seqs, sequences)
    return OpenBlock(stream, first_offset, count, *named, *bases, view[at:], int.from_bytes(digest, "little"))


def decode_block(data: bytes | bytearray | memoryview) -> Block:
    """Check and open a block; the payload is not copied."""
    block = open_block(data)
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


def decode_payload(data: bytes | bytearray | memoryview) -> tuple[int, Sequence[int], memoryview]:
    """First offset, lengths and payload: all that a catch-up read needs of a block."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        raise CorruptData("A segment block is shorter than its header.")
    magic, crc, _, widths, _, _, first_offset, count, columns_bytes, payload_bytes, *_ = _HEADER.unpack_from(view)
    if magic != MAGIC or crc != crc32(view[8:]):
        raise CorruptData("A segment block does not match its checksum.")
    lengths = _decode_column(view[HEADER_BYTES : HEADER_BYTES + widths[0] * count], widths[0], count)
    payload = view[HEADER_BYTES + columns_bytes :]
    if len(payload) != payload_bytes:
        raise CorruptData("A segment block has another length than it says.")
    return first_offset, lengths, payload


def _digest(first_offset: int, payloads: list[bytes], lengths: list[int]) -> int:
    """The sum of `message_digest` over all of them; half of what a block costs, and so spelled for speed."""
    salts = map(_SALT.pack, accumulate(lengths, initial=first_offset), lengths)
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
