"""Giving memory back to the machine."""

from __future__ import annotations

import ctypes
import gc

_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's


def give_back() -> None:
    """Python and the allocator keep what was freed for the next time, which may be long in coming. Takes milliseconds
    where many objects are alive."""
    gc.collect()  # the lists of free tuples and the like keep whole regions from being empty
    if _malloc_trim is not None:
        _malloc_trim(0)
