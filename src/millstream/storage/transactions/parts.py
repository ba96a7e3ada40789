"""A staged part: messages for many streams that wait for their commit, in runs, each sorted by stream and order.

The payload is the groups' messages one after the other. There is one index chunk for each run (`indexed.py`): a msgpack
array of groups. `PartHead` is what the meta adds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Protocol

import msgspec
from msgspec.structs import replace

from ...model.errors import CorruptData
from ..checksum import crc32
from ..objects import LocalObjects
from ..ports import ObjectStore
from .indexed import HEAD_BYTES, Indexed, Meta, indexed_object, read_chunks, read_meta

FOLDER = "staged"
MAGIC = b"MILLPART"


class PartHead(msgspec.Struct, frozen=True, array_like=True):
    """Whose part it is, and what is in it."""

    bucket: str
    bucket_ms: int  # when the bucket was created: a later one of the same name has no claim to it
    app: str
    version: int
    part: str
    staged_ms: int
    messages: int = 0
    bytes: int = 0
    order: str = ""  # "int", "text", or nothing
    bucket_number: int = 0  # as `bucket_ms`: two may be created within a millisecond


class Group(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The messages of one stream in one run, in order."""

    stream: str
    at: int
    size: int
    crc: int
    lengths: bytes  # u32 of each message
    orders: bytes | list[str] | None = None  # i64 of each message, or texts
    fault: str | None = None  # where and why a message is no JSON


class Run(msgspec.Struct, frozen=True):
    """Sorted messages as a decoder hands them over: groups whose `at` counts from the start of `payload`."""

    payload: bytes | memoryview
    groups: list[Group]


def part_name(number: int) -> str:
    return f"{FOLDER}/{number:020d}"


class Rows(Protocol):
    """A decoder of what a client sent."""

    order: str  # known once there was a row

    def runs(self) -> Iterator[Run]: ...


def write_part(store: ObjectStore, number: int, head: PartHead, rows: Rows) -> PartHead:
    """Store a part; its head with the figures."""
    chunks: list[bytes] = []
    written = head
    at, messages = HEAD_BYTES, 0

    def payload() -> Iterator[bytes | memoryview]:
        nonlocal at, messages
        for run in rows.runs():
            groups = [replace(group, at=at + group.at) for group in run.groups]
            chunks.append(msgspec.msgpack.encode(groups))
            messages += sum(len(group.lengths) for group in groups) // 4
            at += len(run.payload)
            yield run.payload

    def finish() -> Indexed:
        nonlocal written
        written = replace(head, messages=messages, bytes=at - HEAD_BYTES, order=rows.order)
        return Indexed(chunks, msgspec.msgpack.encode(written))

    store.put(part_name(number), indexed_object(MAGIC, payload(), finish))
    return written


_groups = msgspec.msgpack.Decoder(list[Group])


def read_head(store: ObjectStore, number: int) -> tuple[PartHead, Meta]:
    meta = read_meta(store, part_name(number), MAGIC)
    return msgspec.msgpack.decode(meta.more, type=PartHead), meta


def read_groups(store: ObjectStore, number: int, meta: Meta) -> Iterator[Group]:
    for chunk in read_chunks(store, part_name(number), meta):
        yield from _groups.decode(chunk)


def read_payload(store: LocalObjects, number: int, group: Group) -> bytes:
    payload = store.get_range_open(part_name(number), group.at, group.size)
    if crc32(payload) != group.crc:
        raise CorruptData(f"Messages in {part_name(number)} do not match their checksum.")
    return payload


def lengths_of(group: Group) -> array[int]:
    lengths = array("I")
    lengths.frombytes(group.lengths)
    return lengths


def orders_of(group: Group) -> array[int] | list[str]:
    if isinstance(group.orders, bytes):
        orders = array("q")
        orders.frombytes(group.orders)
        return orders
    return group.orders or []
