"""A disk that fails: short writes, ENOSPC, EIO, and a power cut after which only what was synced is sure.

`FaultyFiles` does every call but syncs on real files, and keeps beside them what the disk would hold if the power
went now:

- of a file, what it held at its last `sync`, and every change since, any sectors of which may have got there;
- of a folder, the names it had at its last `sync_directory`, and every change since, the first few of which may have.

    files = FaultyFiles(root)
    files.fail("sync", EIO, after=3)     # the third sync from now on fails, and all later ones
    files.slow_s = 0.5                   # every sync takes so long
    files.flip_bit = 8 * 100 + 3         # every read of byte 100 of a file finds its bit 3 flipped
    files.cut_power_after(20)            # the 20th change from now on never happens, nor does anything later
    files.materialise(target, seed)      # one of the disks that the cut could have left, in an empty folder

A call that makes, changes or syncs something counts as a change. Files that were not made through this port (SQLite's)
are taken over as they are: SQLite syncs its own.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from millstream.storage.files import Files

SECTOR = 512

Luck = Callable[[], bool]  # whether the next sector gets to the disk
Change = Callable[[bytearray, Luck], object]
Names = dict[str, "Inode | Folder"]


class QuickFiles(Files):
    """Real files without the wait: for tests in which the power stays on."""

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class PowerCut(OSError):
    """The machine is off; nothing that is tried now happens."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the power was cut")


