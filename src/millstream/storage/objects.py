"""The local object store: plain files that are complete and synced before they have a name."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..model.errors import CorruptData
from .buffers import BufferPool
from .files import Files
from .ports import Piece

log = logging.getLogger(__name__)

_OPEN_FILES_MAX = 256
_WRITE_BYTES = 1 << 20
_TEMPORARY = ".tmp-"


class LocalObjects:
    """An `ObjectStore` in a directory: temporary file, fdatasync, link, directory fsync."""

    def __init__(self, root: Path, files: Files) -> None:
        self._root = root
        self._files = files
        self._buffers = BufferPool()
        self._open: OrderedDict[str, int] = OrderedDict()  # most recently used last
        self._strangers: set[str] = set()
        self._open_max = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 16, _OPEN_FILES_MAX)

    def prepare(self, folder: str) -> None:
        """Make a folder, and clear what a crash left half-written in it."""
        path = self._root / folder
        self._files.make_directory(path)
        for name in self._files.list_directory(path):
            if name.startswith(_TEMPORARY):
                self._files.unlink(path / name)
        self._files.sync_directory(self._root)

    def put(self, name: str, pieces: Iterable[Piece]) -> int:
        writer = self.begin(name)
        try:
            for piece in pieces:
                writer.write(piece)
            writer.finish()
        finally:
            writer.abort()
        return writer.size

    def begin(self, name: str) -> ObjectWriter:
        """Store an object piece by piece."""
        return ObjectWriter(self._root / name, self._files)

    def get_range(self, name: str, at: int, size: int) -> bytes:
        """Safe in any thread: it shares no descriptor with anybody."""
        fd = self._files.open_read(self._root / name)
        try:
            data = self._files.pread(fd, size, at)
        finally:
            self._files.close(fd)
        if len(data) != size:
            raise CorruptData(f"Object {name} ends at {at + len(data)}, {at + size} was expected.")
        return data

    def get_range_into(self, buffers: BufferPool, name: str, at: int, size: int) -> bytes | memoryview:
        """`get_range`, into one of the caller's buffers if the range is in the page cache. Safe in any thread, as long
        as no other one uses these buffers at the same time."""
        buffer = buffers.take(size)
        fd = self._files.open_read(self._root / name)
        try:
            is_read = self._files.pread_cached(fd, buffer, at)
        finally:
            self._files.close(fd)
        return buffer if is_read else self.get_range(name, at, size)

    def get_range_cached(self, name: str, at: int, size: int) -> memoryview | None:
        """The range if it can be had without waiting for the disk. For one thread only.

        Its buffer is used again once nobody holds the view or a part of it."""
        buffer = self._buffers.take(size)
        return buffer if self._files.pread_cached(self._descriptor(name), buffer, at) else None

    def get_range_open(self, name: str, at: int, size: int) -> bytes:
        """The range through a descriptor that stays open. For one thread only."""
        data = self._files.pread(self._descriptor(name), size, at)
        if len(data) != size:
            raise CorruptData(f"Object {name} ends at {at + len(data)}, {at + size} was expected.")
        return data

    def open(self, name: str) -> OpenObject:
        """Read an object piece by piece; it stays readable even if it is deleted meanwhile."""
        return OpenObject(self._files, self._files.open_read(self._root / name))

    def size(self, name: str) -> int:
        fd = self._files.open_read(self._root / name)
        try:
            return self._files.size(fd)
        finally:
            self._files.close(fd)

    def forget(self, name: str) -> None:
        """Close what is open of an object, so that a deleted one frees its space."""
        fd = self._open.pop(name, None)
        if fd is not None:
            self._files.close(fd)

    def delete(self, name: str) -> None:
        self.forget(name)
        try:
            self._files.unlink(self._root / name)
        except FileNotFoundError:
            return
        self._files.sync_directory((self._root / name).parent)

    def remove(self, names: Iterable[str]) -> None:
        """Remove many objects of one folder that are not open; absent ones are fine. Safe in any thread."""
        folder: Path | None = None
        for name in names:
            folder = (self._root / name).parent
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(self._root / name)
        if folder is not None:
            self._files.sync_directory(folder)

    def list(self, prefix: str) -> list[tuple[str, int]]:
        folder = self._root / prefix
        names = [name for name in self._files.list_directory(folder) if not name.startswith(_TEMPORARY)]
        # A folder is no object, whatever its name: if one should be there, it is missing.
        return [
            (f"{prefix}/{n}", self._files.size_at(folder / n)) for n in names if not self._files.is_folder(folder / n)
        ]

    def numbers(self, prefix: str, name_of: Callable[[int], str]) -> set[int]:
        """The numbers of the objects in a folder. What has another name is not ours, and left alone."""
        found = set()
        for name, _ in self.list(prefix):
            digits = name.rpartition("/")[2]
            if digits.isascii() and digits.isdigit() and name == name_of(int(digits)):
                found.add(int(digits))
            elif name not in self._strangers:
                self._strangers.add(name)
                log.warning("There is no object of the name %s. The file is left alone; better move it away.", name)
        return found

    def free_bytes(self) -> int:
        """Space that is left where the objects are."""
        return self._files.free_bytes(self._root)

    def close(self) -> None:
        while self._open:
            self._files.close(self._open.popitem()[1])

    def _descriptor(self, name: str) -> int:
        fd = self._open.get(name)
        if fd is not None:
            self._open.move_to_end(name)
            return fd
        fd = self._open[name] = self._files.open_read(self._root / name)
        if len(self._open) > self._open_max:
            self._files.close(self._open.popitem(last=False)[1])
        return fd


class OpenObject:
    """An object that is being read. One reader at a time, in any thread."""

    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self._fd = fd

    def read(self, at: int, size: int) -> bytes:
        data = self._files.pread(self._fd, size, at)
        if len(data) != size:
            raise CorruptData(f"An object ends at {at + len(data)}, {at + size} was expected.")
        return data

    def __enter__(self) -> OpenObject:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close(self._fd)


class ObjectWriter:
    """An object that is being written; it has no name before `finish`. Not for two threads at a time."""

    def __init__(self, target: Path, files: Files) -> None:
        self.size = 0
        self._files = files
        self._target = target
        self._temporary = target.parent / f"{_TEMPORARY}{target.name}-{os.getpid()}"
        self._fd: int | None = files.create(self._temporary)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert self._fd is not None
        self._files.pwrite(self._fd, data, self.size)
        self.size += len(data)

    def sync(self) -> None:
        """Bring what was written so far to the disk, so that `finish` need not wait for all of it."""
        assert self._fd is not None
        self._files.sync(self._fd)

    def content(self) -> bytes:
        """What was written so far."""
        assert self._fd is not None
        return self._files.pread(self._fd, self.size, 0)

    def finish(self) -> None:
        """Make the object durable, and only then give it its name; refuses a taken one."""
        self.sync()
        self._files.link(self._temporary, self._target)
        self.abort()
        self._files.sync_directory(self._target.parent)

    def abort(self) -> None:
        """Let go of the temporary file; after `finish` there is none."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._files.close(fd)
            self._files.unlink(self._temporary)


def gathered(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """For `put`: small pieces joined into writes of about a megabyte; large ones are not copied."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        if not batch and len(piece) >= _WRITE_BYTES:
            yield piece
            continue
        batch.append(piece)
        size += len(piece)
        if size >= _WRITE_BYTES:
            yield b"".join(batch)
            batch, size = [], 0
    yield b"".join(batch)
