"""Messages that describe themselves: author, number, size, and a filler that only these three and a seed give.

Whoever finds one in a stream can tell whose it is and compare it byte for byte, without having kept it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import shake_128

_BYTES_HEAD = re.compile(rb"<([\w-]+) #(\d+) \+(\d+)>")
_JSON_HEAD = re.compile(rb'\{"author": "([\w-]+)", "number":(\d+), "size" :(\d+), "filler":"')
SIZE_MIN = 100  # a JSON message needs room for its fields


@dataclass(frozen=True, slots=True)
class Label:
    """What a message says about itself."""

    author: str
    number: int
    size: int


class Mint:
    """Makes the messages of one run, and reads them back."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def message(self, label: Label, json: bool) -> bytes:
        if json:
            # White space in odd places: the server has to keep it.
            head = b'{"author": "%b", "number":%d, "size" :%d, "filler":"'
            head %= (label.author.encode(), label.number, label.size)
            return head + self._letters(label, label.size - len(head) - 2) + b'"}'
        head = b"<%b #%d +%d>" % (label.author.encode(), label.number, label.size)
        return head + self._filler(label, label.size - len(head))

    def labels(self, stored: bytes, json: bool) -> Iterator[tuple[Label, bytes]]:
        """Every message of a stream's bytes in order; what is no whole message of ours fails."""
        pattern = _JSON_HEAD if json else _BYTES_HEAD
        at = 0
        while at < len(stored):
            matched = pattern.match(stored, at)
            assert matched, f"no message starts at {at}: {stored[at : at + 60]!r}"
            label = Label(matched[1].decode(), int(matched[2]), int(matched[3]))
            found = stored[at : at + label.size]
            assert found == self.message(label, json), f"{label} at {at} is not what was sent"
            yield label, found
            at += label.size

    def split_array(self, array: bytes) -> list[bytes]:
        """The messages of a JSON read; they say themselves how long they are."""
        assert array[:1] == b"[" and array[-1:] == b"]", array[:60]  # noqa: PT018
        messages = []
        at = 1
        while at < len(array) - 1:
            matched = _JSON_HEAD.match(array, at)
            assert matched, f"no message starts at {at} of a read: {array[at : at + 60]!r}"
            size = int(matched[3])
            messages.append(array[at : at + size])
            assert array[at + size : at + size + 1] in (b",", b"]"), "a message does not end where it says"
            at += size + 1
        return messages

    def _filler(self, label: Label, size: int) -> bytes:
        return shake_128(f"{self._seed}/{label.author}/{label.number}".encode()).digest(size)

    def _letters(self, label: Label, size: int) -> bytes:
        return self._filler(label, (size + 1) // 2).hex().encode()[:size]
