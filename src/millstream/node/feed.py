"""What happened in a bucket behind a position, in commit order: from the archive, then from what it has not yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ..model import facts
from ..model.changes import Entry
from ..model.errors import BadRequest, CorruptData, PositionGone, Unavailable
from ..model.facts import Fact
from ..model.names import split_key
from ..model.positions import SINGLE_SHARD, Position
from ..storage.archive.chunk import Chunk, ChunkStream, row_count, subject_of
from ..storage.archive.object import archive_name
from ..storage.catalog import CatalogReader
from ..storage.catalog.archives import ArchivedChunk
from ..storage.objects import LocalObjects
from ..storage.transactions.objects import whole_fact
from .damage import DamageBook
from .followers import Follower
from .recent import BucketTail, RecentChange, RecentFacts, losses_of
from .writer import Writer

log = logging.getLogger(__name__)

_CHUNKS_PER_PAGE = 16  # looked at before a page is given out, however little of it was wanted
_ATTEMPTS_MAX = 5

_T = TypeVar("_T")
Losses = Mapping[int, int | None]


class Page(NamedTuple):
    entries: list[Entry]
    next_sequence: int
    up_to_date: bool


class FeedWish(NamedTuple):
    """What of a bucket's changes a reader wants, and how much at a time."""

    bucket: str
    prefix: str
    with_data: bool
    limit: int
    bytes_max: int


