"""What clients of a simulated node were told and shown, and whether the node still says so."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import count

from millstream.engine.state import Stream

from .loop import LATENCY_MAX_S, SimulatedLoop
from .node import SimulatedNode, content

THINNING_S = 1.0  # of the TTLs there are: a restart makes up for so much that was not journaled
_CLOCK_S = 0.05  # what clocks may be off

_MESSAGE = re.compile(rb'"?<(\d+)\.x*>"?')


@dataclass(slots=True)
class Told:
    """What is known about one stream, that is about one number."""

    key: str
    ttl_s: int | None = None
    promised_s: float = float("-inf")  # somebody was told then that it lives for its TTL
    used_s: float = float("inf")  # nobody has renewed it since then, as far as anybody can know
    is_over: bool = False  # somebody was told so in this life
    acknowledged: dict[int, bytes] = field(default_factory=dict)  # by their offset
    seen: bytes = b""  # from the beginning on, the most that anybody was shown
    closed: bool = False
    deleted: bool = False
    may_be_gone: bool = False  # somebody asked for it to be deleted
    may_be_closed: bool = False
    trimmed: int = 0  # what lies before this is not kept, as somebody was told
    may_be_trimmed: int = 0  # the most that anybody asked for
    snapshot: tuple[int, bytes] | None = None  # the newest that somebody was told of: offset and bytes
    snapshots: dict[int, set[bytes]] = field(default_factory=dict)  # all that were asked for, by offset

    def must_be_there(self, now_s: float) -> bool:
        may_be_over = self.ttl_s is not None and now_s >= self.promised_s + self.ttl_s - _CLOCK_S
        return not (self.deleted or self.may_be_gone or may_be_over)

    def must_be_over(self, now_s: float) -> bool:
        return self.ttl_s is not None and now_s >= self.used_s + self.ttl_s + THINNING_S + _CLOCK_S


@dataclass(slots=True)
class Deal:
    """One transaction: the first message of what it brings to each of its streams."""

    firsts: list[int]
    is_known: bool = False  # to be committed, to somebody


class Oracle:
    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.streams: dict[int, Told] = {}
        self.batches: dict[int, list[int]] = {}  # messages that stand or fall together, by the first
        self.messages: dict[int, bytes] = {}
        self.deals: dict[tuple[str, int], Deal] = {}  # by application and version
        self._numbers = count(1)
        self.acknowledgements = 0
        self.deleted_below: dict[str, int] = {}  # streams with smaller numbers may have been deleted
        self.closed_below: dict[str, int] = {}

    # -- what clients note -------------------------------------------------------------------------------

    def mint(self, fillers: list[int], json: bool) -> list[bytes]:
        """New messages that stand or fall together."""
        numbers = [next(self._numbers) for _ in fillers]
        self.batches[numbers[0]] = numbers
        made = [b"<%d.%b>" % (number, b"x" * filler) for number, filler in zip(numbers, fillers, strict=True)]
        messages = [b'"%b"' % message for message in made] if json else made
        self.messages.update(zip(numbers, messages, strict=True))
        return messages

    def number_of(self, message: bytes) -> int:
        found = _MESSAGE.match(message)
        assert found
        return int(found[1])

    def stream(self, number: int, key: str) -> Told:
        """The account of a stream somebody was told about."""
        told = self.streams.get(number)
        if told is None:
            told = self.streams[number] = Told(key)
            told.may_be_gone = number < self.deleted_below.get(key, 0)
            told.may_be_closed = number < self.closed_below.get(key, 0)
        assert told.key == key, f"stream {number} was {told.key}, now it is {key}"
        return told

    def found(self, stream: Stream) -> Told:
        """The account of a stream that somebody sees."""
        is_new = stream.number not in self.streams
        told = self.stream(stream.number, stream.key)
        if is_new and stream.lease is not None:
            told.ttl_s, told.used_s = stream.lease.ttl_s, self._loop.now_s
        assert not told.is_over, f"{told.key} ({stream.number}) was over, and is back"
        if not stream.inflight:
            assert not told.must_be_over(self._loop.now_s), f"{told.key} ({stream.number}) stays, its time is up"
        return told

    def renewed(self, told: Told) -> None:
        """Who renewed it is told now."""
        told.promised_s = told.used_s = self._loop.now_s

    def used(self, key: str) -> None:
        """Somebody asks for something that may renew it, or is answered now."""
        for told in self.streams.values():
            if told.key == key and told.ttl_s is not None:
                told.used_s = self._loop.now_s

    def restarted(self, ahead_s: float) -> None:
        """Leases' time has gone on by so much more than what has passed, or less: somebody has set the machine's clock,
        and the log did not know. An answer that came late may not have been journaled, see docs/decisions/0021."""
        for told in self.streams.values():
            told.is_over = False
            told.promised_s -= max(ahead_s, 0.0) + 2 * LATENCY_MAX_S
            told.used_s += max(-ahead_s, 0.0)

    def acknowledge(self, told: Told, end: int, payload: bytes) -> None:
        start = end - len(payload)
        assert start >= 0, f"{told.key}: an append of {len(payload)} bytes ends at {end}"
        assert told.acknowledged.get(start) in (None, payload), f"{told.key}: offset {start} was given out twice"
        told.acknowledged[start] = payload
        self.acknowledgements += 1

    def show(self, told: Told, start: int, data: bytes) -> None:
        """A reader was shown these bytes. What was shown once is shown to everybody from then on, unless trimmed."""
        if start <= told.may_be_trimmed:
            told.seen = told.seen.ljust(start, b"?")
        assert start <= len(told.seen), f"{told.key}: a reader skipped from {len(told.seen)} to {start}"
        old = told.seen[start : start + len(data)]
        assert data.startswith(old), f"{told.key}: {old!r} at {start} became {data!r}"
        told.seen += data[len(old) :]

    def may_be_gone(self, key: str, next_number: int) -> None:
        self.deleted_below[key] = next_number
        for told in self.streams.values():
            told.may_be_gone = told.may_be_gone or told.key == key

    def may_be_closed(self, key: str, next_number: int) -> None:
        self.closed_below[key] = next_number
        for told in self.streams.values():
            told.may_be_closed = told.may_be_closed or told.key == key

    # -- what must be so ---------------------------------------------------------------------------------

    def check(self, node: SimulatedNode, now_s: float) -> None:
        """Compare everything with a node that has nothing in flight."""
        alive = {stream.number: stream for key in self._keys() if (stream := node.visible(key)) is not None}
        for number, told in self.streams.items():
            stream = alive.pop(number, None)
            if stream is None:
                assert not told.must_be_there(now_s), f"{told.key} ({number}) is gone"
                # For good, as its number is never used again. But a restart may move a deadline to later.
                told.deleted = told.deleted or told.ttl_s is None
            else:
                assert not told.deleted, f"{told.key} ({number}) is back"
                self.found(stream)
                self.check_stream(told, stream)
        for stream in alive.values():  # of a create that was never answered
            self.check_stream(self.found(stream), stream)
        self.check_deals(node)

    def check_stream(self, told: Told, stream: Stream) -> None:
        stored = content(stream, stream.earliest)
        assert stream.earliest + len(stored) == stream.tail, f"{told.key}: {len(stored)} bytes before {stream.tail}"
        self._check_kept(told, stream)
        self.show(told, stream.earliest, stored)
        assert len(told.seen) == stream.tail, f"{told.key}: {told.seen!r} was shown, now there is {stored!r}"
        for start, payload in told.acknowledged.items():
            if start >= stream.earliest:
                found = told.seen[start : start + len(payload)]
                assert found == payload, f"{told.key}: {payload!r} was acknowledged at {start}, there is {found!r}"
        assert stream.closed or not told.closed, f"{told.key} is open again"
        assert told.closed or told.may_be_closed or not stream.closed, f"{told.key} closed itself"
        told.closed = stream.closed
        self._check_messages(told, stored)

    def _check_kept(self, told: Told, stream: Stream) -> None:
        """The earliest kept offset and the snapshot are those that somebody asked for, and no older than promised."""
        kept = f"{told.key} is kept from {stream.earliest} on"
        assert told.trimmed <= stream.earliest <= told.may_be_trimmed, f"{kept}, told {told.trimmed}"
        told.trimmed = stream.earliest
        if stream.snapshot is None:
            assert told.snapshot is None, f"{told.key}: the snapshot at {told.snapshot} is gone"
            return
        offset, held = stream.snapshot.offset, stream.snapshot_hot
        assert held is not None, f"{told.key}: the bytes of the snapshot at {offset} are gone"
        assert held[1] in told.snapshots.get(offset, ()), f"{told.key}: nobody published {held[1]!r} at {offset}"
        if told.snapshot is not None:
            is_newer = offset > told.snapshot[0] or (offset, held[1]) == told.snapshot
            assert is_newer, f"{told.key}: {told.snapshot} was published, there is {held[1]!r} at {offset}"
        told.snapshot = (offset, held[1])

    def _check_messages(self, told: Told, stored: bytes) -> None:
        found = [(int(match[1]), match[0]) for match in _MESSAGE.finditer(stored)]
        assert b"".join(message for _, message in found) == stored, f"{told.key} holds half a message: {stored!r}"
        expected: list[int] = []
        for number, message in found:
            assert self.messages.get(number) == message, f"{told.key}: nobody sent {message!r}"
            if not expected:
                assert number in self.batches, f"{told.key}: half a batch, from {number} on"
                expected = list(self.batches[number])
            assert number == expected.pop(0), f"{told.key}: half a batch before {number}"
        assert not expected, f"{told.key}: half a batch, without {expected}"
        numbers = [number for number, _ in found]
        assert len(set(numbers)) == len(numbers), f"{told.key}: a message is there twice: {numbers}"

    def check_deals(self, node: SimulatedNode) -> None:
        """A transaction is there in all its streams or in none, at any moment, and the node remembers which."""
        if not self.deals:
            return
        streams = [stream for key in DEALS if (stream := node.visible(key)) is not None]
        found = {int(match[1]) for stream in streams for match in _MESSAGE.finditer(content(stream))}
        bucket = node.machine.find_bucket(DEALS_BUCKET)
        apps = bucket.apps or {} if bucket is not None else {}
        for (app, version), deal in self.deals.items():
            present = {number in found for number in deal.firsts}
            assert len(present) == 1, f"a half of transaction {version} of {app}"
            is_there = present == {True}
            assert is_there or not deal.is_known, f"transaction {version} of {app} is gone"
            is_remembered = app in apps and apps[app].version >= version
            assert is_there == is_remembered, f"transaction {version} of {app}: {is_there}, known as {apps.get(app)}"
            deal.is_known = is_there

    def _keys(self) -> set[str]:
        return {*KEYS, *DEALS}


JSON = "application/json"
TEXT = "text/plain"
FOLDED = "box/folded"  # has snapshots, which trim it
KEYS = {"box/plain": TEXT, FOLDED: TEXT, "box/json": JSON, "other/moody": TEXT, "box/produced": TEXT}
DEALS_BUCKET = "deal"
DEALS = {f"{DEALS_BUCKET}/{name}": TEXT for name in "abc"}  # where transactions append, and others as well
PRODUCED = "box/produced"  # never deleted nor closed: every word of its producers' answers is known beforehand
