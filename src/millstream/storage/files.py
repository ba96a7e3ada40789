"""The file port: every file call of the journal and of the object store goes through here.

Tests put a layer in its place that fails, tears writes, or forgets what was not synced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from .kernel_sync import KernelSync, open_kernel_syncs


class Files:
    """The real file system."""

    def open_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def create(self, path: Path) -> int:
        """A new file for reading and writing; refuses to take an existing one."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def open_write(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def allocate(self, fd: int, size: int) -> None:
        """Reserve space now, so that a full disk shows before anything is acknowledged."""
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            os.ftruncate(fd, size)  # a file system without fallocate: the low-space watermark has to do

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        """Write all of it, however the kernel cuts it."""
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, at)
            view = view[written:]
            at += written

    def write_all(self, fd: int, pieces: Iterable[bytes | bytearray | memoryview], at: int) -> int:
        """Write the pieces one after the other; returns where they end."""
        for piece in pieces:
            self.pwrite(fd, piece, at)
            at += len(piece)
        return at

    def pread(self, fd: int, size: int, at: int) -> bytes:
        """Read exactly `size` bytes, fewer only at the end of the file."""
        data = os.pread(fd, size, at)
        if len(data) == size or not data:
            return data
        pieces = [data]
        missing = size - len(data)
        while missing:
            more = os.pread(fd, missing, at + size - missing)
            if not more:
                break
            pieces.append(more)
            missing -= len(more)
        return b"".join(pieces)

    def written_ranges(self, fd: int) -> list[tuple[int, int]]:
        """Where all bytes lie that were ever written; what is only allocated reads as zeros. To be asked for before
        anything is read: zeros in the page cache count as written."""
        ranges: list[tuple[int, int]] = []
        size = self.size(fd)
        try:
            while not ranges or ranges[-1][1] < size:
                start = os.lseek(fd, ranges[-1][1] if ranges else 0, os.SEEK_DATA)
                ranges.append((start, os.lseek(fd, start, os.SEEK_HOLE)))
        except OSError as error:
            if error.errno == errno.EINVAL:
                return [(0, size)]  # a file system that does not know
            if error.errno != errno.ENXIO:  # nothing is behind
                raise
        return ranges

    def pread_cached(self, fd: int, buffer: memoryview, at: int) -> bool:
        """Fill the buffer if its bytes are in the page cache; False where that would wait for the disk."""
        try:
            return os.preadv(fd, [buffer], at, os.RWF_NOWAIT) == len(buffer)
        except OSError:  # not cached, or not offered by the file system; `pread` will tell which
            return False

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def kernel_syncs(self) -> list[KernelSync]:
        """The ways to sync without a thread; a layer that interferes with `sync` has none."""
        return open_kernel_syncs() if type(self) is Files else []

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def size_at(self, path: Path) -> int:
        return path.stat().st_size

    def link(self, source: Path, target: Path) -> None:
        """Give a finished file its name; fails if the name is taken."""
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def make_directory(self, path: Path) -> None:
        """Make a folder, and those it lies in, and let none of their names be lost."""
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            self.sync_directory(folder.parent)

    def list_directory(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def free_bytes(self, path: Path) -> int:
        stats = os.statvfs(path)
        return stats.f_bavail * stats.f_frsize
