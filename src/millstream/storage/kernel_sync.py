"""fdatasync by the kernel's own workers, told through an eventfd.

A thread that syncs has to take the interpreter's lock to say that it is done, which a busy loop gives late and pays for
in context switches: 110 us of CPU a commit against 33 us this way (measured; `bench/appends.py` shows the effect at 64
connections). Where the kernel or the machine does not offer it, a thread does it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Protocol

from .aio_sync import AioSync
from .ring_sync import RingSync


class KernelSync(Protocol):
    """One sync in flight at a time: `submit`, wait for `fileno` to become readable, `collect`."""

    works_elsewhere: bool  # on another core, so that the one that asks goes on with its own work meanwhile
    fileno: int

    def submit(self, fd: int) -> bool:
        """Start to sync a file; False where the kernel does not take it."""
        ...

    def collect(self) -> OSError | None:
        """How the sync ended."""
        ...

    def close(self) -> None: ...


def open_kernel_syncs() -> list[KernelSync]:
    """What this machine offers."""
    offered: list[KernelSync] = []
    if sys.platform == "linux" and hasattr(os, "eventfd"):
        for kind in (AioSync, RingSync):
            with contextlib.suppress(OSError):  # an old kernel, or a sandbox that forbids it
                offered.append(kind())
    return offered
