"""What streams hold in memory until segments have it: messages, and small snapshots. All of it is counted."""

from __future__ import annotations

from bisect import bisect_right

from ..model.facts import Appended, size_of
from .state import Hot, HotRecord, Payloads, StoredRecord, Stream


class HotTail:
    def __init__(self, payloads: Payloads | None) -> None:
        self.bytes = 0
        self._payloads = payloads

    def keep(self, stream: Stream, fact: Appended, sequence: int, at_ms: int) -> HotRecord:
        """An append as it was sent."""
        record = HotRecord(fact.offset, fact.payload, fact.lengths, at_ms, fact.id_ms, fact.id_seq, sequence)
        if stream.hot is None:
            stream.hot = [record]
        else:
            stream.hot.append(record)
        self.bytes += len(fact.payload)
        return record

    def keep_upload(self, stream: Stream, fact: Appended, sequence: int, at_ms: int, payload: bytes) -> None:
        """An append whose payload came in parts before it."""
        assert len(payload) == size_of(fact), (stream.key, fact.upload)
        self._add(stream, HotRecord(fact.offset, payload, fact.lengths, at_ms, fact.id_ms, fact.id_seq, sequence))

    def keep_stored(self, stream: Stream, fact: Appended, sequence: int, at_ms: int) -> None:
        """An append whose payload lies in a transaction's object."""
        assert self._payloads is not None
        assert fact.stored is not None
        assert fact.lengths is not None
        ids, size = (fact.id_ms, fact.id_seq), size_of(fact)
        self._add(
            stream,
            StoredRecord(fact.offset, size, fact.lengths, at_ms, *ids, sequence, fact.stored, self._payloads),
        )

    def _add(self, stream: Stream, record: Hot) -> None:
        if stream.hot is None:
            stream.hot = []
        stream.hot.append(record)
        self.bytes += record.weight

    def hold_snapshot(self, stream: Stream, held: tuple[int, bytes] | None) -> None:
        """Keep a small snapshot, with its sequence, in the place of the one before."""
        if stream.snapshot_hot is not None:
            self.bytes -= len(stream.snapshot_hot[1])
        if held is not None:
            self.bytes += len(held[1])
        stream.snapshot_hot = held

    def drop_trimmed(self, stream: Stream) -> None:
        hot = stream.hot
        if hot is not None and hot[0].next_offset <= stream.earliest:
            self._drop_first(stream, bisect_right(hot, stream.earliest, key=_next_offset))

    def drop_through(self, stream: Stream, sequence: int, at_most: int) -> int:
        """Segments have everything up to here: let that go, so many records at most. How many went."""
        hot = stream.hot
        if hot is None:
            return 0
        count = len(hot) if stream.changed <= sequence else bisect_right(hot, sequence, key=_sequence)
        count = min(count, at_most)
        self._drop_first(stream, count)
        return count

    def free(self, stream: Stream) -> None:
        self._drop_first(stream, len(stream.hot or ()))

    def _drop_first(self, stream: Stream, count: int) -> None:
        hot = gone = stream.hot or []
        if count >= len(hot):
            stream.hot = None
        else:
            gone = hot[:count]
            del hot[:count]
        self.bytes -= sum([len(r.payload) if type(r) is HotRecord else r.weight for r in gone])


def _sequence(record: Hot) -> int:
    return record.sequence


def _next_offset(record: Hot) -> int:
    return record.next_offset
