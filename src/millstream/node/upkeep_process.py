"""The upkeep process: checkpoints, merges and garbage, away from the serving loop and its GIL.

Reads requests as JSON lines on standard input, answers on standard output, and ends when the server does. It holds a
share of the directory's lock, so that no other server starts while a dead one's helper still writes.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..model.errors import CorruptData, StorageError
from ..storage.data_dir import DataDir
from ..storage.files import Files
from . import memory
from .archiving import ArchiveKeeper
from .checkpoint import Checkpointer
from .clock import HelpersClock
from .leases import held_now
from .merging import Merger

_PR_SET_PDEATHSIG = 1
_NICENESS = 5
_IDLE_S = 30.0  # between looks at what may be dropped while nobody writes
# Without a checkpoint, until their memory is given back. At full speed they come every few seconds, and each would have
# to get again what the one before it gave: a tenth of its time.
_PAUSE_S = 10.0


class Assignment(msgspec.Struct):
    """How the server starts its helper."""

    data_dir: str
    block_bytes: int
    segments_min: int
    parent: int
    archive_age_s: float
    archive_bytes_max: int
    clock_base_ms: int


class Request(msgspec.Struct):
    through: int


class Report(msgspec.Struct, omit_defaults=True):
    applied: int = 0
    removed: list[int] = []  # segments that are gone
    merged: int = 0
    failure: str = ""
    damage: list[tuple[str, str]] = []  # the place, and what is wrong with it


def main() -> int:
    assignment = msgspec.json.decode(sys.argv[1], type=Assignment)
    die_with(assignment.parent)
    os.nice(_NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends us in its own time
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        serve(assignment)
    except (OSError, StorageError, sqlite3.Error) as error:
        tell(Report(failure=str(error)))
        return 1
    return 0


def serve(assignment: Assignment) -> None:
    files = Files()
    checkpointer = Checkpointer(DataDir(Path(assignment.data_dir)), files, block_bytes=assignment.block_bytes)
    merger = Merger(checkpointer, segments_min=assignment.segments_min, block_bytes=assignment.block_bytes)
    keeper = ArchiveKeeper(
        checkpointer.catalog,
        checkpointer.objects,
        merge_min=assignment.segments_min,
        age_s=assignment.archive_age_s,
        bytes_max=assignment.archive_bytes_max,
    )
    clock = HelpersClock(assignment.clock_base_ms)
    folder = Path(assignment.data_dir)
    merge_due, has_memory = True, False
    while True:
        if merge_due and not _readable(0):
            keeper.drop(clock.lease_ms())
            archives_merged = _step(keeper.merge)
            keeper.collect(lambda: held_now(folder, clock.lease_ms()).archives_below)
            merged = _step(merger.step)
            removed = merger.collect(lambda: held_now(folder, clock.lease_ms()).segments_below)
            if merged or removed:
                tell(Report(checkpointer.applied, removed, merged=int(merged)))
            merge_due = merged or archives_merged
            continue
        if not _readable(_PAUSE_S if has_memory else _IDLE_S):
            if not has_memory:
                merge_due = True  # what was too young or leased may go by now
                checkpointer.rest()
            memory.give_back()
            has_memory = False
            continue
        line = sys.stdin.buffer.readline()
        if not line:
            checkpointer.close()
            return
        request = msgspec.json.decode(line, type=Request)
        tell(Report(checkpointer.advance(request.through)))
        merge_due = has_memory = True


def _step(merge: Callable[[], bool]) -> bool:
    """One merge, if one is due. Damage costs those who read it; all else must go on: the next step goes around it."""
    try:
        return merge()
    except CorruptData as error:
        tell(Report(damage=[(error.place, error.message)]))
        return True


def _readable(timeout_s: float) -> bool:
    return bool(select.select([sys.stdin.buffer], [], [], timeout_s)[0])


def tell(report: msgspec.Struct) -> None:
    """Say something to the server. If it was killed, nobody is left to hear this or anything else."""
    try:
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(1)  # at once: any other way Python would try to write it again


def die_with(parent: int) -> None:
    """Ask the kernel to end us with the server, even when it is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
