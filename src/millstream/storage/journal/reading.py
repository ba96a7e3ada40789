"""Reading batches back, a window of a file at a time.

Files are allocated before they are written: most of the last one is zeros, which are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...model.codec import decode_facts
from ...model.errors import CorruptData
from ..files import Files
from ..ports import Batch
from .record import FRAME_BYTES, HEADER_BYTES, Frame
from .recovery import WINDOW_BYTES, JournalFile, frames_in, last_of, list_files


class _Place(NamedTuple):
    """Where the frame that starts with `sequence` lies, or will."""

    path: Path
    at: int
    sequence: int


class JournalReader:
    """Reads batches, and goes on from where it stopped when it is asked for what follows."""

    def __init__(self, directory: Path, files: Files, window_bytes: int = WINDOW_BYTES) -> None:
        self._directory = directory
        self._files = files
        self._window_bytes = max(window_bytes, FRAME_BYTES)
        self._place: _Place | None = None

    def batches(self, after: int, through: int | None = None) -> Iterator[Batch]:
        """The batches that hold sequences after `after` and start at or before `through`, in order."""
        found = list_files(self._directory, self._files)
        expected = None
        for index, file in enumerate(found):
            following = found[index + 1].header.first_sequence if index + 1 < len(found) else None
            if following is not None and following <= after + 1:
                continue
            first = file.header.first_sequence
            if expected is not None and first != expected:
                raise CorruptData(f"{file.path.name} starts with {first}, {expected} was expected.")
            place = _Place(file.path, HEADER_BYTES, first)
            if self._place is not None and self._place.path == file.path and self._place.sequence == after + 1:
                place = self._place
            expected = place.sequence
            for frame in self._frames(file, place):
                if through is not None and frame.first_sequence > through:
                    return
                expected = last_of(frame) + 1
                self._place = _Place(file.path, frame.end, expected)
                if expected > after + 1:
                    yield Batch(frame.first_sequence, frame.at_ms, decode_facts(frame.body))

    def _frames(self, file: JournalFile, place: _Place) -> Iterator[Frame]:
        fd = self._files.open_read(file.path)
        try:
            at, expected = place.at, place.sequence
            yield from frames_in(self._files, fd, file.header.salt, at, expected, self._window_bytes)
        finally:
            self._files.close(fd)