class Feed:
    def __init__(
        self,
        recent: RecentFacts,
        catalog: CatalogReader,
        objects: LocalObjects,
        damage: DamageBook,
        writer: Writer,
        incarnation: int,
    ) -> None:
        self._recent = recent
        self._catalog = catalog
        self._shelf = catalog.archives
        self._objects = objects
        self._damage = damage
        self._writer = writer
        self._incarnation = incarnation

    # -- positions ---------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self._writer.committed_sequence

    @property
    def earliest(self) -> int:
        """The earliest sequence behind which a feed can start."""
        return self._shelf.begins()[0] - 1

    def token(self, sequence: int) -> str:
        return Position(self._incarnation, (sequence,)).token()

    def sequence_of(self, position: Position) -> int:
        """The sequence that a client's position means here, however old."""
        if position.incarnation != self._incarnation:
            raise PositionGone(
                "The position belongs to another log: this server was restored, or it is another one. Start from "
                "'earliest' or 'now'.",
                earliest_position=self.token(self.earliest),
            )
        if len(position.sequences) != 1 or position.sequences[SINGLE_SHARD] > self.now:
            raise BadRequest(
                "The position lies ahead of this server's log. Use one as it was returned, 'earliest' or 'now'.",
                code="bad_position",
            )
        return position.sequences[SINGLE_SHARD]

    def check_archived(self, after: int) -> None:
        if after < self.earliest:
            raise PositionGone(
                "The changes behind this position are no longer archived. Start from 'earliest', and read what is "
                "older with the bucket's 'messages'.",
                earliest_position=self.token(self.earliest),
            )

    async def sequence_before(self, bucket: str, since_ms: int) -> int:
        """Behind which sequence the changes start that were committed at or after a time."""
        begins, dropped_ms = self._shelf.begins()
        if since_ms <= dropped_ms:
            raise PositionGone(
                "The archive does not reach back to this time. Start from 'earliest'.",
                earliest_position=self.token(begins - 1),
            )
        for _ in range(_ATTEMPTS_MAX):
            place = self._shelf.chunk_since(bucket, since_ms)
            if place is None:
                await self._recent.sort()
                changes = self._recent.tail(bucket).changes
                return next((change.sequence - 1 for change in changes if change.at_ms >= since_ms), self.now)
            rows = await self._read(lambda: self._chunk(place).facts())  # noqa: B023 - awaited at once
            if rows is not None:
                return next(row.sequence - 1 for row in rows if row.at_ms >= since_ms)
        raise _moving()

    # -- pages -------------------------------------------------------------------------------------------

    async def page(self, wish: FeedWish, after: int) -> Page:
        """The next changes behind a sequence; raises where they are no longer archived."""
        await self._recent.sort()
        for _ in range(_ATTEMPTS_MAX):
            ready = self.page_now(wish, after)
            if ready is not None:
                return ready
            with self._catalog.one_moment():
                self.check_archived(after)
                end = self._shelf.reaches()
                places = self._shelf.chunks(wish.bucket, after, end, _CHUNKS_PER_PAGE)
                lost = self._losses(wish, after)
            if len(places) == _CHUNKS_PER_PAGE:
                end = places[-1].last_sequence
            collector = _Collector(wish, after)
            is_full = await self._read(lambda: self._collect(collector, places, lost))  # noqa: B023 - awaited at once
            if is_full:
                return Page(collector.entries, collector.end, False)
            if is_full is not None:
                return self._and_recent(wish, collector, end)
        raise _moving()

    def page_now(self, wish: FeedWish, after: int) -> Page | None:
        """The page if the archive is not needed for it."""
        if after < self._recent.after:
            return None
        return self._and_recent(wish, _Collector(wish, after), after)

    def _and_recent(self, wish: FeedWish, collector: _Collector, after: int) -> Page:
        """What was collected, and as much as fits of what is not archived yet."""
        now = self.now
        if after < self._recent.after:  # more chunks to go
            return Page(collector.entries, after, False)
        tail = self._recent.tail(wish.bucket)
        lost = tail.gone() if wish.with_data else {}
        changes = tail.changes
        for index in range(tail.behind(after), len(changes)):
            change = changes[index]
            if wish.with_data:
                change = change._replace(fact=self._whole(change.fact))
            if not collector.take_all(_recent_entries(change, wish, lost)):
                return Page(collector.entries, collector.end, False)
        return Page(collector.entries, now, True)

    def _whole(self, fact: Fact) -> Fact:
        """With the payload, where that lies in a transaction's object."""
        try:
            return whole_fact(self._objects, fact)
        except OSError as error:
            log.error("A transaction's object cannot be read: %s", error)
            raise Unavailable("The data cannot be read from disk now; the server's log has more.") from None

    def _losses(self, wish: FeedWish, after: int) -> Losses:
        if not wish.with_data:
            return {}
        return losses_of(self._shelf.losses(wish.bucket, after), self._recent.tail(wish.bucket).gone())

    def _collect(self, collector: _Collector, places: Sequence[ArchivedChunk], lost: Losses) -> bool:
        """Collect from chunks, in order, until the page is full; whether it became so."""
        after = collector.end
        for place in places:
            for change in _chunk_changes(self._chunk(place), collector.wish, after):
                if not collector.take_all(change.entries(lost)):
                    return True
        return False

    def _chunk(self, place: ArchivedChunk) -> Chunk:
        name = archive_name(place.archive)
        try:
            return Chunk(self._objects.get_range(name, place.at, place.size))
        except CorruptData as error:
            where = f"{name} at byte {place.at}"
            raise CorruptData(f"{where}: {error.message}", place=where) from None

    async def _read(self, reading: Callable[[], _T]) -> _T | None:
        """Read chunks in a thread; None where they were merged away or dropped since the catalog was asked."""
        try:
            return await asyncio.to_thread(reading)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.error("The archive cannot be read: %s", error)
            raise Unavailable("The archive cannot be read from disk now; the server's log has more.") from None
        except CorruptData as error:
            raise self._damage.found(error) from None

    # -- following ---------------------------------------------------------------------------------------

    async def tail(self, bucket: str) -> BucketTail:
        """What to follow for a bucket's changes."""
        await self._recent.sort()
        return self._recent.tail(bucket)

    def follow(self, tail: BucketTail, follower: Follower) -> None:
        self._recent.followers.follow(tail, follower)

    def leave(self, tail: BucketTail, follower: Follower) -> None:
        self._recent.followers.leave(tail, follower)


class _Collector:
    """Takes entries until a page is full."""

    def __init__(self, wish: FeedWish, after: int) -> None:
        self.entries: list[Entry] = []
        self.end = after  # the sequence of the last change taken
        self.wish = wish
        self._bytes = 0

    def take_all(self, entries: list[Entry]) -> bool:
        """Take the entries of one change, all or none; False when they do not fit any more."""
        if not entries:
            return True
        size = sum(entry.size for entry in entries)
        if self.entries and (
            len(self.entries) + len(entries) > self.wish.limit or self._bytes + size > self.wish.bytes_max
        ):
            return False
        self.entries += entries
        self._bytes += size
        self.end = entries[0].sequence
        return True


