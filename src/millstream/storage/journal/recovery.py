"""Looking through journal files: at start, and for the doctor.

What a crash can leave is a *torn tail*: the one batch that was not synced yet, in the last file, with nothing
valid behind it. It is cut; nobody was told that it happened. Anything else that does not read, a bad frame with
good ones behind it or a gap in the sequence, was acknowledged once: the start stops with a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ...model.errors import CorruptData
from ..files import Files
from .record import FRAME_BYTES, FRAME_MAGIC, HEADER_BYTES, FileHeader, Frame, frame_bytes, read_frame

SUFFIX = ".log"
WINDOW_BYTES = 1 << 20
_ZEROS = bytes(WINDOW_BYTES)


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
        end = HEADER_BYTES
        with _opened(file.path, files) as fd:
            written = files.written_ranges(fd)
            for frame in frames_in(files, fd, file.header.salt, end, last + 1):
                last, end = last_of(frame), frame.end
            stop = _end_of_bytes(files, fd, written, end)
            torn = stop - end
            if torn and (not is_last or _valid_frame_behind(files, fd, range(end + 1, stop), file.header.salt, last)):
                damage = Damage(file.path, end, "a damaged frame has good ones behind it")
                return JournalScan(found, last, end, 0, damage)
    return JournalScan(found, last, end, torn, None)


def frames_in(
    files: Files, fd: int, salt: int, at: int, expected: int, window_bytes: int = WINDOW_BYTES
) -> Iterator[Frame]:
    """The frames of an open file from a place on, a window at a time, up to the first that is not as expected."""
    window, start = memoryview(b""), at
    while True:
        frame = read_frame(window, at - start, salt)
        if frame is None:
            # The end, or the end of the window: that is known once the window begins with it and is large enough.
            wanted = max(window_bytes, frame_bytes(window, at - start, salt))
            if start == at and len(window) >= wanted:
                return
            data = files.pread(fd, wanted, at)
            if start == at and len(data) == len(window):
                return  # the end of the file
            window, start = memoryview(data), at
        elif frame.first_sequence != expected:
            return
        else:
            at = start + frame.end
            expected = last_of(frame) + 1
            yield Frame(frame.first_sequence, frame.at_ms, frame.body, at)


def _end_of_bytes(files: Files, fd: int, written: list[tuple[int, int]], end: int) -> int:
    """Behind the last byte other than zero, or `end` if that is where nothing follows. Files are allocated before they
    are written: what never was is not read."""
    for first, stop in reversed(written):
        while stop > max(first, end):
            at = max(first, end, stop - WINDOW_BYTES)
            data = files.pread(fd, stop - at, at)
            if data != _ZEROS[: len(data)]:
                return at + len(data.rstrip(b"\0"))
            stop = at
    return end


def last_of(frame: Frame) -> int:
    """The last sequence that a frame holds."""
    return frame.first_sequence + int.from_bytes(frame.body[1:5], "big") - 1


def _valid_frame_behind(files: Files, fd: int, places: range, salt: int, last: int) -> bool:
    """Whether a frame begins at one of these places that comes after what was read."""
    for start in places[::WINDOW_BYTES]:
        haystack = files.pread(fd, WINDOW_BYTES + FRAME_BYTES, start)
        at = haystack.find(FRAME_MAGIC)
        while 0 <= at < WINDOW_BYTES:
            size = frame_bytes(memoryview(haystack), at, salt)
            frame = read_frame(memoryview(files.pread(fd, size, start + at)), 0, salt) if size else None
            if frame is not None and frame.first_sequence > last:
                return True
            at = haystack.find(FRAME_MAGIC, at + 1)
    return False


def _read_header(path: Path, files: Files) -> FileHeader:
    if files.is_folder(path):
        raise CorruptData(f"{path.name} has the name of a journal file and is a folder. Move it away.")
    with _opened(path, files) as fd:
        try:
            return FileHeader.decode(files.pread(fd, HEADER_BYTES, 0))
        except CorruptData as error:
            raise CorruptData(f"{path.name}: {error.message}") from None


@contextmanager
def _opened(path: Path, files: Files) -> Iterator[int]:
    fd = files.open_read(path)
    try:
        yield fd
    finally:
        files.close(fd)
