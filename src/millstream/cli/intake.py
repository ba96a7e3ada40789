"""What is to be appended: bytes from a file or stdin, whole or cut into messages. Nothing is sent here."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from millstream.cli.output import CommandError, print_note, size_text

READ_BYTES = 256 * 1024
WHOLE_BYTES_MAX = 256 * 1024 * 1024
MESSAGE_BYTES_MAX = 64 * 1024 * 1024


class Cut(Enum):
    """What becomes one message."""

    WHOLE = "whole"
    LINES = "lines"
    JSON_LINES = "json lines"
    CHUNKS = "chunks"


@contextmanager
def opened(path: Path | None) -> Iterator[int]:
    """The descriptor of a file, or of stdin for none or `-`."""
    if path is None or str(path) == "-":
        if sys.stdin.isatty():
            print_note("reading from the terminal; Ctrl-D ends the input")
        yield sys.stdin.fileno()
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def size_of(descriptor: int) -> int | None:
    """How much there is to read, where the system knows."""
    found = os.fstat(descriptor)
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def read_whole(descriptor: int) -> bytes:
    pieces: list[bytes] = []
    left = WHOLE_BYTES_MAX
    while piece := os.read(descriptor, READ_BYTES):
        left -= len(piece)
        if left < 0:
            raise CommandError(
                f"the input is more than {size_text(WHOLE_BYTES_MAX)}, too much for one message; "
                "cut it with --lines, --json-lines or --chunks 4MiB"
            )
        pieces.append(piece)
    return b"".join(pieces)


class Messages:
    """The messages of an input, as they come."""

    def __init__(self, descriptor: int, cut: Cut, *, json_stream: bool, chunk_bytes: int) -> None:
        self._descriptor = descriptor
        self._shape = _shape_of(cut, json_stream)
        self._chunk_bytes = chunk_bytes if cut is Cut.CHUNKS else 0
        self._rest = b""
        self._taken = 0
        self.ended = False

    def within(self, seconds: float) -> bool:
        """Whether something can be read before so many seconds are over."""
        return bool(select.select([self._descriptor], [], [], max(0.0, seconds))[0])

    def next(self) -> list[bytes]:
        """Wait for input; the messages that are complete with it. May be none."""
        piece = os.read(self._descriptor, READ_BYTES)
        self.ended = not piece
        data = self._rest + piece
        pieces = self._chunks(data) if self._chunk_bytes else self._lines(data)
        if len(self._rest) > MESSAGE_BYTES_MAX:
            raise CommandError(f"line {self._taken + 1} is longer than {size_text(MESSAGE_BYTES_MAX)}")
        return pieces

    def _chunks(self, data: bytes) -> list[bytes]:
        size = self._chunk_bytes
        whole = len(data) if self.ended else len(data) // size * size
        self._rest = data[whole:]
        return [data[at : min(at + size, whole)] for at in range(0, whole, size)]

    def _lines(self, data: bytes) -> list[bytes]:
        whole = len(data) if self.ended else data.rfind(b"\n") + 1
        self._rest = data[whole:]
        # Not splitlines: it takes a lone CR for the end of a line.
        lines = data[:whole].split(b"\n")
        last = lines.pop()
        lines = [line + b"\n" for line in lines] + ([last] if last else [])
        shaped = [self._shape(line, number) for number, line in enumerate(lines, self._taken + 1)]
        self._taken += len(lines)
        return [message for message in shaped if message]


def _shape_of(cut: Cut, json_stream: bool) -> Callable[[bytes, int], bytes]:
    """How a line with its end becomes a message; an empty message is left out."""
    if cut is Cut.JSON_LINES:
        return _json_line
    return _json_string if json_stream else lambda line, number: line


def _json_line(line: bytes, number: int) -> bytes:
    """Checked here, as the server refuses a whole batch for one bad line and cannot say which."""
    import json

    import msgspec

    message = line.strip()
    if not message:
        return b""
    try:
        msgspec.json.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Halves of surrogate pairs are JSON, but not to msgspec.
        try:
            json.loads(message)
        except (ValueError, RecursionError) as error:
            raise CommandError(f"line {number} of the input is not JSON: {error}") from None
    return message


def _json_string(line: bytes, number: int) -> bytes:
    import msgspec

    try:
        return msgspec.json.encode(line.removesuffix(b"\n").removesuffix(b"\r").decode())
    except UnicodeDecodeError:
        raise CommandError(f"line {number} of the input is not UTF-8, which a JSON stream needs") from None
