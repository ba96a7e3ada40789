"""Looking through journal files: at start, and for the doctor.

What a crash can leave is a *torn tail*: the one batch that was not synced yet, in the last file, with nothing
valid behind it. It is cut; nobody was told that it happened. Anything else that does not read, a bad frame with
good ones behind it or a gap in the sequence, was acknowledged once: the start stops with a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...model.errors import CorruptData
from ..files import Files
from .record import FRAME_MAGIC, HEADER_BYTES, FileHeader, Frame, read_frame

SUFFIX = ".log"


class JournalFile(NamedTuple):
    path: Path
    header: FileHeader


class Damage(NamedTuple):
    """A journal file whose frames stop at `at` although more must have followed; at 0 if it does not follow at all."""

    path: Path
    at: int
    reason: str


class JournalScan(NamedTuple):
    """What a walk over the whole journal found."""

    files: list[JournalFile]
    last_sequence: int
    end: int  # where the next frame goes in the last file
    torn_bytes: int  # behind `end`, to be cut
    damage: Damage | None


def list_files(directory: Path, files: Files) -> list[JournalFile]:
    """The journal's files in order, with their headers."""
    found = []
    for name in files.list_directory(directory):
        if name.endswith(SUFFIX):
            path = directory / name
            found.append(JournalFile(path, _read_header(path, files)))
    return sorted(found, key=lambda file: file.header.first_sequence)


def scan_journal(directory: Path, files: Files) -> JournalScan:
    """Check every frame of every file; decodes nothing."""
    found = list_files(directory, files)
    last, end, torn = (found[0].header.first_sequence - 1 if found else 0), HEADER_BYTES, 0
    for index, file in enumerate(found):
        is_last = index == len(found) - 1
        if file.header[:2] != found[0].header[:2]:
            return JournalScan(found, last, end, 0, Damage(file.path, 0, "the file belongs to another log"))
        if file.header.first_sequence != last + 1:
            reason = f"sequence {last + 1} is missing: the file starts with {file.header.first_sequence}"
            return JournalScan(found, last, end, 0, Damage(file.path, 0, reason))
        data = memoryview(_read_whole(file.path, files))
        end = HEADER_BYTES
        for frame in _frames(data, file.header, last + 1):
            last, end = last_of(frame), frame.end
        torn = len(bytes(data[end:]).rstrip(b"\0"))
        if not torn:
            continue
        if not is_last or _valid_frame_behind(data, end + 1, file.header.salt, last):
            return JournalScan(found, last, end, 0, Damage(file.path, end, "a damaged frame has good ones behind it"))
    return JournalScan(found, last, end, torn, None)


def _frames(data: memoryview, header: FileHeader, expected: int) -> Iterator[Frame]:
    at = HEADER_BYTES
    while (frame := read_frame(data, at, header.salt)) is not None and frame.first_sequence == expected:
        expected = last_of(frame) + 1
        at = frame.end
        yield frame


def last_of(frame: Frame) -> int:
    """The last sequence that a frame holds."""
    return frame.first_sequence + int.from_bytes(frame.body[1:5], "big") - 1


def _valid_frame_behind(data: memoryview, at: int, salt: int, last: int) -> bool:
    haystack = data.obj
    assert isinstance(haystack, bytes)
    while (at := haystack.find(FRAME_MAGIC, at)) >= 0:
        frame = read_frame(data, at, salt)
        if frame is not None and frame.first_sequence > last:
            return True
        at += 1
    return False


def _read_header(path: Path, files: Files) -> FileHeader:
    fd = files.open_read(path)
    try:
        return FileHeader.decode(files.pread(fd, HEADER_BYTES, 0))
    except CorruptData as error:
        raise CorruptData(f"{path.name}: {error.message}") from None
    finally:
        files.close(fd)


def _read_whole(path: Path, files: Files) -> bytes:
    fd = files.open_read(path)
    try:
        return files.pread(fd, files.size(fd), 0)
    finally:
        files.close(fd)