def _chunk_changes(chunk: Chunk, wish: FeedWish, after: int) -> Iterator[_Change]:
    # A snapshot may stand under its stream's name with another type: the stream itself comes first.
    names = {stream.number: stream for stream in reversed(chunk.names()[1])}
    if not wish.with_data:
        for row in chunk.facts():
            stream = names.get(subject_of(row.sequence, row.fact))
            if stream is not None and row.sequence > after and stream.name.startswith(wish.prefix):
                # How long the messages are nobody asks; whether there are any is all that counts.
                yield _Change(*row[:3], stream, row.fact, [0] * row_count(row.fact), None)
        return
    lengths, payload, place, at = chunk.columns().lengths, chunk.payload(), 0, 0
    for row in chunk.facts():
        count = row_count(row.fact)
        sizes = lengths[place : place + count].tolist()
        size = sum(sizes)
        stream = names.get(subject_of(row.sequence, row.fact))
        if stream is not None and row.sequence > after and stream.name.startswith(wish.prefix):
            yield _Change(*row[:3], stream, row.fact, sizes, payload[at : at + size])
        place, at = place + count, at + size


def _recent_entries(change: RecentChange, wish: FeedWish, lost: Losses) -> list[Entry]:
    name = split_key(change.stream.key)[1]
    if not name.startswith(wish.prefix):
        return []
    fact = change.fact
    sizes: list[int] = []
    data = None
    if isinstance(fact, facts.Appended):
        sizes = [facts.size_of(fact)] if fact.lengths is None else fact.lengths
        data = memoryview(fact.payload) if wish.with_data else None
    stream = ChunkStream(change.stream.number, name, change.stream.content_type)
    return _Change(change.sequence, change.at_ms, change.offset, stream, fact, sizes, data).entries(lost)


_KINDS: dict[type, str] = {
    facts.StreamCreated: "created",
    facts.Closed: "closed",
    facts.StreamDeleted: "deleted",
    facts.StreamExpired: "expired",
}


class _Change(NamedTuple):
    """A fact about a stream, from wherever it came. `sizes` are those of an append's messages, `data` their bytes if
    they are wanted."""

    sequence: int
    at_ms: int
    tail: int
    stream: ChunkStream
    fact: Fact
    sizes: list[int]
    data: memoryview | None

    def entries(self, lost: Losses) -> list[Entry]:
        """The change as a feed shows it: one entry, sometimes two, or none."""
        fact, tail = self.fact, self.tail
        if isinstance(fact, facts.Appended):
            entries = self._appended(fact.offset, lost) if self.sizes else []
            return [*entries, self._entry("closed", tail, tail)] if fact.closes else entries
        if isinstance(fact, facts.SnapshotPublished):
            return [self._entry("snapshot", fact.offset, fact.offset)]
        if isinstance(fact, facts.Trimmed):
            return [self._entry("trimmed", 0, fact.offset)]
        kind = _KINDS.get(type(fact))
        return [] if kind is None else [self._entry(kind, tail, tail)]

    def _appended(self, first: int, lost: Losses) -> list[Entry]:
        """Messages that are no longer kept are a gap before the others; without data nobody asks."""
        data = self.data
        if data is None:
            return [self._entry("appended", first, self.tail)]
        kept = lost.get(self.stream.number, 0)
        kept_from = self.tail if kept is None else kept
        messages: list[bytes] = []
        offset = start = first
        for size in self.sizes:
            if offset < kept_from:
                start = offset + size
            else:
                messages.append(bytes(data[offset - first : offset - first + size]))
            offset += size
        entries = [self._entry("gap", first, start)] if start > first else []
        return [*entries, self._entry("appended", start, self.tail, messages)] if messages else entries

    def _entry(self, kind: str, first: int, following: int, messages: list[bytes] | None = None) -> Entry:
        _, name, content_type = self.stream
        return Entry(self.sequence, self.at_ms, name, kind, first, following, content_type, messages)


def _moving() -> Unavailable:
    return Unavailable("The feed could not be served: its archive kept moving. Try again.")
