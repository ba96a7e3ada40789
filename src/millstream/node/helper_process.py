"""How the server starts its helpers and hears from them: JSON lines, an assignment first, and a share of the lock."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

_LINE_BYTES_MAX = 1 << 20


async def start_helper(
    module: str, assignment: msgspec.Struct, lock_fd: int, environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Run a module of this package. It holds the directory's lock too: no other server starts while it still writes."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        msgspec.json.encode(assignment).decode(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=(lock_fd,),
        env=os.environ | (environment or {}),
        limit=_LINE_BYTES_MAX,
    )


class Signs(NamedTuple):
    """What the kernel tells of a process: how it is, and how much work it has done."""

    state: str
    ticks: int

    @classmethod
    def of(cls, process: asyncio.subprocess.Process) -> Signs:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return cls(fields[0], int(fields[11]) + int(fields[12]))


async def read_line(process: asyncio.subprocess.Process) -> bytes | None:
    """What the helper says next; None when it has ended. Raises `ValueError` if it does not come to an end.

    A last line without an end is torn: the helper was killed while it wrote.
    """
    assert process.stdout is not None
    line = await process.stdout.readline()
    return line if line.endswith(b"\n") else None
