"""A transaction's object: all its messages, stream by stream, in the order in which they are appended.

The commit is a batch of facts that point into it (`Appended.stored`). The index is there for the server, which makes
these facts from it: msgpack arrays of `Addition`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from ...model.commands import Addition
from ...model.errors import CorruptData, Unavailable
from ...model.facts import Appended, Fact, Stored, size_of
from ..checksum import crc32
from ..objects import LocalObjects
from ..ports import ObjectStore
from .indexed import Meta, read_chunks, read_meta

FOLDER = "transactions"
MAGIC = b"MILLTXNS"

_additions = msgspec.msgpack.Decoder(list[Addition])


def object_name(number: int) -> str:
    return f"{FOLDER}/{number:020d}"


def read_additions(store: ObjectStore, number: int) -> Iterator[bytes]:
    """The index in pieces; `decode_additions` makes sense of each."""
    meta: Meta = read_meta(store, object_name(number), MAGIC)
    return read_chunks(store, object_name(number), meta)


def decode_additions(chunk: bytes) -> list[Addition]:
    return _additions.decode(chunk)


def read_stored(store: ObjectStore, where: Stored, size: int) -> bytes:
    """A payload that a fact points to. Safe in any thread."""
    return _checked(where, store.get_range(object_name(where.object), where.at, size))


def whole_fact(store: ObjectStore, fact: Fact) -> Fact:
    """The fact with its payload, where that lies in an object; else the fact itself. Safe in any thread."""
    if type(fact) is not Appended or fact.stored is None:
        return fact
    return replace(fact, payload=read_stored(store, fact.stored, size_of(fact)), stored=None)


class StoredPayloads:
    """The engine's `Payloads`: what transactions have put into objects, read through open descriptors.

    Reads on the serving loop. What was committed lately is in the page cache: a copy, as from memory.
    """

    def __init__(self, objects: LocalObjects) -> None:
        self._objects = objects

    def stored(self, where: Stored, size: int) -> bytes:
        try:
            payload = self._objects.get_range_open(object_name(where.object), where.at, size)
        except OSError as error:
            raise Unavailable(f"The data cannot be read from disk now ({error.strerror}).") from None
        return _checked(where, payload)


def _checked(where: Stored, payload: bytes) -> bytes:
    if crc32(payload) != where.crc:
        raise CorruptData(f"Messages in {object_name(where.object)} do not match their checksum.")
    return payload
