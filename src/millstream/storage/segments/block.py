"""One block: about 128 KiB of one stream, readable with one ranged read.

    block    header (88) | columns | payload
    header   "MSBK" | crc32 u32 | flags u16 | column widths 5 x u8 | pad u8 | stream u64 | first_offset u64
             | messages u32 | columns_bytes u32 | payload_bytes u64 | base_ms u64 | base_id_ms u64
             | base_sequence u64 | digest 16                                        (all little-endian)
    columns  lengths | ms - base_ms | id_ms - base_id_ms | id_seq | sequence - base_sequence

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
from typing import NamedTuple

from ...model.errors import CorruptData
from ..checksum import crc32

HEADER_BYTES = 88
MAGIC = b"MSBK"
_HEADER = struct.Struct("<4sIH5sBQQIIQQQQ16s")
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_DIGEST_MASK = (1 << 128) - 1
assert _HEADER.size == HEADER_BYTES
assert sys.byteorder == "little", "columns are written in the machine's own byte order"


class Message(NamedTuple):
    """One message on its way into a block."""

    payload: bytes
    at_ms: int
    id_ms: int
    id_seq: int
    sequence: int


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
    """What one message adds to a digest."""
    hasher = blake2b(struct.pack("<QQ", offset, len(payload)), digest_size=16)
    hasher.update(payload)
    return int.from_bytes(hasher.digest(), "little")


def encode_block(stream: int, first_offset: int, messages: Sequence[Message]) -> list[bytes]:
    """The block's bytes, in pieces."""
    payloads, times, ids, id_seqs, sequences = zip(*messages, strict=True)
    base_ms, base_id, base_sequence = times[0], min(ids), sequences[0]
    columns = [
        _column([len(payload) for payload in payloads]),
        _column([time - base_ms for time in times]),
        _column([id_ms - base_id for id_ms in ids]),
        _column(id_seqs),
        _column([sequence - base_sequence for sequence in sequences]),
    ]
    packed = b"".join([column for _, column in columns])
    payload = payloads[0] if len(payloads) == 1 else b"".join(payloads)
    header = _HEADER.pack(
        MAGIC, 0, 0, bytes([width for width, _ in columns]), 0, stream, first_offset, len(messages), len(packed),
        len(payload), base_ms, base_id, base_sequence, _digest(first_offset, payloads).to_bytes(16, "little"),
    )  # fmt: skip
    crc = crc32(payload, crc32(packed, crc32(header[8:])))
    return [header[:4] + crc.to_bytes(4, "little") + header[8:] + packed, payload]


def decode_block(data: bytes | bytearray | memoryview) -> Block:
    """Check and open a block; the payload is not copied."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        raise CorruptData("A segment block is shorter than its header.")
    magic, crc, _, widths, _, stream, first_offset, count, columns_bytes, payload_bytes, *rest = _HEADER.unpack_from(
        view
    )
    if magic != MAGIC or crc != crc32(view[8:]):
        raise CorruptData("A segment block does not match its checksum.")
    if len(view) != HEADER_BYTES + columns_bytes + payload_bytes:
        raise CorruptData("A segment block has another length than it says.")
    base_ms, base_id, base_sequence, digest = rest
    at, columns = HEADER_BYTES, []
    for width in widths:
        columns.append(_decode_column(view[at : at + width * count], width, count))
        at += width * count
    lengths, times, ids, id_seqs, sequences = columns
    return Block(
        stream,
        first_offset,
        lengths,
        [base_ms + delta for delta in times],
        [base_id + delta for delta in ids],
        id_seqs,
        [base_sequence + delta for delta in sequences],
        view[at:],
        int.from_bytes(digest, "little"),
    )


def decode_payload(data: bytes | bytearray | memoryview) -> tuple[int, Sequence[int], memoryview]:
    """First offset, lengths and payload: all that a catch-up read needs of a block."""
    view = memoryview(data)
    magic, crc, _, widths, _, _, first_offset, count, columns_bytes, payload_bytes, *_ = _HEADER.unpack_from(view)
    if magic != MAGIC or crc != crc32(view[8:]):
        raise CorruptData("A segment block does not match its checksum.")
    lengths = _decode_column(view[HEADER_BYTES : HEADER_BYTES + widths[0] * count], widths[0], count)
    payload = view[HEADER_BYTES + columns_bytes :]
    if len(payload) != payload_bytes:
        raise CorruptData("A segment block has another length than it says.")
    return first_offset, lengths, payload


def messages_of(block: Block) -> list[Message]:
    """The messages of a block, as `encode_block` takes them."""
    messages, at = [], 0
    columns = (block.lengths, block.times_ms, block.ids_ms, block.id_seqs, block.sequences)
    for length, at_ms, id_ms, id_seq, sequence in zip(*columns, strict=True):
        messages.append(Message(bytes(block.payload[at : at + length]), at_ms, id_ms, id_seq, sequence))
        at += length
    return messages


def _digest(first_offset: int, payloads: Sequence[bytes]) -> int:
    total, offset = 0, first_offset
    for payload in payloads:
        total += message_digest(offset, payload)
        offset += len(payload)
    return total & _DIGEST_MASK


def _column(values: Sequence[int]) -> tuple[int, bytes]:
    highest = max(values)
    if highest == 0:
        return 0, b""
    width = 1 if highest < 1 << 8 else 2 if highest < 1 << 16 else 4 if highest < 1 << 32 else 8
    return width, array(_CODES[width], values).tobytes()


def _decode_column(data: memoryview, width: int, count: int) -> Sequence[int]:
    if width == 0:
        return [0] * count
    if width not in _CODES:
        raise CorruptData("A segment block names a column width that does not exist.")
    column = array(_CODES[width])
    column.frombytes(data)
    return column.tolist()
