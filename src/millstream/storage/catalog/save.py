"""Writing the catalog: one transaction per checkpoint or merge, set-based."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path

import msgspec

from ...model.errors import UnknownFormat
from ...model.facts import Producer
from ...model.records import BucketRecord, Extent, StreamRecord
from ...model.timeline import Timeline
from .archives import ArchiveLedger
from .schema import SELECT_STREAMS, VERSION, connect, create_tables, read_timeline, stream_of

_encode = msgspec.msgpack.Encoder().encode
_ASKED_MAX = 500  # rows that one query asks for
_INSERTED_MAX = 1000  # rows that one statement inserts: with 45 of them an extent took a quarter longer
_INTEGER_MAX = (1 << 63) - 1


class SegmentUse(msgspec.Struct, frozen=True):
    segment: int
    bytes: int
    block_bytes: int
    live_bytes: int


class CatalogWriter:
    """The only writer of the catalog; lives in the upkeep process."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path, read_only=False)
        self._values_max = self._connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version not in range(VERSION + 1):
            raise UnknownFormat(
                f"The catalog has format {version}; this version reads formats up to {VERSION}. "
                "Use the version that wrote it."
            )
        if version == 0:
            self._connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA cache_size = -16384")
        create_tables(self._connection, version)
        self.archives = ArchiveLedger(self._connection)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    # -- state ---------------------------------------------------------------------------------------

    def state(self, name: str, default: int) -> int:
        row = self._connection.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return default if row is None else int(row[0])

    def set_state(self, name: str, value: int) -> None:
        self._connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))

    def timeline(self) -> Timeline:
        return read_timeline(self._connection)

    def save_timeline(self, timeline: Timeline) -> None:
        for name in ("at_ms", "shift_ms", "offset_ms"):
            self.set_state(name, getattr(timeline, name))
        self._connection.execute("DELETE FROM clock_gaps")
        self._connection.executemany(
            "INSERT INTO clock_gaps VALUES (?, ?)", map(msgspec.structs.astuple, timeline.gaps)
        )

    # -- streams and buckets ---------------------------------------------------------------------------

    def streams_numbered(self, numbers: Iterable[int]) -> Iterator[StreamRecord]:
        for chunk in _chunks(list(numbers)):
            marks = ",".join("?" * len(chunk))
            rows = self._connection.execute(f"{SELECT_STREAMS} WHERE s.number IN ({marks})", chunk)
            yield from map(stream_of, rows)

    def bucket(self, name: str) -> BucketRecord | None:
        row = self._connection.execute("SELECT record FROM buckets WHERE name = ?", (name,)).fetchone()
        return None if row is None else msgspec.msgpack.decode(row[0], type=BucketRecord)

    def save_buckets(self, buckets: Iterable[BucketRecord]) -> None:
        for bucket in buckets:
            if bucket.deleted:
                self._connection.execute("DELETE FROM buckets WHERE name = ?", (bucket.name,))
            else:
                self._connection.execute("INSERT OR REPLACE INTO buckets VALUES (?, ?)", (bucket.name, _encode(bucket)))

    def save_streams(self, streams: Iterable[StreamRecord]) -> None:
        """Best in the order of their numbers, which is the order of the table."""
        self._insert(
            "INSERT INTO streams",
            ((s.number, s.key, _deadline(s), _encode(s)) for s in streams),
            " ON CONFLICT (number) DO UPDATE SET deadline_ms = excluded.deadline_ms, record = excluded.record",
        )

    def delete_streams(self, numbers: list[int]) -> None:
        rows = [(number,) for number in numbers]
        self._connection.executemany("DELETE FROM streams WHERE number = ?", rows)
        self._connection.executemany("DELETE FROM producers WHERE stream = ?", rows)
        self.forget_extents(stream for number in numbers for stream in (number, -number))

    def save_producers(self, stream: int, producers: Mapping[str, Producer]) -> None:
        self._connection.executemany(
            "INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?)",
            ((stream, p.id, p.epoch, p.seq) for p in producers.values()),
        )

    # -- snapshots ---------------------------------------------------------------------------------------

    def snapshot_objects(self, streams: Iterable[int]) -> dict[int, str]:
        """The large snapshots of these streams."""
        found: dict[int, str] = {}
        for chunk in _chunks(list(streams)):
            marks = ",".join("?" * len(chunk))
            rows = self._connection.execute(
                f"SELECT stream, name FROM snapshot_objects WHERE stream IN ({marks})", chunk
            )
            found.update(rows.fetchall())
        return found

    def save_snapshot_objects(self, names: Mapping[int, str | None]) -> None:
        """Note where large snapshots lie; None: the stream has no such one any more."""
        gone = ((stream,) for stream, name in names.items() if name is None)
        self._connection.executemany("DELETE FROM snapshot_objects WHERE stream = ?", gone)
        self._connection.executemany(
            "INSERT OR REPLACE INTO snapshot_objects VALUES (?, ?)",
            ((stream, name) for stream, name in names.items() if name is not None),
        )

    # -- extents and segments ----------------------------------------------------------------------------

    def add_segment(self, segment: int, size: int, extents: list[Extent]) -> None:
        self._insert("INSERT OR REPLACE INTO extents", _extent_rows(extents))
        self._connection.execute(
            "INSERT INTO segments (segment, bytes, block_bytes, live_bytes) VALUES (?1, ?2, ?3, ?3)",
            (segment, size, sum(extent.next_offset - extent.first_offset for extent in extents)),
        )

    def trim_extents(self, ends: Iterable[tuple[int, int]]) -> None:
        """Forget the blocks that lie wholly before an offset, for pairs of stream and offset."""
        rows = list(ends)
        self._connection.executemany(
            "UPDATE segments SET live_bytes = live_bytes -"
            " (SELECT coalesce(sum(next_offset - first_offset), 0) FROM extents"
            " WHERE extents.segment = segments.segment AND extents.stream = ?1 AND extents.next_offset <= ?2)"
            " WHERE segment IN (SELECT DISTINCT segment FROM extents WHERE stream = ?1 AND next_offset <= ?2)",
            rows,
        )
        self._connection.executemany("DELETE FROM extents WHERE stream = ? AND next_offset <= ?", rows)

    def forget_extents(self, streams: Iterable[int]) -> None:
        """Forget all blocks of these streams."""
        self.trim_extents((stream, _INTEGER_MAX) for stream in streams)

    def extents_of_segments(self, segments: list[int]) -> list[Extent]:
        """What still reaches into these segments, stream by stream."""
        marks = ",".join("?" * len(segments))
        rows = self._connection.execute(
            f"SELECT * FROM extents WHERE segment IN ({marks}) ORDER BY stream, first_offset",
            segments,
        )
        return [Extent(*row) for row in rows]

    def remove_extents(self, extents: Iterable[Extent]) -> None:
        self._connection.executemany(
            "DELETE FROM extents WHERE stream = ? AND first_offset = ?",
            ((extent.stream, extent.first_offset) for extent in extents),
        )

    def empty_segments(self, segments: list[int]) -> None:
        """These segments hold nothing live any more."""
        self._connection.executemany(
            "UPDATE segments SET live_bytes = 0 WHERE segment = ?", ((segment,) for segment in segments)
        )

    def segments(self) -> list[SegmentUse]:
        rows = self._connection.execute("SELECT segment, bytes, block_bytes, live_bytes FROM segments ORDER BY segment")
        return [SegmentUse(*row) for row in rows]

    def unreachable_segments(self) -> list[int]:
        """Segments that no extent reaches: garbage, by reachability and nothing else."""
        rows = self._connection.execute(
            "SELECT segment FROM segments WHERE NOT EXISTS"
            " (SELECT 1 FROM extents WHERE extents.segment = segments.segment)"
        )
        return [segment for (segment,) in rows]

    def forget_segments(self, segments: list[int]) -> None:
        self._connection.executemany("DELETE FROM segments WHERE segment = ?", ((s,) for s in segments))

    def give_back_space(self) -> None:
        """Return freed pages to the file system and memory to the machine, and keep the write-ahead file small."""
        self._connection.execute("PRAGMA incremental_vacuum(2000)").fetchall()
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._connection.execute("PRAGMA shrink_memory")

    def close(self) -> None:
        self._connection.close()

    def _insert(self, insert: str, rows: Iterable[tuple[object, ...]], otherwise: str = "") -> None:
        """Many rows with few statements: with one statement for each row a checkpoint of many streams takes longer."""
        remaining = iter(rows)
        while first := next(remaining, None):
            batch = [first, *islice(remaining, min(_INSERTED_MAX, self._values_max // len(first)) - 1)]
            marks = f"({','.join('?' * len(first))})"
            self._connection.execute(
                f"{insert} VALUES {','.join([marks] * len(batch))}{otherwise}", list(chain.from_iterable(batch))
            )


def _extent_rows(extents: list[Extent]) -> list[tuple[int, ...]]:
    rows = list(map(msgspec.structs.astuple, extents))
    if all(max(map(itemgetter(column), rows), default=0) <= _INTEGER_MAX for column in (-2, -1)):
        return rows
    # Clients' own ids may be larger than SQLite's integers. The records of such streams are saved, those count.
    return [row if max(row[-2:]) <= _INTEGER_MAX else (*row[:-2], 0, 0) for row in rows]


def _deadline(record: StreamRecord) -> int | None:
    return None if record.lease is None else record.lease.deadline_ms()


def _chunks(items: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(items), _ASKED_MAX):
        yield items[start : start + _ASKED_MAX]
