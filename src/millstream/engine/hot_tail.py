"""What is in memory until segments have it: messages, small snapshots, and bodies on their way. All of it is counted.

What a stream loses before a checkpoint stays in memory until that checkpoint all the same, for those who follow its
bucket. It counts for as long: otherwise memory would grow with what is created and deleted.
"""

from __future__ import annotations

from bisect import bisect_right

from ..model.facts import Appended, size_of
from .state import Hot, HotRecord, Payloads, StoredRecord, Stream


class HotTail:
    def __init__(self, payloads: Payloads | None) -> None:
        self.bytes = 0
        self.uploads: dict[int, list[bytes]] = {}
        self._payloads = payloads
        self._saved = 0  # the catalog has everything up to this sequence
        self._cut_at = 0  # a checkpoint up to this one is under way
        self._lost_before_cut = 0  # bytes that streams have lost, and that this checkpoint frees
        self._lost_since = 0  # those that the next one frees

    @property
    def held_bytes(self) -> int:
        """All that is in memory, also what streams have lost."""
        return self.bytes + self._lost_before_cut + self._lost_since

    def keep(self, stream: Stream, fact: Appended, sequence: int, at_ms: int) -> HotRecord:
        """An append as it was sent."""
        record = HotRecord(fact.offset, fact.payload, fact.lengths, at_ms, fact.id_ms, fact.id_seq, sequence)
        if stream.hot is None:
            stream.hot = [record]
        else:
            stream.hot.append(record)
        self.bytes += len(fact.payload)
        return record

    def add_part(self, upload: int, payload: bytes) -> None:
        self.uploads.setdefault(upload, []).append(payload)
        self.bytes += len(payload)

    def take_upload(self, upload: int) -> bytes:
        """The parts of an upload, joined; they are not kept as such any more."""
        payload = b"".join(self.uploads.pop(upload, ()))
        self.bytes -= len(payload)
        return payload

    def keep_upload(self, stream: Stream, fact: Appended, sequence: int, at_ms: int) -> None:
        """An append whose payload came in parts before it."""
        assert fact.upload is not None
        payload = self.take_upload(fact.upload)
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
            self._lose(stream.snapshot_hot[0], len(stream.snapshot_hot[1]))
        if held is not None:
            self.bytes += len(held[1])
        stream.snapshot_hot = held

    def drop_trimmed(self, stream: Stream) -> None:
        hot = stream.hot
        if hot is not None and hot[0].next_offset <= stream.earliest:
            for record in self._drop_first(stream, bisect_right(hot, stream.earliest, key=_next_offset)):
                self._lose(record.sequence, record.weight)

    def drop_through(self, stream: Stream, sequence: int, at_most: int) -> int:
        """Segments have everything up to here: let that go, so many records at most. How many went."""
        hot = stream.hot
        if hot is None:
            return 0
        count = len(hot) if stream.changed <= sequence else bisect_right(hot, sequence, key=_sequence)
        count = min(count, at_most)
        gone = self._drop_first(stream, count)
        self.bytes -= sum([len(r.payload) if type(r) is HotRecord else r.weight for r in gone])
        return count

    def free(self, stream: Stream) -> None:
        for record in self._drop_first(stream, len(stream.hot or ())):
            self._lose(record.sequence, record.weight)

    def cut(self, sequence: int) -> None:
        """A checkpoint up to here begins."""
        self._cut_at = sequence
        self._lost_before_cut, self._lost_since = self._lost_before_cut + self._lost_since, 0

    def cut_is_saved(self) -> None:
        self._saved, self._lost_before_cut = self._cut_at, 0

    def _lose(self, sequence: int, weight: int) -> None:
        self.bytes -= weight
        if sequence > self._cut_at:
            self._lost_since += weight
        elif sequence > self._saved:
            self._lost_before_cut += weight

    def _drop_first(self, stream: Stream, count: int) -> list[Hot]:
        hot = gone = stream.hot or []
        if count >= len(hot):
            stream.hot = None
        else:
            gone = hot[:count]
            del hot[:count]
        return gone


def _sequence(record: Hot) -> int:
    return record.sequence


def _next_offset(record: Hot) -> int:
    return record.next_offset
