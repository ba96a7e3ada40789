"""Answers to catch-up reads, kept for whoever asks for the same again.

Readers ask for the same ranges: a page that opens starts at the beginning, caches in front of us ask for what a
thousand readers asked them. As long as its stream is as it was, an answer is the same byte for byte, and who has it
needs neither names nor plans nor blocks. Whether it still holds is looked at when it is used: writers know nothing of
this cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from ..node import Stream
from ..node.sightings import Sighting, Sightings

_OVERHEAD = 1024  # of an answer, beside its body
_SHARE_MAX = 32  # no answer takes more than this part of the whole: pages of a long catch-up would push out the rest
_ASKED_MAX = 4096
_TARGET_MAX = 1024
_PLAIN_MAX = 64 << 10  # up to here one copy is cheaper than a longer list for the kernel


class ReadAnswer(msgspec.Struct, frozen=True, gc=False):
    """A range of a stream as a response, but for what depends on who asks."""

    lines: bytes  # without the next two
    content: bytes
    etag: bytes
    pieces: Sequence[bytes | memoryview]
    size: int
    plain: bytes = b""  # all of it in one piece, length and body included, for who asks without any extras

    def plain_lines(self) -> bytes:
        return b"%b%bETag: %b\r\n" % (self.lines, self.content, self.etag)


class _Kept:
    __slots__ = ("answer", "first_lines", "seen", "whole")

    def __init__(self, seen: Sighting, answer: ReadAnswer) -> None:
        self.seen = seen
        self.answer = answer
        self.whole = b""  # with the lines that every response begins with, as they were a moment ago
        self.first_lines = b""

    @property
    def weight(self) -> int:
        return self.answer.size + len(self.answer.plain) + _OVERHEAD


class ReadCache:
    def __init__(self, sightings: Sightings, bytes_max: int) -> None:
        self._sightings = sightings
        self._bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._asked: set[bytes] = set()

    def get(self, target: bytes) -> ReadAnswer | None:
        kept = self._current(target)
        if kept is None:
            return None
        self.hits += 1
        return kept.answer

    def whole(self, target: bytes, first_lines: bytes) -> bytes | None:
        """A plain answer from its first byte to its last. It is made when the first lines change, not each time."""
        kept = self._kept.get(target)
        if kept is None or not self._sightings.still_holds(kept.seen) or not kept.answer.plain:
            return None  # and the longer way will find out why
        self._kept.move_to_end(target)
        self.hits += 1
        if kept.first_lines is not first_lines:
            kept.first_lines, kept.whole = first_lines, first_lines + kept.answer.plain
        return kept.whole

    def _current(self, target: bytes) -> _Kept | None:
        kept = self._kept.get(target)
        if kept is None:
            return None
        if not self._sightings.still_holds(kept.seen):
            self._forget(target)
            return None
        self._kept.move_to_end(target)
        return kept

    def put(self, target: bytes, stream: Stream, answer: ReadAnswer) -> None:
        """Keep an answer that is asked for the second time: most are for one reader, on his way to the tail."""
        if answer.size > self._bytes_max // _SHARE_MAX or len(target) > _TARGET_MAX:
            return
        if target not in self._asked:
            if len(self._asked) >= _ASKED_MAX:
                self._asked.clear()
            self._asked.add(target)
            return
        seen = self._sightings.of(stream)
        if seen is not None:
            self._keep(target, seen, _owned(answer))

    def get_variant(self, target: bytes, encoding: bytes) -> ReadAnswer | None:
        """The answer in an encoding, if it was kept."""
        kept = self._current(_variant(target, encoding))
        return None if kept is None else kept.answer

    def put_variant(self, target: bytes, encoding: bytes, answer: ReadAnswer, encoded: ReadAnswer) -> None:
        """Keep an answer in an encoding as well, if this one is kept (and has not been replaced since)."""
        kept = self._kept.get(target)
        if kept is not None and kept.answer is answer:
            self._keep(_variant(target, encoding), kept.seen, encoded)

    def _keep(self, target: bytes, seen: Sighting, answer: ReadAnswer) -> None:
        self._forget(target)
        kept = self._kept[target] = _Kept(seen, answer)
        self.bytes += kept.weight
        while self.bytes > self._bytes_max:
            self._forget(next(iter(self._kept)))

    def _forget(self, target: bytes) -> None:
        kept = self._kept.pop(target, None)
        if kept is not None:
            self.bytes -= kept.weight


def _variant(target: bytes, encoding: bytes) -> bytes:
    return b"%b %b" % (encoding, target)  # no target holds a space


def _owned(answer: ReadAnswer) -> ReadAnswer:
    """With bytes of its own: views would keep whole blocks in memory."""
    lines = b"%bContent-Length: %d\r\n\r\n" % (answer.plain_lines(), answer.size)
    plain = b"".join([lines, *answer.pieces])
    body = memoryview(plain)[len(lines) :]
    return msgspec.structs.replace(answer, pieces=[body], plain=plain if answer.size <= _PLAIN_MAX else b"")
