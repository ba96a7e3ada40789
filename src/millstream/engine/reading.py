"""Which bytes answer a read, and where they lie. Chooses, fetches nothing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec

from ..model.errors import BadRequest, Gone
from ..model.ids import MessageId
from ..model.media import is_json
from ..model.offsets import BEGINNING, NOW
from .state import Hot, Stream


class Cut(msgspec.Struct, frozen=True, gc=False):
    """A run of whole messages, or of bytes: what one read returns.

    `pieces` are messages for a JSON stream, and otherwise pieces of the byte range in any division.
    """

    start: int
    end: int
    pieces: list[bytes]


def resolve_offset(stream: Stream, offset: int) -> int:
    """The real offset behind a requested one, or why it cannot be read."""
    if offset == NOW:
        return stream.tail
    if offset == BEGINNING and (stream.earliest == 0 or stream.snapshot is None):
        return stream.earliest
    if offset > stream.tail:
        raise BadRequest(
            f"The offset lies beyond the stream's tail, {stream.tail:020d}. "
            "If the stream was deleted and created again, start from -1.",
            code="offset_beyond_tail",
        )
    if offset < stream.earliest:
        raise Gone(
            "That part of the history is no longer kept. Start with the bootstrap, or from the earliest kept offset.",
            code="offset_trimmed",
            earliest=stream.earliest,
            key=stream.key,
        )
    return offset


def cut_hot(stream: Stream, start: int, bytes_max: int) -> Cut:
    """Read from memory; `start` must not lie before the hot tail."""
    hot = stream.hot
    if not hot or start >= stream.tail:
        return Cut(start, start, [])
    assert start >= hot[0].offset, (start, hot[0].offset)
    first = bisect_right(hot, start, key=_offset) - 1 if start > hot[0].offset else 0
    if is_json(stream.content_type):
        return _cut_messages(hot, first, start, bytes_max)
    return _cut_bytes(hot, first, start, bytes_max)


def cut_messages(stream: Stream, start: int, bytes_max: int) -> Cut:
    """Read whole messages from memory, one piece each; `start` must be a boundary in the hot tail."""
    hot = stream.hot
    if not hot or start >= stream.tail:
        return Cut(start, start, [])
    return _cut_messages(hot, bisect_right(hot, start, key=_offset) - 1, start, bytes_max)


def hot_boundary(stream: Stream, offset: int) -> int:
    """The last place at or before an offset of the hot tail where a message begins."""
    hot = stream.hot
    assert hot
    record = hot[bisect_right(hot, offset, key=_offset) - 1]
    return last_boundary(record.offset, record.lengths or (), offset)


def last_boundary(first_offset: int, lengths: Sequence[int], offset: int) -> int:
    """The last place at or before an offset where one of these messages begins or ends."""
    places = list(accumulate(lengths, initial=first_offset))
    return places[bisect_right(places, offset) - 1]


def hot_piece_end(stream: Stream, start: int, bytes_max: int, messages_max: int) -> int:
    """Where to stop for about so much of the hot tail, with a whole append."""
    hot = stream.hot
    assert hot
    first = bisect_right(hot, start, key=_offset) - 1
    end, messages = start, 0
    for index in range(first, len(hot)):
        record = hot[index]
        end = record.next_offset
        messages += 1 if record.lengths is None else len(record.lengths)
        if end - start >= bytes_max or messages >= messages_max:
            break
    return end


def count_hot(stream: Stream, start: int, end: int, records_max: int) -> tuple[int, int]:
    """How many messages of the hot tail begin from `start` on, up to `end` or so many appends; and where that ends."""
    hot = stream.hot
    assert hot
    first = bisect_right(hot, start, key=_offset) - 1
    count = 0
    for record in hot[first : first + records_max]:
        if record.offset >= end:
            break
        if start <= record.offset and record.next_offset <= end:
            count += 1 if record.lengths is None else len(record.lengths)
        else:
            count += count_between(record.offset, record.lengths or (), start, end)
        start = record.next_offset
    return count, min(start, end)


def count_between(first_offset: int, lengths: Sequence[int], start: int, end: int) -> int:
    """How many of these messages begin from `start` on and before `end`."""
    places = list(accumulate(lengths[:-1], initial=first_offset))
    return bisect_left(places, end) - bisect_left(places, start)


def _offset(record: Hot) -> int:
    return record.offset


def _cut_bytes(hot: Sequence[Hot], first: int, start: int, bytes_max: int) -> Cut:
    """Whole records while they fit; a single one that does not is cut where the budget ends."""
    last = hot[-1]
    if start == hot[first].offset and last.next_offset - start <= bytes_max:
        pieces = [record.payload for record in (hot[first:] if first else hot)]
        return Cut(start, last.next_offset, pieces)
    pieces = []
    end = start
    for index in range(first, len(hot)):
        record = hot[index]
        fits = record.next_offset - start <= bytes_max
        if not fits and pieces:
            break
        payload = record.payload if end == record.offset else record.payload[end - record.offset :]
        pieces.append(payload if fits else payload[:bytes_max])
        end += len(pieces[-1])
        if not fits:
            break
    return Cut(start, end, pieces)


def _cut_messages(hot: Sequence[Hot], first: int, start: int, bytes_max: int) -> Cut:
    pieces: list[bytes] = []
    end = start
    for index in range(first, len(hot)):
        record = hot[index]
        if record.lengths is None and end == record.offset:
            messages = [record.payload]
        else:
            lengths = record.lengths if record.lengths is not None else [len(record.payload)]
            messages = split_messages(record.payload, lengths, end - record.offset)
        end, full = take_messages(messages, pieces, start, end, bytes_max)
        if full:
            break
    return Cut(start, end, pieces)


def split_messages(payload: bytes | memoryview, lengths: Sequence[int], skip: int) -> list[bytes]:
    """The messages after the first `skip` bytes, which must end with a message."""
    if not skip:
        data = bytes(payload)
        return [data[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
    messages: list[bytes] = []
    at = 0
    for length in lengths:
        if at >= skip:
            messages.append(bytes(payload[at : at + length]))
        at += length
        if at > skip and not messages:
            raise BadRequest(
                "The offset lies inside a message. Use a Stream-Next-Offset value as it was returned.",
                code="offset_not_a_boundary",
            )
    return messages


def take_messages(messages: list[bytes], pieces: list[bytes], start: int, end: int, bytes_max: int) -> tuple[int, bool]:
    """Move messages to `pieces` while they fit, at least one in all; the new end, and whether it is full."""
    size = sum(map(len, messages))
    if end + size - start <= bytes_max:
        pieces.extend(messages)
        return end + size, False
    for message in messages:
        if pieces and end + len(message) - start > bytes_max:
            return end, True
        pieces.append(message)
        end += len(message)
    return end, end - start >= bytes_max


class Records(msgspec.Struct, frozen=True, gc=False):
    """Whole messages with their ids: parallel lists, and where the next message lies."""

    end: int
    payloads: list[bytes]
    ids_ms: list[int]
    id_seqs: list[int]


def records_hot(stream: Stream, start: int, count_max: int, bytes_max: int) -> Records:
    """Messages from memory: at least one if there is one, however large. `start` must be a message's place."""
    found = Records(start, [], [], [])
    hot = stream.hot
    if not hot or start >= stream.tail:
        return found
    first = bisect_right(hot, start, key=_offset) - 1 if start > hot[0].offset else 0
    payloads, ids_ms, id_seqs = found.payloads, found.ids_ms, found.id_seqs
    end = start
    for index in range(first, len(hot)):
        record = hot[index]
        lengths = record.lengths
        following = record.next_offset
        fits = following - start <= bytes_max
        if lengths is None:
            if payloads and not (fits and len(payloads) < count_max):
                break
            payloads.append(record.payload)
            ids_ms.append(record.id_ms)
            id_seqs.append(record.id_seq)
            end = following
        elif fits and end == record.offset and len(payloads) + len(lengths) <= count_max:
            payload, starts = record.payload, accumulate(lengths, initial=0)
            payloads += [payload[at : at + length] for length, at in zip(lengths, starts, strict=False)]
            ids_ms += [record.id_ms] * len(lengths)
            id_seqs += range(record.id_seq, record.id_seq + len(lengths))
            end = following
        else:
            end = _take_part(record, lengths, Room(start, end, count_max, bytes_max), found)
            if end != following:
                break
    return Records(end, payloads, ids_ms, id_seqs)


