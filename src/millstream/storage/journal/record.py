"""The bytes of a journal file.

    file    header (64) | frame | frame | ... | zeros up to the allocated size
    header  "MILLJRNL" | version u16 | shard u16 | crc32 u32 | incarnation u64 | salt u64 | first_sequence u64
            | created_ms u64 | zeros                                                     (all little-endian)
    frame   "MSB1" | body length u32 | crc32 of the head u32 | crc32 of the body u32 | first_sequence u64 | at_ms u64
            | body (`model.codec`)

The crc of the head covers the length and what follows it up to the body. Both start from the file's salt, which
nobody outside knows: bytes that a client sent can never pass for a frame, wherever a torn write leaves them, and
looking for frames among them takes one small check each.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ...model.errors import CorruptData, UnknownFormat
from ..checksum import crc32

VERSION = 1
HEADER_BYTES = 64
FRAME_MAGIC = b"MSB1"
_FILE_MAGIC = b"MILLJRNL"
_HEADER = struct.Struct("<8sHHIQQQQ")
_FRAME = struct.Struct("<4sIIIQQ")
_CHECKED = struct.Struct("<IIQQ")  # of the head: length, crc32 of the body, first_sequence, at_ms
FRAME_BYTES = _FRAME.size


class FileHeader(NamedTuple):
    shard: int
    incarnation: int
    salt: int
    first_sequence: int
    created_ms: int

    def encode(self) -> bytes:
        crc = crc32(struct.pack("<HHQQQQ", VERSION, *self))
        fields = (self.shard, crc, self.incarnation, self.salt, self.first_sequence, self.created_ms)
        return _HEADER.pack(_FILE_MAGIC, VERSION, *fields).ljust(HEADER_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> FileHeader:
        if len(data) < HEADER_BYTES or data[:8] != _FILE_MAGIC:
            raise CorruptData("This is not a journal file: its first bytes are wrong.")
        _, version, shard, crc, incarnation, salt, first_sequence, created_ms = _HEADER.unpack_from(data)
        if version != VERSION:
            raise UnknownFormat(
                f"The journal has format {version}; this version reads format {VERSION}. Use the version that wrote it."
            )
        header = cls(shard, incarnation, salt, first_sequence, created_ms)
        if crc != crc32(struct.pack("<HHQQQQ", version, *header)):
            raise CorruptData("A journal file's header does not match its checksum.")
        return header


class Frame(NamedTuple):
    first_sequence: int
    at_ms: int
    body: memoryview
    end: int  # where the next frame starts


def frame_header(salt: int, first_sequence: int, at_ms: int, body: bytes | bytearray) -> bytes:
    seed = salt & 0xFFFFFFFF
    checked = (len(body), crc32(body, seed), first_sequence, at_ms)
    head_crc = crc32(_CHECKED.pack(*checked), seed)
    return _FRAME.pack(FRAME_MAGIC, len(body), head_crc, *checked[1:])


class _Head(NamedTuple):
    """The head of a frame, checked."""

    length: int
    body_crc: int
    first_sequence: int
    at_ms: int


def _read_head(data: memoryview, at: int, salt: int) -> _Head | None:
    if at + FRAME_BYTES > len(data):
        return None
    magic, length, head_crc, *rest = _FRAME.unpack_from(data, at)
    if magic != FRAME_MAGIC or head_crc != crc32(_CHECKED.pack(length, *rest), salt & 0xFFFFFFFF):
        return None
    return _Head(length, *rest)


def frame_bytes(data: memoryview, at: int, salt: int) -> int:
    """How long the frame at this place says it is; 0 where no valid head of one is."""
    head = _read_head(data, at, salt)
    return 0 if head is None else FRAME_BYTES + head.length


def read_frame(data: memoryview, at: int, salt: int) -> Frame | None:
    """The frame at this place, or None where there is no valid one."""
    head = _read_head(data, at, salt)
    if head is None:
        return None
    end = at + FRAME_BYTES + head.length
    if end > len(data):
        return None
    body = data[at + FRAME_BYTES : end]
    if head.body_crc != crc32(body, salt & 0xFFFFFFFF):
        return None
    return Frame(head.first_sequence, head.at_ms, body, end)
