"""Bodies that go over the wire compressed, off the loop: whole ones, and ones that are made while they are sent."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import lru_cache
from typing import Protocol

import zstandard

COMPRESS_MIN = 1024
Piece = bytes | memoryview


class Packer(Protocol):
    def compress(self, data: Piece, /) -> bytes: ...
    def flush(self) -> bytes: ...


def wanted_encoding(accepted: bytes) -> bytes | None:
    """The encoding to use for a client that accepts these; None for none."""
    return _known_choice(accepted) if len(accepted) <= 256 else _choose(accepted)


@lru_cache(maxsize=256)
def _known_choice(accepted: bytes) -> bytes | None:
    """There are few kinds of clients, and each says the same every time."""
    return _choose(accepted)


def _choose(accepted: bytes) -> bytes | None:
    names = {part.partition(b";")[0].strip().lower(): part.partition(b";")[2] for part in accepted.split(b",")}
    for encoding in (b"zstd", b"gzip"):
        if encoding in names and names[encoding].replace(b" ", b"") not in (
            b"q=0",
            b"q=0.0",
            b"q=0.00",
            b"q=0.000",
        ):
            return encoding
    return None


def compress(pieces: Sequence[Piece], encoding: bytes) -> bytes:
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if encoding == b"zstd":
        return zstandard.ZstdCompressor(level=3).compress(data)
    packer = zlib.compressobj(level=5, wbits=31)
    return packer.compress(data) + packer.flush()


async def compressed(pieces: AsyncGenerator[Piece], encoding: bytes) -> AsyncGenerator[Piece]:
    """Pieces as they come, compressed in a thread. Who closes this closes them too."""
    packer = _packer(encoding)
    async with aclosing(pieces):
        async for piece in pieces:
            packed = await asyncio.to_thread(packer.compress, piece)
            if packed:
                yield packed
    yield await asyncio.to_thread(packer.flush)


def _packer(encoding: bytes) -> Packer:
    if encoding == b"zstd":
        return zstandard.ZstdCompressor(level=3).compressobj()
    return zlib.compressobj(level=5, wbits=31)
