"""Snapshots on their way in and out: where large ones lie, and the pieces of a bootstrap."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncGenerator

from ..engine.machine import Machine
from ..engine.state import Stream
from ..model.errors import NotFound, Unavailable
from ..model.records import Snapshot
from ..storage.catalog import CatalogReader
from ..storage.objects import LocalObjects, OpenObject
from .reader import Reader

log = logging.getLogger(__name__)

FOLDER = "snapshots"
_NAME = re.compile(FOLDER + "/[0-9a-f]{32}")  # what is called otherwise is not ours
_PIECE = 256 << 10
_MESSAGES_BYTES = 1 << 20


def new_object_name() -> str:
    return f"{FOLDER}/{secrets.token_hex(16)}"


def remove_orphans(objects: LocalObjects, catalog: CatalogReader, machine: Machine) -> int:
    """At start: objects of snapshots that were never published, or were replaced just before the end; how many."""
    objects.prepare(FOLDER)
    known = catalog.snapshot_objects()
    known.update(s.snapshot.object for s in machine.streams.values() if s.snapshot and s.snapshot.object)
    orphans = [name for name, _ in objects.list(FOLDER) if name not in known and _NAME.fullmatch(name)]
    for name in orphans:
        objects.delete(name)
    return len(orphans)


async def snapshot_pieces(
    reader: Reader, objects: LocalObjects, stream: Stream, snapshot: Snapshot
) -> AsyncGenerator[bytes]:
    """The bytes of a stream's latest snapshot."""
    if snapshot.object is None:
        yield await reader.small_snapshot(stream, snapshot)
        return
    try:
        source = await asyncio.to_thread(objects.open, snapshot.object)
    except FileNotFoundError:
        raise _replaced() from None
    except OSError as error:
        raise _unreadable(stream, error) from None
    with source:
        for at in range(0, snapshot.size, _PIECE):
            yield await _read(source, stream, at, min(_PIECE, snapshot.size - at))


async def message_batches(reader: Reader, stream: Stream, start: int, end: int) -> AsyncGenerator[list[bytes]]:
    """All messages from one boundary to another, a moderate number of bytes at a time."""
    while start < end:
        cut = await reader.messages(stream, start, min(_MESSAGES_BYTES, end - start))
        yield cut.pieces
        start = cut.end


async def _read(source: OpenObject, stream: Stream, at: int, size: int) -> bytes:
    try:
        return await asyncio.to_thread(source.read, at, size)
    except OSError as error:
        raise _unreadable(stream, error) from None


def _unreadable(stream: Stream, error: OSError) -> Unavailable:
    log.error("The snapshot of stream %s cannot be read: %s", stream.key, error)
    return Unavailable("The snapshot cannot be read from disk now; the server's log has more.")


def _replaced() -> NotFound:
    return NotFound("A newer snapshot has just replaced this one.", code="no_such_snapshot")
