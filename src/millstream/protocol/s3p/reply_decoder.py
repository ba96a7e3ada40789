"""Bytes of a server to replies, incrementally: the other side of `replies`.

feed(data)    what has arrived
next_reply()  the next whole reply, or None until more is fed
"""

from __future__ import annotations

import re

import msgspec

from ...model.errors import BadRequest

_LINE_BYTES_MAX = 64 << 10
_NUMBER = re.compile(rb"0|[1-9][0-9]{0,17}")


class Ok(msgspec.Struct, frozen=True):
    """A simple string, which is OK in every reply there is."""

    text: str


class ErrorReply(msgspec.Struct, frozen=True):
    code: str
    message: str


Reply = Ok | ErrorReply | bytes | list[bytes]


class ReplyDecoder:
    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        self._items: list[bytes] | None = None  # of an array under way
        self._items_left = 0
        self._wanted = 0  # do not look before this much is there

    def feed(self, data: bytes) -> None:
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
        self._buffer += data

    def next_reply(self) -> Reply | None:
        if self._items is None:
            line = self._line()
            if line is None:
                return None
            kind, rest = line[:1], line[1:]
            if kind == b"+":
                return Ok(rest.decode("ascii", "replace"))
            if kind == b"-":
                code, _, message = rest.decode("ascii", "replace").partition(" ")
                return ErrorReply(code, message)
            if kind == b"$":
                self._at -= len(line) + 2
                return self._bulk()
            if kind != b"*":
                raise _not_s3p(line)
            self._items, self._items_left = [], _number(rest)
        while self._items_left:
            item = self._bulk()
            if item is None:
                return None
            self._items.append(item)
            self._items_left -= 1
        items, self._items = self._items, None
        return items

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n", self._at)
        if end < 0:
            if len(self._buffer) - self._at > _LINE_BYTES_MAX:
                raise _not_s3p(bytes(self._buffer[self._at : self._at + 32]))
            return None
        line = bytes(self._buffer[self._at : end])
        self._at = end + 2
        return line

    def _bulk(self) -> bytes | None:
        if len(self._buffer) - self._at < self._wanted:
            return None
        began = self._at
        line = self._line()
        if line is None:
            return None
        if line[:1] != b"$":
            raise _not_s3p(line)
        start = self._at
        end = start + _number(line[1:])
        if end + 2 > len(self._buffer):
            self._at, self._wanted = began, end + 2 - began
            return None
        if self._buffer[end : end + 2] != b"\r\n":
            raise _not_s3p(bytes(self._buffer[end : end + 2]))
        self._at, self._wanted = end + 2, 0
        return bytes(self._buffer[start:end])


def _number(text: bytes) -> int:
    if not _NUMBER.fullmatch(text):
        raise _not_s3p(text)
    return int(text)


def _not_s3p(found: bytes) -> BadRequest:
    return BadRequest(f"The server does not speak S3P: {found[:32]!r}.", code="not_s3p")