class Inode:
    """What the disk surely has of one file, and what it may have."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.changes: list[Change] = []

    def materialised(self, rng: random.Random) -> bytes:
        """The durable bytes with none, all, or any part of what came later."""
        fate = rng.choice(("dropped", "kept", "torn"))
        content = bytearray(self.durable)
        for change in self.changes:
            if fate == "kept":
                change(content, lambda: True)
            elif fate == "torn" and rng.random() < 0.7:
                change(content, lambda: rng.random() < 0.5)
        return bytes(content)


class Folder:
    """The names that are surely in one directory, and the changes that may be."""

    def __init__(self) -> None:
        self.durable: Names = {}
        self.changes: list[Callable[[Names], object]] = []

    def now(self) -> Names:
        return self._after(len(self.changes))

    def materialised(self, rng: random.Random) -> Names:
        return self._after(rng.choice((0, rng.randint(0, len(self.changes)))))

    def add(self, name: str, what: Inode | Folder) -> None:
        self.changes.append(lambda names: names.update({name: what}))

    def remove(self, name: str) -> None:
        self.changes.append(lambda names: names.pop(name, None))

    def sync(self) -> None:
        self.durable, self.changes = self.now(), []

    def _after(self, count: int) -> Names:
        names = dict(self.durable)
        for change in self.changes[:count]:
            change(names)
        return names


class FaultyFiles(QuickFiles):
    """The real file system below `root`, with faults on demand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changes = 0  # how many were asked for so far
        self.log: list[str] = []  # their names, in order
        self.step_bytes: int | None = None  # writes arrive in pieces of this size
        self.slow_s = 0.0
        self.flip_bit: int | None = None
        self._cut_at: int | None = None
        self._faults: dict[str, tuple[int, int]] = {}  # call -> how many go well yet, errno
        self._inodes: dict[tuple[int, int], Inode] = {}
        self._folders: dict[Path, Folder] = {root: Folder()}
        self._adopt()

    # -- what goes wrong -------------------------------------------------------------------------------

    def fail(self, call: str, number: int, after: int = 1) -> None:
        """Let the `after`-th such call from now on and every later one fail with this errno."""
        self._faults[call] = (after - 1, number)

    def heal(self) -> None:
        self._faults.clear()

    def cut_power_after(self, changes: int) -> None:
        self._cut_at = self.changes + changes

    @property
    def is_off(self) -> bool:
        return self._cut_at is not None and self.changes >= self._cut_at

    def _change(self, call: str) -> None:
        """Note that a change is asked for, or refuse it."""
        if not self.is_off:
            self.changes += 1
        if self.is_off:
            raise PowerCut
        self.log.append(call)
        if call in self._faults:
            left, number = self._faults[call]
            self._faults[call] = (left - 1, number)
            if left <= 0:
                raise OSError(number, os.strerror(number))

    # -- the port --------------------------------------------------------------------------------------

    def create(self, path: Path) -> int:
        self._change("create")
        fd = super().create(path)
        inode = self._inodes[_key(os.fstat(fd))] = Inode()
        self._folder(path.parent).add(path.name, inode)
        return fd

    def allocate(self, fd: int, size: int) -> None:
        self._change("allocate")
        super().allocate(fd, size)
        self._note(fd, lambda content, _: content.extend(bytes(max(0, size - len(content)))))

    def truncate(self, fd: int, size: int) -> None:
        self._change("truncate")
        super().truncate(fd, size)
        self._note(fd, lambda content, _: resize(content, size))

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
        whole = bytes(data)
        step = self.step_bytes or max(len(whole), 1)
        for start in range(0, len(whole), step):
            self._write_piece(fd, whole[start : start + step], at + start)

    def _write_piece(self, fd: int, piece: bytes, at: int) -> None:
        was_off = self.is_off
        try:
            self._change("pwrite")
        except OSError:  # a write that fails has written something all the same
            piece = b"" if was_off else piece[: len(piece) // 2]
            raise
        finally:
            super().pwrite(fd, piece, at)
            self._note(fd, written_by_sector(piece, at))

    def pread(self, fd: int, size: int, at: int) -> bytes:
        data = bytearray(super().pread(fd, size, at))
        self._flip(data, at)
        return bytes(data)

    def pread_cached(self, fd: int, buffer: memoryview, at: int) -> bool:
        is_read = super().pread_cached(fd, buffer, at)
        self._flip(buffer, at)
        return is_read

    def _flip(self, data: bytearray | memoryview, at: int) -> None:
        if self.flip_bit is not None and at <= self.flip_bit // 8 < at + len(data):
            data[self.flip_bit // 8 - at] ^= 1 << (self.flip_bit % 8)

    def sync(self, fd: int) -> None:
        self._change("sync")
        time.sleep(self.slow_s)
        inode = self._inode(fd)
        inode.durable, inode.changes = self.pread(fd, self.size(fd), 0), []

    def sync_directory(self, path: Path) -> None:
        self._change("sync_directory")
        self._folder(path).sync()

    def link(self, source: Path, target: Path) -> None:
        self._change("link")
        super().link(source, target)
        self._folder(target.parent).add(target.name, self._folder(source.parent).now()[source.name])

    def unlink(self, path: Path) -> None:
        self._change("unlink")
        stat = path.stat()
        super().unlink(path)
        self._folder(path.parent).remove(path.name)
        if stat.st_nlink == 1:
            self._inodes.pop(_key(stat), None)  # its number may be given to another file

    def make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self.make_directory(path.parent)
        self._change("make_directory")
        path.mkdir()
        folder = self._folders[path] = Folder()
        self._folder(path.parent).add(path.name, folder)

    # -- what the disk would hold ------------------------------------------------------------------------

    def materialise(self, target: Path, seed: int | str) -> None:
        """Write one of the disks that a power cut at this moment could leave."""
        self._place(self._folders[self.root], target, random.Random(seed), {})
        known = self._inodes.keys()
        for path in self.root.rglob("*"):
            copy = target / path.relative_to(self.root)
            if path.is_file() and _key(path.stat()) not in known and copy.parent.is_dir():
                copy.write_bytes(path.read_bytes())

    def _place(self, folder: Folder, target: Path, rng: random.Random, contents: dict[int, bytes]) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for name, what in sorted(folder.materialised(rng).items()):
            if isinstance(what, Folder):
                self._place(what, target / name, rng, contents)
                continue
            if id(what) not in contents:
                contents[id(what)] = what.materialised(rng)
            (target / name).write_bytes(contents[id(what)])

    def _adopt(self) -> None:
        """What is there already is durable."""
        for path in sorted(self.root.rglob("*")):
            if path.is_dir():
                self._folder(path)
            elif not path.name.startswith(("catalog.db", "lock")):
                inode = self._inodes[_key(path.stat())] = Inode(path.read_bytes())
                self._folder(path.parent).durable[path.name] = inode

    def _folder(self, path: Path) -> Folder:
        """What is known of a directory; one made behind our back counts as durable."""
        if path not in self._folders:
            folder = self._folders[path] = Folder()
            self._folder(path.parent).durable[path.name] = folder
        return self._folders[path]

    def _inode(self, fd: int) -> Inode:
        return self._inodes[_key(os.fstat(fd))]

    def _note(self, fd: int, change: Change) -> None:
        self._inode(fd).changes.append(change)


class ForgetfulFiles(FaultyFiles):
    """A planted bug: one kind of sync says that it was done, and was not."""

    def __init__(self, root: Path, forgets: str) -> None:
        super().__init__(root)
        self._forgets = forgets

    def sync(self, fd: int) -> None:
        if self._forgets == "sync":
            self._change("sync")
        else:
            super().sync(fd)

    def sync_directory(self, path: Path) -> None:
        if self._forgets == "sync_directory":
            self._change("sync_directory")
        else:
            super().sync_directory(path)


def written_by_sector(data: bytes, at: int) -> Change:
    """A write whose sectors get to the disk one by one, or not."""

    def change(content: bytearray, luck: Luck) -> None:
        place, end = at, at + len(data)
        while place < end:
            following = min((place // SECTOR + 1) * SECTOR, end)
            if luck():
                content.extend(bytes(max(0, following - len(content))))
                content[place:following] = data[place - at : following - at]
            place = following

    return change


def resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _key(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino
