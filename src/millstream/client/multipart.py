"""multipart/mixed (RFC 2046), as bootstrap sends it: feed bytes as they come, get the parts that are complete."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import ProtocolError

PART_BYTES_MAX = 256 * 1024 * 1024
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    content_type: str
    data: bytes


def boundary_of(content_type: str) -> str:
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise ProtocolError(f"The answer is no multipart that can be read: {content_type!r}.")
    return str(found[1] or found[2])


class MultipartDecoder:
    """What stands before the first boundary and behind the last is skipped."""

    def __init__(self, boundary: str) -> None:
        # With a line break in front of everything, the first boundary looks like all others.
        self._buffer = bytearray(b"\r\n")
        self._delimiter = b"\r\n--" + boundary.encode()
        self._searched = 0
        self._inside = False
        self.finished = False

    def feed(self, chunk: bytes) -> list[Part]:
        buffer, delimiter = self._buffer, self._delimiter
        buffer += chunk
        parts: list[Part] = []
        at = 0  # where the current part begins
        while not self.finished:
            found = buffer.find(delimiter, max(at, self._searched))
            end = found + len(delimiter)
            if found < 0 or len(buffer) < end + 2:
                self._searched = found if found >= 0 else max(at, len(buffer) - len(delimiter))
                break
            tail = bytes(buffer[end : end + 2])
            if tail not in (b"\r\n", b"--"):
                self._searched = end  # the boundary's text with something behind it is data
                continue
            if self._inside:
                parts.append(_part(bytes(buffer[at:found])))
            self._inside = True
            self.finished = tail == b"--"
            # Keep the line break: a part without headers begins with the empty line right here.
            at = self._searched = end
        del buffer[:at]
        self._searched -= at
        if len(buffer) > PART_BYTES_MAX:
            raise ProtocolError(f"A part of the answer is longer than {PART_BYTES_MAX} bytes.")
        return parts


def _part(raw: bytes) -> Part:
    """A part between its boundary and the next: a line break, header lines, an empty line, the body."""
    head, separator, body = raw.partition(b"\r\n\r\n")
    if not separator:
        raise ProtocolError("A part of the answer has no end of its headers.")
    content_type = "text/plain"
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-type":
            content_type = value.strip().decode("latin-1")
    return Part(content_type, body)
