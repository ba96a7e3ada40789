"""Looking things up in the catalog. Each look-up sees the newest checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ...model.records import BucketRecord, Extent, StreamRecord
from ...model.timeline import Timeline
from .archives import ArchiveShelf
from .schema import SELECT_STREAMS, connect, read_timeline, stream_of

_MAPPED_BYTES_MAX = 1 << 30
# In the order of the fields.
_EXTENT = (
    "stream, first_offset, next_offset, segment, at, size, messages, last_sequence, last_ms, last_id_ms, last_id_seq"
)
_buckets = msgspec.msgpack.Decoder(BucketRecord)


class CatalogReader:
    """A read-only connection; also the engine's `Shelf`."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path, read_only=True)
        self._connection.execute("PRAGMA cache_size = -16384")
        # Read where the kernel has it: a page of a listing touches a thousand of ours, each a system call otherwise.
        self._connection.execute(f"PRAGMA mmap_size = {_MAPPED_BYTES_MAX}")
        self._execute = self._connection.execute
        self.archives = ArchiveShelf(self._connection)

    def stream(self, key: str) -> StreamRecord | None:
        row = self._execute(f"{SELECT_STREAMS} WHERE s.key = ?", (key,)).fetchone()
        return None if row is None else stream_of(row)

    def stream_numbered(self, number: int) -> StreamRecord | None:
        row = self._execute(f"{SELECT_STREAMS} WHERE s.number = ?", (number,)).fetchone()
        return None if row is None else stream_of(row)

    def streams_between(self, first: str, before: str, limit: int) -> list[StreamRecord]:
        """Streams by key, from `first` on and before `before`."""
        rows = self._execute(
            f"{SELECT_STREAMS} WHERE s.key >= ? AND s.key < ? ORDER BY s.key LIMIT ?", (first, before, limit)
        )
        return list(map(stream_of, rows))

    def producer(self, number: int, producer_id: str) -> tuple[int, int] | None:
        row: tuple[int, int] | None = self._execute(
            "SELECT epoch, seq FROM producers WHERE stream = ? AND id = ?", (number, producer_id)
        ).fetchone()
        return row

    def bucket(self, name: str) -> BucketRecord | None:
        row = self._execute("SELECT record FROM buckets WHERE name = ?", (name,)).fetchone()
        return None if row is None else _buckets.decode(row[0])

    def buckets(self) -> list[BucketRecord]:
        return [_buckets.decode(record) for (record,) in self._execute("SELECT record FROM buckets")]

    def extents(self, number: int, start: int, end: int, limit: int) -> list[Extent]:
        """The blocks that hold offsets from `start` up to `end`, in order."""
        # The block that holds `start` may begin before it: it is the last one that begins at or before.
        rows = self._execute(
            f"SELECT {_EXTENT} FROM extents WHERE stream = ?1 AND first_offset < ?3 AND first_offset >= coalesce("
            " (SELECT max(first_offset) FROM extents WHERE stream = ?1 AND first_offset <= ?2), 0)"
            " ORDER BY first_offset LIMIT ?4",
            (number, start, end, limit),
        )
        return [Extent(*row) for row in rows]

    def count_messages(self, number: int, start: int, end: int, limit: int) -> tuple[int, int]:
        """How many messages the blocks hold that follow each other from `start` on, as far as they end before `end`,
        at most so many blocks; and where the last one ends. None if no block begins at `start`."""
        first, count, through = self._execute(
            "SELECT min(first_offset), sum(messages), max(next_offset) FROM (SELECT * FROM extents WHERE stream = ?1"
            " AND first_offset >= ?2 AND first_offset < ?3 AND next_offset <= ?3 ORDER BY first_offset LIMIT ?4)",
            (number, start, end, limit),
        ).fetchone()
        return (count, through) if first == start else (0, start)

    def extent_since(self, number: int, since_ms: int) -> Extent | None:
        """The first block that holds a message committed at or after a time."""
        row = self._execute(
            f"SELECT {_EXTENT} FROM extents WHERE stream = ? AND last_ms >= ? ORDER BY first_offset LIMIT 1",
            (number, since_ms),
        ).fetchone()
        return None if row is None else Extent(*row)

    def snapshot_objects(self) -> set[str]:
        """The names of all large snapshots."""
        return {name for (name,) in self._execute("SELECT name FROM snapshot_objects")}

    def expiring(self, after: tuple[int, int], before_ms: int, limit: int) -> list[tuple[int, int, str]]:
        """Deadline, number and key of streams whose recorded deadline has passed, behind (deadline, number)."""
        rows = self._execute(
            "SELECT deadline_ms, number, key FROM streams WHERE deadline_ms <= ? AND (deadline_ms, number) > (?, ?)"
            " ORDER BY deadline_ms, number LIMIT ?",
            (before_ms, *after, limit),
        )
        return rows.fetchall()

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """Every look-up inside sees the same state."""
        self._execute("BEGIN")
        try:
            yield
        finally:
            self._execute("COMMIT")

    def blocks_behind(self, first: str, before: str, after: int, through: int) -> Iterator[tuple[bytes, Extent | None]]:
        """Streams by key that existed at `through`: each record, perhaps without its latest appends, with each block
        that holds something behind `after`; with None if there is no such block."""
        rows = self._execute(
            f"SELECT s.record, {_EXTENT} FROM streams s LEFT JOIN extents e ON e.stream = s.number"
            " AND e.last_sequence > ?3 WHERE s.key >= ?1 AND s.key < ?2 AND s.number <= ?4"
            " ORDER BY s.key, e.first_offset",
            (first, before, after, through),
        )
        for record, *extent in rows:
            yield record, None if extent[0] is None else Extent(*extent)

    def has_tables(self) -> bool:
        return bool(self._execute("SELECT 1 FROM sqlite_master WHERE name = 'state'").fetchone())

    def state(self, name: str) -> int | None:
        row = self._execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])

    def timeline(self) -> Timeline:
        return read_timeline(self._connection)

    def segment_bytes(self) -> tuple[int, int, int]:
        """How many segments there are, their bytes, and how many of those are live."""
        row = self._execute("SELECT count(*), coalesce(sum(bytes), 0), coalesce(sum(live_bytes), 0) FROM segments")
        count, size, live = row.fetchone()
        return count, size, live

    def segment_numbers(self) -> list[int]:
        return [number for (number,) in self._execute("SELECT segment FROM segments ORDER BY segment")]

    def integrity(self) -> str:
        """ "ok", or what SQLite says is wrong."""
        return str(self._execute("PRAGMA quick_check(1)").fetchone()[0])

    def stream_count(self) -> int:
        return int(self._execute("SELECT count(*) FROM streams").fetchone()[0])

    def close(self) -> None:
        self._connection.close()
