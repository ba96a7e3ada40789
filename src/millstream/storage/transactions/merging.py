"""From staged parts to a transaction's object: each stream's messages in the order (order, part, row)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, pairwise, repeat

import msgspec

from ...model.commands import Addition, Slice
from ...model.errors import CorruptData, Reason, TransactionRefused
from ...model.facts import Stored
from ..checksum import crc32
from ..objects import LocalObjects
from .indexed import HEAD_BYTES, Indexed, indexed_object
from .objects import MAGIC, object_name
from .parts import Group, lengths_of, orders_of, part_name, read_groups, read_head, read_payload

SLICE_BYTES = 512 << 10  # of payload that one fact points to; a larger message has one of its own
_CHUNK_MESSAGES = 10_000  # in one piece of the index, which the server takes in one step
_CHUNK_STREAMS = 500
_IN_MEMORY_MAX = 32 << 20  # of one stream's messages, to sort them at once
_WINDOW_BYTES = 128 << 10


class Merged(msgspec.Struct):
    """What the object holds."""

    messages: int = 0
    bytes: int = 0
    streams: int = 0


class _Source(msgspec.Struct, frozen=True):
    part: int  # number of its object
    group: Group


def merge_parts(store: LocalObjects, number: int, parts: Sequence[int]) -> Merged:
    """Write the object; raises `TransactionRefused` when the parts do not go together."""
    sources = _by_stream(store, parts)
    builder = _Builder(number)

    def payload() -> Iterator[bytes]:
        for stream in sorted(sources):
            yield from builder.add(stream, _ordered(store, sources[stream]), _fault(sources[stream]))

    try:
        store.put(object_name(number), indexed_object(MAGIC, payload(), builder.finish))
    finally:
        store.close()  # the parts: they are deleted soon, and then their space should be free
    return builder.merged


def _by_stream(store: LocalObjects, parts: Sequence[int]) -> dict[str, list[_Source]]:
    sources: dict[str, list[_Source]] = {}
    kinds: dict[str, str] = {}
    for number in parts:
        head, meta = read_head(store, number)
        if head.messages:
            kinds.setdefault(head.order, head.part)
        for group in read_groups(store, number, meta):
            sources.setdefault(group.stream, []).append(_Source(number, group))
    if len(kinds) > 1:
        found = " and ".join(f"'{part}' has {_KINDS[kind]}" for kind, part in kinds.items())
        raise TransactionRefused([Reason("order_mismatch", f"The parts order their rows differently: {found}.")], 1)
    return sources


_KINDS = {"": "no order", "int": "an order of numbers or times", "text": "an order of texts"}


def _fault(sources: Sequence[_Source]) -> str | None:
    return next((source.group.fault for source in sources if source.group.fault is not None), None)


# Messages that lie one after the other, and their lengths.
_Piece = tuple[bytes, Sequence[int]]


def _ordered(store: LocalObjects, sources: list[_Source]) -> Iterator[_Piece]:
    """The messages of one stream. Groups are sorted in themselves; they come in the order of part and row."""
    if sources[0].group.orders is None or len(sources) == 1:
        for source in sources:
            yield read_payload(store, source.part, source.group), lengths_of(source.group)
        return
    orders = [orders_of(source.group) for source in sources]
    if all(before[-1] <= after[0] for before, after in pairwise(orders)):  # type: ignore[operator]
        for source in sources:
            yield read_payload(store, source.part, source.group), lengths_of(source.group)
        return
    large = sum(source.group.size for source in sources) > _IN_MEMORY_MAX
    yield from _gathered(_by_windows(store, sources, orders) if large else _in_memory(store, sources, orders))


def _in_memory(store: LocalObjects, sources: list[_Source], orders: Sequence[Sequence[int | str]]) -> Iterator[bytes]:
    messages: list[bytes] = []
    for source in sources:
        payload = read_payload(store, source.part, source.group)
        at = 0
        for end in accumulate(lengths_of(source.group)):
            messages.append(payload[at:end])
            at = end
    keys = [key for of_group in orders for key in of_group]
    ranks = sorted(range(len(keys)), key=keys.__getitem__)  # stable: ties stay in the order of part and row
    return map(messages.__getitem__, ranks)


def _by_windows(store: LocalObjects, sources: list[_Source], orders: Sequence[Sequence[int | str]]) -> Iterator[bytes]:
    """The same for much data: of each group only a window is in memory."""
    streams = (
        zip(keys, repeat(place), count(), _messages(store, source), strict=False)
        for place, (source, keys) in enumerate(zip(sources, orders, strict=True))
    )
    return (message for *_, message in heapq.merge(*streams))


def _messages(store: LocalObjects, source: _Source) -> Iterator[bytes]:
    """A group's messages, window by window; the checksum is known with the last."""
    group = source.group
    at, crc, window = group.at, 0, b""
    for length in lengths_of(group):
        if len(window) < length:
            wanted = min(max(length, _WINDOW_BYTES), group.at + group.size - at)
            data = store.get_range_open(part_name(source.part), at, wanted)
            crc = crc32(data, crc)
            at += wanted
            window += data
        message, window = window[:length], window[length:]
        yield message
    if crc != group.crc:
        raise CorruptData(f"Messages in {part_name(source.part)} do not match their checksum.")


