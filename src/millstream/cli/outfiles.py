"""Files and folders that are there as a whole or not at all: written beside their place, then moved into it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from millstream.cli.output import CommandError


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Replaces `path` when the block ends well; otherwise leaves what was there."""
    file = _beside(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(file.name, 0o666 & ~_umask())
        os.replace(file.name, path)
    except BaseException:
        Path(file.name).unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A new folder at `path`, there once the block ends well."""
    if path.exists():
        raise CommandError(f"{path} is there already; name a folder that is not")
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.absolute().parent))
    try:
        yield folder
        folder.chmod(0o777 & ~_umask())
        folder.rename(path)
    except BaseException:
        shutil.rmtree(folder)
        raise


def _beside(path: Path) -> IO[bytes]:
    if path.is_dir():
        raise CommandError(f"{path} is a folder; name a file")
    return tempfile.NamedTemporaryFile(prefix=f".{path.name}.", dir=path.absolute().parent, delete=False)


def _umask() -> int:
    """There is no way to read it but to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
