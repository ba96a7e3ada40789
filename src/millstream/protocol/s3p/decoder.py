"""Bytes of a client to commands, incrementally: any cut of the bytes gives the same commands (section 3).

    feed(data)      what has arrived
    next_command()  the next whole command, or None until more is fed; raises what the client is to be told

Limits hold while reading: a length that is too large is refused when it is announced, before its bytes are kept. Work
is linear in the bytes, however they are cut: what is decoded is never looked at again.

Hot code. A client that appends to one stream sends the same bytes again and again in front of its records; they are
remembered and compared as a whole. Measured by `bench/s3p.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ...model.commands import Body
from ...model.errors import BadRequest, TooLarge
from ...model.ids import MessageId
from .commands import (
    ELEMENTS,
    MAKERS,
    OPTION_BYTES_MAX,
    OPTIONS_MAX,
    AppendRecords,
    Limits,
    S3pCommand,
    first_id_of,
    known_options,
)
from .escaping import shown

_LINE_BYTES_MAX = 13  # type, ten digits, CR LF
_ARRAY = re.compile(rb"\*(0|[1-9][0-9]{0,9})\r\n")
_BULK = re.compile(rb"\$([1-9][0-9]{0,9})\r\n")
_BEGUN = re.compile(rb"[*$](?:(?:0|[1-9][0-9]{0,9})\r?)?")  # may still become a line of either
_COMMAND_BYTES_MAX = 16
_ELEMENTS_MAX = max(ELEMENTS.values())


class Decoder:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._buffer = b""
        self._at = 0  # everything before it is decoded
        self._arriving: bytearray | None = None  # a bulk string that is not here in full, from its length on
        self._wanted = 0  # how many bytes that takes
        # Of the command that is being decoded. Steps are plain functions: bound ones would tie a knot of references.
        self._step: Callable[[Decoder], bool] = Decoder._take_head
        self._begun_at = 0  # where in the buffer it begins; -1: in an earlier one
        self._elements = 0
        self._command = b""
        self._name = b""
        self._items: list[bytes] = []
        self._items_left = 0
        self._first_id: MessageId | None = None
        self._records: list[bytes] = []
        self._records_left = 0
        self._size = 0  # of its records
        self._decoded: S3pCommand | None = None
        # Of the last APPEND without options: its bytes up to its records, and what they say.
        self._head = b""
        self._head_name = b""
        self._head_records = 0

    @property
    def held_bytes(self) -> int:
        """How much of commands that are not decoded in full is kept."""
        return self._size + len(self._buffer) - self._at + (len(self._arriving) if self._arriving is not None else 0)

    @property
    def is_between_commands(self) -> bool:
        return self._step is Decoder._take_head and self._at >= len(self._buffer) and self._arriving is None

    def feed(self, data: bytes) -> None:
        if self._arriving is not None:
            self._arriving += data
            if len(self._arriving) < self._wanted:
                return
            self._buffer, self._arriving = bytes(self._arriving), None
        elif self._at < len(self._buffer):
            self._buffer = self._buffer[self._at :] + data
        else:
            self._buffer = data
        self._at = 0
        self._begun_at = -1

    def next_command(self) -> S3pCommand | None:
        if self._arriving is not None:
            return None
        if self._step is Decoder._take_head and self._head and self._buffer.startswith(self._head, self._at):
            self._at += len(self._head)
            self._name, self._first_id = self._head_name, None
            self._records_left = self._head_records
            self._step = Decoder._take_records
        while self._step(self):
            command = self._decoded
            if command is not None:
                self._step, self._decoded, self._records, self._size = Decoder._take_head, None, [], 0
                return command
        return None

    # -- steps: each takes one element and says whether it could -------------------------------------------------

    def _take_head(self) -> bool:
        self._begun_at = self._at
        elements = self._array_head("a command")
        if elements is None:
            return False
        if elements == 0:
            raise BadRequest("a command has at least its name; the array is empty")
        if elements > _ELEMENTS_MAX:
            raise BadRequest(f"no command is an array of {elements} elements")
        self._elements = elements
        self._step = Decoder._take_command
        return True

    def _take_command(self) -> bool:
        name = self._bulk("a command's name", _COMMAND_BYTES_MAX)
        if name is None:
            return False
        self._command = name.upper()
        wanted = ELEMENTS.get(self._command)
        if wanted is None:
            raise BadRequest(f"unknown command {shown(name)}")
        if wanted != self._elements:
            raise BadRequest(f"{self._command.decode()} is an array of {wanted} elements, not {self._elements}")
        self._step = Decoder._take_name
        return True

    def _take_name(self) -> bool:
        name = self._bulk("a stream's name", self._limits.name_bytes_max)
        if name is None:
            return False
        self._name = name
        self._step = Decoder._take_options_head
        return True

    def _take_options_head(self) -> bool:
        count = self._array_head("the options")
        if count is None:
            return False
        if count % 2:
            raise BadRequest("options come in pairs of key and value; their number is odd")
        if count > OPTIONS_MAX:
            raise TooLarge(f"the options may have {OPTIONS_MAX} elements at most")
        self._items, self._items_left = [], count
        self._step = Decoder._take_options
        return True

    def _take_options(self) -> bool:
        while self._items_left:
            item = self._bulk("an option", OPTION_BYTES_MAX)
            if item is None:
                return False
            self._items.append(item)
            self._items_left -= 1
        options = known_options(self._command, self._items)
        make = MAKERS.get(self._command)
        if make is not None:
            self._decoded = make(self._name, options, self._limits)
        else:
            self._first_id = first_id_of(options)
            self._step = Decoder._take_records_head
        return True

    def _take_records_head(self) -> bool:
        count = self._array_head("the records")
        if count is None:
            return False
        if count == 0:
            raise BadRequest("an APPEND has at least one record")
        if count > self._limits.append_records_max:
            raise TooLarge(f"an APPEND may have {self._limits.append_records_max} records at most")
        if not self._items and self._begun_at >= 0:
            self._head = self._buffer[self._begun_at : self._at]
            self._head_name, self._head_records = self._name, count
        self._records_left = count
        self._step = Decoder._take_records
        return True

    def _take_records(self) -> bool:
        """`_bulk` for each record, in place: this is the loop that everything goes through."""
        buffer, at, size, left = self._buffer, self._at, self._size, self._records_left
        limits, records = self._limits, self._records
        while left:
            found = _BULK.match(buffer, at)
            if found is None:
                self._at, self._size, self._records_left = at, size, left
                self._expect(b"$", "a record")
                return False
            length = int(found[1])
            if length > limits.record_bytes_max:
                raise TooLarge(f"a record may have {limits.record_bytes_max} bytes at most")
            if size + length > limits.append_bytes_max:
                raise TooLarge(f"the records of an APPEND may have {limits.append_bytes_max} bytes together at most")
            start = found.end()
            end = start + length
            if end + 2 > len(buffer):
                self._size, self._records_left = size, left
                self._wait_for(at, end + 2)
                return False
            if buffer[end : end + 2] != b"\r\n":
                raise _unterminated()
            records.append(buffer[start:end])
            size += length
            at = end + 2
            left -= 1
        self._at = at
        body = Body(records[0]) if len(records) == 1 else Body(b"".join(records), list(map(len, records)))
        self._decoded = AppendRecords(self._name, body, self._first_id)
        return True

    # -- elements -------------------------------------------------------------------------------------------------

    def _array_head(self, what: str) -> int | None:
        """The length of the array that begins here, once it is here."""
        found = _ARRAY.match(self._buffer, self._at)
        if found is None:
            self._expect(b"*", what)
            return None
        self._at = found.end()
        return int(found[1])

    def _bulk(self, what: str, bytes_max: int) -> bytes | None:
        """The bulk string that begins here, once it is here in full."""
        buffer = self._buffer
        found = _BULK.match(buffer, self._at)
        if found is None:
            self._expect(b"$", what)
            return None
        length = int(found[1])
        if length > bytes_max:
            raise BadRequest(f"{what} has {bytes_max} bytes at most, not {length}")
        start = found.end()
        end = start + length
        if end + 2 > len(buffer):
            self._wait_for(self._at, end + 2)
            return None
        if buffer[end : end + 2] != b"\r\n":
            raise _unterminated()
        self._at = end + 2
        return buffer[start:end]

    def _wait_for(self, at: int, end: int) -> None:
        """Collect up to `end` before anything is looked at again."""
        self._arriving = bytearray(self._buffer[at:])
        self._wanted = end - at
        self._buffer, self._at = b"", 0

    def _expect(self, kind: bytes, what: str) -> None:
        """There is no whole line of this kind here. Fine if it is only not whole."""
        line = self._buffer[self._at : self._at + _LINE_BYTES_MAX]
        if not line or (line[:1] == kind and len(line) < _LINE_BYTES_MAX and _BEGUN.fullmatch(line)):
            return
        wanted = "an array (*)" if kind == b"*" else "a bulk string ($)"
        if line[:1] != kind:
            raise BadRequest(f"{what} must be {wanted}, but it begins with {shown(line[:1])}")
        if line.startswith(b"$0\r\n"):
            raise BadRequest(f"{what} must not be empty: bulk strings have at least one byte")
        good = next(size for size in range(len(line), 0, -1) if _BEGUN.fullmatch(line, 0, size))
        raise BadRequest(f"{what} must be {wanted} with a decimal length and CR LF, not {shown(line[: good + 1])}")


def _unterminated() -> BadRequest:
    return BadRequest("a bulk string does not end with CR LF where its length says")