class Room(NamedTuple):
    """How far a read has come, and how far it may."""

    start: int
    end: int
    count_max: int
    bytes_max: int


def _take_part(record: Hot, lengths: Sequence[int], room: Room, found: Records) -> int:
    """The messages of one append from `room.end` on, as far as they fit; where it ended."""
    at, end = record.offset, room.end
    payload = record.payload
    for index, length in enumerate(lengths):
        if at >= end:
            full = len(found.payloads) >= room.count_max or end + length - room.start > room.bytes_max
            if found.payloads and full:
                return end
            found.payloads.append(payload[at - record.offset : at - record.offset + length])
            found.ids_ms.append(record.id_ms)
            found.id_seqs.append(record.id_seq + index)
            end += length
        at += length
    return end


def hot_offset_after(hot: Sequence[Hot], last: MessageId) -> int | None:
    """Where in memory the first message with a later id lies; None if it may lie before all of memory."""
    index = bisect_right(hot, tuple(last), key=_first_id)
    if index == 0:
        return None
    record = hot[index - 1]
    if record.lengths is None or record.id_ms < last.ms:
        return record.next_offset  # messages of one append differ in seq alone
    return record.offset + sum(record.lengths[: last.seq - record.id_seq + 1])


def _first_id(record: Hot) -> tuple[int, int]:
    return record.id_ms, record.id_seq