def _gathered(messages: Iterator[bytes]) -> Iterator[_Piece]:
    batch: list[bytes] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += len(message)
        if size >= SLICE_BYTES:
            yield b"".join(batch), list(map(len, batch))
            batch, size = [], 0
    if batch:
        yield b"".join(batch), list(map(len, batch))


class _Builder:
    """Cuts messages into slices, and keeps the index."""

    def __init__(self, number: int) -> None:
        self.merged = Merged()
        self._number = number
        self._at = HEAD_BYTES
        self._chunks: list[bytes] = []
        self._additions: list[Addition] = []
        self._in_chunk = 0

    def add(self, stream: str, pieces: Iterator[_Piece], fault: str | None) -> Iterator[bytes]:
        slices: list[Slice] = []
        waiting: list[bytes] = []
        lengths: list[int] = []
        size = 0
        for payload, sizes in pieces:
            if size and size + len(payload) > SLICE_BYTES:
                slices.append(self._slice(waiting, lengths))
                yield from waiting
                waiting, lengths, size = [], [], 0
            if len(payload) <= SLICE_BYTES:
                waiting.append(payload)
                lengths.extend(sizes)
                size += len(payload)
                continue
            for cut, some in _cut(payload, sizes):
                slices.append(self._slice([cut], some))
                yield cut
        if waiting:
            slices.append(self._slice(waiting, lengths))
            yield from waiting
        self._note(Addition(stream, slices, fault))

    def _slice(self, pieces: list[bytes], lengths: list[int]) -> Slice:
        crc = 0
        for piece in pieces:
            crc = crc32(piece, crc)
        slice_ = Slice(Stored(self._number, self._at, crc), lengths)
        size = sum(map(len, pieces))
        self._at += size
        self.merged.bytes += size
        self.merged.messages += len(lengths)
        self._in_chunk += len(lengths)
        return slice_

    def _note(self, addition: Addition) -> None:
        self.merged.streams += 1
        self._additions.append(addition)
        if self._in_chunk >= _CHUNK_MESSAGES or len(self._additions) >= _CHUNK_STREAMS:
            self._end_chunk()

    def _end_chunk(self) -> None:
        if self._additions:
            self._chunks.append(msgspec.msgpack.encode(self._additions))
        self._additions, self._in_chunk = [], 0

    def finish(self) -> Indexed:
        self._end_chunk()
        return Indexed(self._chunks, msgspec.msgpack.encode([]))


def _cut(payload: bytes, lengths: Sequence[int]) -> Iterator[tuple[bytes, list[int]]]:
    """Slices of about the wanted size, at the ends of messages."""
    start, at, some = 0, 0, list[int]()
    for length in lengths:
        if some and at + length - start > SLICE_BYTES:
            yield payload[start:at], some
            start, some = at, []
        some.append(length)
        at += length
    yield payload[start:at], some
