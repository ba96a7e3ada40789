"""Buffers that are read into again and again.

A fresh buffer of a megabyte costs more than reading into it: the kernel hands out zeroed pages one fault at a time, and
Python zeroes them once more. So buffers are kept, and one is free again as soon as nobody looks at it any more.
"""

from __future__ import annotations

_SMALLEST = 128 << 10


class BufferPool:
    """Hands out views of kept buffers. A view keeps its buffer busy; who drops it gives the buffer back."""

    def __init__(self, bytes_max: int = 16 << 20) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._buffers: dict[int, list[bytearray]] = {}  # by size

    def take(self, size: int) -> memoryview:
        """A buffer of `size` bytes; what is in it is anybody's guess."""
        room = _SMALLEST
        while room < size:
            room *= 2
        kept = self._buffers.setdefault(room, [])
        for buffer in kept:
            if _is_free(buffer):
                return memoryview(buffer)[:size]
        buffer = bytearray(room)
        if self._bytes + room <= self._bytes_max:
            self._bytes += room
            kept.append(buffer)
        return memoryview(buffer)[:size]


def _is_free(buffer: bytearray) -> bool:
    """Whether nobody looks at the buffer: one that is looked at refuses to change its size, in every Python.

    How many references it has says nothing: interpreters count them as they like. A byte less and one more moves
    nothing in memory."""
    try:
        buffer.pop()
    except BufferError:
        return False
    buffer.append(0)
    return True
