"""A disk in memory: what a process sees of it, and what a power cut would leave of it.

It is the file port of the journal and of the object store, so the shipped ones run on it as they are. What is durable
is told by the same `Inode` and `Folder` as in `tests.storage.faulty_files`, which run on real files; here a run takes
milliseconds.
"""

from __future__ import annotations

import errno
import os
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from tests.storage.faulty_files import Folder, Inode, PowerCut, resize, written_by_sector

from millstream.storage.files import Files
from millstream.storage.kernel_sync import KernelSync


class SimulatedFile(Inode):
    """What is durable, what may be, and what a process reads."""

    def __init__(self, content: bytes = b"") -> None:
        super().__init__(content)
        self.content = bytearray(content)


class SimulatedDisk(Files):
    """Files in folders that are all there. `kernel_syncs_for` offers the kernel's own workers, if any."""

    def __init__(self, kernel_syncs_for: Callable[[SimulatedDisk], list[KernelSync]] = lambda _: []) -> None:
        self.changes = 0
        self._folders: defaultdict[str, Folder] = defaultdict(Folder)  # by name
        self._open: dict[int, SimulatedFile] = {}
        self._next_fd = 3
        self._kernel_syncs_for = kernel_syncs_for
        self._cut_at: int | None = None
        self._fault: tuple[str, int, int] | None = None  # call, how many go well yet, errno

    # -- what goes wrong -------------------------------------------------------------------------------

    def cut_power_after(self, changes: int) -> None:
        self._cut_at = self.changes + changes

    def fail_once(self, call: str, after: int, number: int) -> None:
        self._fault = (call, after, number)

    @property
    def is_off(self) -> bool:
        return self._cut_at is not None and self.changes >= self._cut_at

    def _change(self, call: str) -> None:
        if not self.is_off:
            self.changes += 1
        if self.is_off:
            raise PowerCut
        if self._fault is not None and self._fault[0] == call:
            _, left, number = self._fault
            self._fault = (call, left - 1, number) if left > 0 else None
            if left == 0:
                raise OSError(number, os.strerror(number))

    def after_a_kill(self) -> SimulatedDisk:
        """The process is gone, the machine runs on: everything written is there, synced or not."""
        self._open.clear()
        self._cut_at = self._fault = None
        return self

    def after_a_power_cut(self, rng: random.Random) -> SimulatedDisk:
        """One of the disks that may be found when the power comes back."""
        after = type(self)(self._kernel_syncs_for)
        for directory, folder in sorted(self._folders.items()):
            for name, inode in sorted(folder.materialised(rng).items()):
                assert isinstance(inode, Inode)
                after._folders[directory].durable[name] = SimulatedFile(inode.materialised(rng))
        return after

    # -- the port --------------------------------------------------------------------------------------

    def open_read(self, path: Path) -> int:
        return self._opened(self._file(path))

    def open_write(self, path: Path) -> int:
        return self._opened(self._file(path))

    def create(self, path: Path) -> int:
        self._change("create")
        folder = self._folders[path.parts[-2]]
        if path.name in folder.now():
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        file = SimulatedFile()
        folder.add(path.name, file)
        return self._opened(file)

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)  # a file that a killed process had open is closed already

    def allocate(self, fd: int, size: int) -> None:
        self._change("allocate")
        self._resize(self._open[fd], max(size, len(self._open[fd].content)))

    def truncate(self, fd: int, size: int) -> None:
        self._change("truncate")
        self._resize(self._open[fd], size)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        file, piece, was_off = self._open[fd], bytes(data), self.is_off
        try:
            self._change("pwrite")
        except OSError:  # a write that fails has written something all the same
            piece = b"" if was_off else piece[: len(piece) // 2]
            raise
        finally:
            change = written_by_sector(piece, at)
            change(file.content, _always)
            file.changes.append(change)

    def pread(self, fd: int, size: int, at: int) -> bytes:
        return bytes(self._open[fd].content[at : at + size])

    def sync(self, fd: int) -> None:
        self._change("sync")
        file = self._open[fd]
        file.durable, file.changes = bytes(file.content), []

    def kernel_syncs(self) -> list[KernelSync]:
        return self._kernel_syncs_for(self)

    def sync_directory(self, path: Path) -> None:
        self._change("sync_directory")
        self._folders[path.name].sync()

    def written_ranges(self, fd: int) -> list[tuple[int, int]]:
        return [(0, self.size(fd))]

    def size(self, fd: int) -> int:
        return len(self._open[fd].content)

    def size_at(self, path: Path) -> int:
        return len(self._file(path).content)

    def link(self, source: Path, target: Path) -> None:
        self._change("link")
        self._folders[target.parts[-2]].add(target.name, self._file(source))

    def unlink(self, path: Path) -> None:
        self._file(path)
        self._change("unlink")
        self._folders[path.parts[-2]].remove(path.name)

    def make_directory(self, path: Path) -> None:
        """It is there."""

    def list_directory(self, path: Path) -> list[str]:
        return sorted(self._folders[path.name].now())

    def free_bytes(self, path: Path) -> int:
        return 1 << 40

    def read(self, path: Path) -> bytes:
        """A whole file, as a process would see it."""
        return bytes(self._file(path).content)

    def replace(self, path: Path, content: bytes) -> None:
        """Put other bytes in a file's place, durable: what a torn write or a bad sector left."""
        folder = self._folders[path.parts[-2]]
        folder.durable = {**folder.now(), path.name: SimulatedFile(content)}
        folder.changes = []

    def _file(self, path: Path) -> SimulatedFile:
        file = self._folders[path.parts[-2]].now().get(path.name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", str(path))
        assert isinstance(file, SimulatedFile)
        return file

    def _opened(self, file: SimulatedFile) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = file
        return self._next_fd

    def _resize(self, file: SimulatedFile, size: int) -> None:
        resize(file.content, size)
        file.changes.append(lambda content, _: resize(content, size))


class NeverSyncs(SimulatedDisk):
    """A planted bug: the sync of a file says that it was done, and was not."""

    def sync(self, fd: int) -> None:
        self._change("sync")


class NeverSyncsNames(SimulatedDisk):
    """A planted bug: the same of a directory."""

    def sync_directory(self, path: Path) -> None:
        self._change("sync_directory")


class NeverSyncsObjects(SimulatedDisk):
    """A planted bug: what a transaction's facts point to is not synced before they are."""

    def sync(self, fd: int) -> None:
        if self._open[fd] in self._folders["journal"].now().values():
            super().sync(fd)


class TrustsWhatItFinds(SimulatedDisk):
    """A planted bug: what a killed process left in the page cache is not synced before it is shown."""

    _found: int | None = None

    def open_write(self, path: Path) -> int:
        self._found = super().open_write(path)
        return self._found

    def sync(self, fd: int) -> None:
        if fd == self._found:
            self._found = None
        else:
            super().sync(fd)


def _always() -> bool:
    return True
