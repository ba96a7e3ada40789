"""The data directory: its layout, its lock and its format stamp."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import msgspec

from ..model.errors import DirectoryInUse, UnknownFormat
from .files import Files

FORMAT = 1
_LOCK_PATIENCE_S = 2.0  # a killed server's helper may need a moment to notice and let go


class _Stamp(msgspec.Struct):
    format: int
    software: str = "millstream"


class DataDir:
    """Paths inside the data directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.journal = root / "journal"
        self.catalog = root / "catalog.db"
        self.objects = root / "objects"
        self.stamp = root / "format.json"
        self.lock = root / "lock"

    def prepare(self, files: Files) -> None:
        """Make what is missing; refuse a directory of another format. The caller holds the lock."""
        for path in (self.journal, self.objects):
            files.make_directory(path)
        if self.stamp.exists():
            check_stamp(self.stamp.read_bytes())
            return
        temporary = self.root / ".tmp-format"
        temporary.unlink(missing_ok=True)
        fd = files.create(temporary)
        files.pwrite(fd, msgspec.json.encode(_Stamp(FORMAT)) + b"\n", 0)
        files.sync(fd)
        files.close(fd)
        files.link(temporary, self.stamp)
        files.unlink(temporary)
        files.sync_directory(self.root)


def check_stamp(data: bytes) -> None:
    try:
        found = msgspec.json.decode(data, type=_Stamp).format
    except msgspec.DecodeError:
        raise UnknownFormat("The data directory's format.json cannot be read; restore it from a backup.") from None
    if found != FORMAT:
        raise UnknownFormat(
            f"The data directory has format {found}; this version of millstream reads format {FORMAT}. "
            "Use the version that wrote it, or export and load the data."
        )


def lock_directory(data_dir: DataDir, patience_s: float = _LOCK_PATIENCE_S) -> int:
    """Take the directory for this process; the descriptor holds the lock until it and its heirs are closed."""
    Files().make_directory(data_dir.root)
    fd = os.open(data_dir.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    give_up = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() >= give_up:
                os.close(fd)
                raise DirectoryInUse(
                    f"Another process uses the data directory {data_dir.root}. Stop it, or choose another --data-dir."
                ) from None
            time.sleep(0.05)
