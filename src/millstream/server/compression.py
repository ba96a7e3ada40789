"""Bodies that go over the wire compressed, off the loop: whole ones, and ones that are made while they are sent."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import lru_cache
from typing import Protocol

import zstandard

COMPRESS_MIN = 1024
_WEIGHT = re.compile(rb"\s*(?:q=([01](?:\.[0-9]{0,3})?)\s*)?", re.IGNORECASE)
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
    weights = {
        name.strip().lower(): _weight(rest) for name, _, rest in (part.partition(b";") for part in accepted.split(b","))
    }
    best = max((b"zstd", b"gzip", b"identity"), key=lambda encoding: weights.get(encoding, 0))  # of equals the first
    return None if best == b"identity" or not weights.get(best) else best


def _weight(parameters: bytes) -> float:
    """Nothing for one that is not understood: what is sent plain can always be read."""
    found = _WEIGHT.fullmatch(parameters)
    return float(found[1] or 1) if found else 0


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
