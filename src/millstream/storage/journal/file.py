"""The journal that is written to: group commits into allocated files, rotated by size."""

from __future__ import annotations

import contextlib
import errno
import secrets
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from ...model.errors import CorruptData
from ..files import Files
from ..kernel_sync import KernelSync
from ..ports import Batch
from .reading import JournalReader
from .record import FRAME_BYTES, HEADER_BYTES, FileHeader, frame_header
from .recovery import SUFFIX, JournalScan, list_files, scan_journal

_TEMPORARY = ".tmp-"
_ROLL_DESCRIPTORS = 2  # that of the new file, and that of the folder while it is synced
_TRIES, _PAUSE_S = 1000, 0.01
_T = TypeVar("_T")


class LocalJournal:
    """One shard's log in a directory. See `ports.Journal`."""

    def __init__(self, directory: Path, files: Files, *, file_bytes: int, shard: int = 0) -> None:
        self._directory = directory
        self._files = files
        self._file_bytes = file_bytes
        self._shard = shard
        self._fd = -1
        self._at = 0
        self._allocated = 0
        self._salt = 0
        self._spares: list[int] = []  # descriptors for the next roll, which connections can then not take
        self.incarnation = 0
        self.last_sequence = 0
        self.torn_bytes = 0  # what opening had to cut

    def open(self, now_ms: int, scan: JournalScan | None = None) -> JournalScan:
        """Check everything there is, unless that was just done, cut a torn tail, and get ready to write."""
        self._files.make_directory(self._directory)
        scan = scan or scan_journal(self._directory, self._files)
        if scan.damage is not None:
            raise CorruptData(
                f"The journal is damaged: {scan.damage.path.name} at byte {scan.damage.at}: {scan.damage.reason}. "
                "Nothing was changed. Run 'millstream doctor' for what can be done."
            )
        self._clear_temporary()
        self.last_sequence = scan.last_sequence
        self.torn_bytes = scan.torn_bytes
        if scan.files:
            self._continue(scan)
        else:
            self.incarnation = new_incarnation()
            self._start_file(now_ms, HEADER_BYTES)
        return scan

    def fits(self, size: int) -> bool:
        """Whether a batch of this size can be written without a new file."""
        return self._at + FRAME_BYTES + size <= self._allocated

    def write(self, first_sequence: int, at_ms: int, facts: bytes | bytearray) -> None:
        assert first_sequence == self.last_sequence + 1, (first_sequence, self.last_sequence)
        if not self.fits(len(facts)):
            self._make_room(at_ms, HEADER_BYTES + FRAME_BYTES + len(facts))
        header = frame_header(self._salt, first_sequence, at_ms, facts)
        if len(facts) < 65536:
            self._files.pwrite(self._fd, header + facts, self._at)
        else:
            self._files.write_all(self._fd, (header, facts), self._at)
        self._at += len(header) + len(facts)
        self.last_sequence = first_sequence + int.from_bytes(facts[1:5], "big") - 1

    def sync(self) -> None:
        self._files.sync(self._fd)

    def begin_sync(self, kernel: KernelSync) -> bool:
        """Let the kernel sync what is written; False where it does not take it."""
        return kernel.submit(self._fd)

    def kernel_syncs(self) -> list[KernelSync]:
        return self._files.kernel_syncs()

    def batches(self, after: int) -> Iterator[Batch]:
        return JournalReader(self._directory, self._files).batches(after)

    def trim(self, through: int) -> None:
        trim_files(self._directory, self._files, through)

    def close(self) -> None:
        self._give_spares()
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    def _take_spares(self, path: Path) -> None:
        with contextlib.suppress(OSError):  # without them a roll has to be patient
            while len(self._spares) < _ROLL_DESCRIPTORS:
                self._spares.append(self._files.open_read(path))

    def _give_spares(self) -> None:
        while self._spares:
            self._files.close(self._spares.pop())

    def _clear_temporary(self) -> None:
        """What a crash inside `start_file` left."""
        for name in self._files.list_directory(self._directory):
            if name.startswith(_TEMPORARY):
                self._files.unlink(self._directory / name)

    def _continue(self, scan: JournalScan) -> None:
        path, header = scan.files[-1]
        self.incarnation, self._salt = header.incarnation, header.salt
        self._fd = self._files.open_write(path)
        self._at, self._allocated = scan.end, max(self._files.size(self._fd), HEADER_BYTES)
        # A killed process may have left a batch in the page cache that no sync has seen. Whoever reads it here shows it
        # to others, so it must be durable first.
        self._files.sync(self._fd)
        self._files.sync_directory(self._directory)
        if scan.torn_bytes:
            # Cut and allocate anew, so that nothing of the torn batch can ever be read again.
            self._files.truncate(self._fd, scan.end)
            self._files.allocate(self._fd, self._allocated)
            self._files.sync(self._fd)
        self._take_spares(path)

    def _make_room(self, now_ms: int, needed: int) -> None:
        if self._at > HEADER_BYTES:
            self._start_file(now_ms, needed)
            return
        # The file is still empty, and another of the same first sequence cannot be: let this one grow.
        self._allocated = needed
        self._files.allocate(self._fd, needed)
        self._files.sync(self._fd)

    def _start_file(self, now_ms: int, needed: int) -> None:
        header = FileHeader(self._shard, self.incarnation, secrets.randbits(63), self.last_sequence + 1, now_ms)
        self._give_spares()
        fd, allocated = start_file(self._directory, self._files, header, max(self._file_bytes, needed))
        self.close()
        self._fd, self._at, self._salt, self._allocated = fd, HEADER_BYTES, header.salt, allocated
        self._take_spares(_path_of(self._directory, header))


def new_incarnation() -> int:
    return secrets.randbits(63)


def start_file(directory: Path, files: Files, header: FileHeader, size: int) -> tuple[int, int]:
    """A new journal file, open, and how much of it is allocated.

    It gets its name only when its header and space are on disk, and is used only when its name is: otherwise a
    crash could lose what was acknowledged after the roll.
    """
    path = _path_of(directory, header)
    temporary = directory / f"{_TEMPORARY}{header.first_sequence:020d}"
    allocated = max(size, HEADER_BYTES)
    fd = _patiently(files.create, temporary)
    try:
        files.allocate(fd, allocated)
        files.pwrite(fd, header.encode(), 0)
        files.sync(fd)
        files.link(temporary, path)
        files.unlink(temporary)
        _patiently(files.sync_directory, directory)
    except BaseException:
        files.close(fd)
        raise
    return fd, allocated


def _path_of(directory: Path, header: FileHeader) -> Path:
    return directory / f"{header.first_sequence:020d}{SUFFIX}"


def _patiently(call: Callable[[Path], _T], path: Path) -> _T:
    """Without a descriptor nothing has happened yet, and others give theirs back: that is no failure of the disk."""
    for _ in range(_TRIES):
        try:
            return call(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        time.sleep(_PAUSE_S)
    return call(path)


def trim_files(directory: Path, files: Files, through: int) -> int:
    """Remove the files that hold nothing after `through`; the last one always stays. Returns how many went."""
    found = list_files(directory, files)
    useless = [file for file, following in pairwise(found) if following.header.first_sequence <= through + 1]
    for file in useless:
        files.unlink(file.path)
    if useless:
        files.sync_directory(directory)
    return len(useless)
