"""Objects that are payload first and an index behind it: staged parts and transactions' objects.

    object   magic 8 | version u16 | zeros up to 16 | payload | index chunk | index chunk | ... | meta | trailer (32)
    meta     msgpack array: [index at, [[bytes, crc32] of each chunk], whatever the kind of object adds]
    trailer  meta at u64 | meta bytes u32 | crc32 of the meta u32 | zeros u64 | magic 8        (all little-endian)

An index chunk is a msgpack array that decodes alone, so that nobody has to take a large index in one step. The payload
is checked by the crcs that the index holds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from ...model.errors import CorruptData, UnknownFormat
from ..checksum import crc32
from ..objects import gathered
from ..ports import ObjectStore, Piece

VERSION = 1
HEAD_BYTES = 16
_HEAD = struct.Struct("<8sH6x")
_TRAILER = struct.Struct("<QII8x8s")


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    size: int
    crc: int


class Meta(msgspec.Struct, frozen=True, array_like=True):
    """What is known about an object without its index."""

    index_at: int
    chunks: list[Chunk]
    more: msgspec.Raw


class Indexed(NamedTuple):
    """What the writer of an object gives once its payload is written."""

    chunks: list[bytes]
    more: bytes


def indexed_object(magic: bytes, payload: Iterable[Piece], finish: Callable[[], Indexed]) -> Iterator[Piece]:
    """The pieces of an object for `ObjectStore.put`; `finish` is asked when the payload has been taken."""
    yield _HEAD.pack(magic, VERSION)
    at = HEAD_BYTES
    for piece in gathered(payload):
        at += len(piece)
        yield piece
    chunks, more = finish()
    yield from chunks
    table = [Chunk(len(chunk), crc32(chunk)) for chunk in chunks]
    meta = msgspec.msgpack.encode(Meta(at, table, msgspec.Raw(more)))
    yield meta
    yield _TRAILER.pack(at + sum(map(len, chunks)), len(meta), crc32(meta), magic)


def read_meta(store: ObjectStore, name: str, magic: bytes) -> Meta:
    size = store.size(name)
    if size < HEAD_BYTES + _TRAILER.size:
        raise CorruptData(f"{name} is too short to be what its name says.")
    found, version = _HEAD.unpack(store.get_range(name, 0, HEAD_BYTES))
    if found == magic and version != VERSION:
        raise UnknownFormat(f"{name} has format {version}; this version reads format {VERSION}.")
    at, length, crc, end = _TRAILER.unpack(store.get_range(name, size - _TRAILER.size, _TRAILER.size))
    if found != magic or end != magic or at + length + _TRAILER.size != size:
        raise CorruptData(f"{name} is not complete.")
    data = store.get_range(name, at, length)
    if crc32(data) != crc:
        raise CorruptData(f"{name}: what it says about itself does not match its checksum.")
    return msgspec.msgpack.decode(data, type=Meta)


def read_chunks(store: ObjectStore, name: str, meta: Meta) -> Iterator[bytes]:
    """The index, chunk by chunk, checked."""
    at = meta.index_at
    for chunk in meta.chunks:
        data = store.get_range(name, at, chunk.size)
        if crc32(data) != chunk.crc:
            raise CorruptData(f"The index of {name} does not match its checksum.")
        at += chunk.size
        yield data
