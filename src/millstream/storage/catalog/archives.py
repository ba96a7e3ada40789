"""The archive's part of the catalog: which chunk holds which changes of a bucket, and what has been lost since.

Both sides are here, for the connections of `CatalogReader` and `CatalogWriter`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple


class ArchiveUse(NamedTuple):
    archive: int
    bytes: int
    first_sequence: int
    last_sequence: int
    last_ms: int


class ArchivedChunk(NamedTuple):
    """Where a chunk lies and what it holds."""

    bucket: str
    last_sequence: int
    first_sequence: int
    last_ms: int
    archive: int
    at: int
    size: int
    rows: int
    bytes: int


class Loss(NamedTuple):
    """A stream that has lost messages which the archive may hold; `earliest` None: all of them."""

    stream: int
    bucket: str
    sequence: int
    earliest: int | None


_CHUNKS = (
    "SELECT bucket, last_sequence, first_sequence, last_ms, archive, at, size, row_count, bytes FROM archive_chunks"
)


class ArchiveShelf:
    """Looking up."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute

    def begins(self) -> tuple[int, int]:
        """The first sequence that the archive has, and the time of the last one it has dropped."""
        rows = self._execute("SELECT name, value FROM state WHERE name IN ('archive_from', 'archive_from_ms')")
        state: dict[str, int] = dict(rows.fetchall())
        return state.get("archive_from", 1), state.get("archive_from_ms", -1)

    def reaches(self) -> int:
        """The last sequence that the archive has."""
        row = self._execute("SELECT value FROM state WHERE name = 'applied'").fetchone()
        return 0 if row is None else int(row[0])

    def chunks(self, bucket: str, after: int, until: int, limit: int) -> list[ArchivedChunk]:
        """The bucket's chunks that hold sequences behind `after` and not behind `until`, in order."""
        rows = self._execute(
            f"{_CHUNKS} WHERE bucket = ? AND last_sequence > ? AND first_sequence <= ? ORDER BY last_sequence LIMIT ?",
            (bucket, after, until, limit),
        )
        return [ArchivedChunk(*row) for row in rows]

    def all_chunks(self) -> list[ArchivedChunk]:
        return [ArchivedChunk(*row) for row in self._execute(f"{_CHUNKS} ORDER BY archive, at")]

    def chunk_since(self, bucket: str, since_ms: int) -> ArchivedChunk | None:
        """The bucket's first chunk with a change committed at or after a time."""
        row = self._execute(
            f"{_CHUNKS} WHERE bucket = ? AND last_ms >= ? ORDER BY last_sequence LIMIT 1", (bucket, since_ms)
        ).fetchone()
        return None if row is None else ArchivedChunk(*row)

    def losses(self, bucket: str, after: int) -> dict[int, int | None]:
        """What streams of the bucket lost behind a sequence: the first offset each has kept, None for nothing."""
        rows = self._execute("SELECT stream, earliest FROM losses WHERE bucket = ? AND sequence > ?", (bucket, after))
        return dict(rows.fetchall())

    def totals(self) -> tuple[int, int]:
        """How many archive objects there are, and their bytes."""
        count, size = self._execute("SELECT count(*), coalesce(sum(bytes), 0) FROM archives").fetchone()
        return count, size


class ArchiveLedger:
    """Writing; inside the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany

    def add(self, use: ArchiveUse, chunks: Iterable[ArchivedChunk]) -> None:
        self._execute("INSERT INTO archives VALUES (?, ?, ?, ?, ?)", use)
        self._executemany("INSERT INTO archive_chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", chunks)

    def all(self) -> list[ArchiveUse]:
        """Oldest first."""
        return [ArchiveUse(*row) for row in self._execute("SELECT * FROM archives ORDER BY first_sequence")]

    def chunks_of(self, archives: list[int]) -> list[ArchivedChunk]:
        """Bucket by bucket, in commit order."""
        marks = ",".join("?" * len(archives))
        rows = self._execute(f"{_CHUNKS} WHERE archive IN ({marks}) ORDER BY bucket, last_sequence", archives)
        return [ArchivedChunk(*row) for row in rows]

    def remove(self, archives: Iterable[int]) -> None:
        rows = [(archive,) for archive in archives]
        self._executemany("DELETE FROM archive_chunks WHERE archive = ?", rows)
        self._executemany("DELETE FROM archives WHERE archive = ?", rows)

    def add_losses(self, losses: Iterable[Loss]) -> None:
        self._executemany("INSERT OR REPLACE INTO losses VALUES (?, ?, ?, ?)", losses)

    def forget_losses(self, before: int) -> None:
        """What was lost before the archive begins is nowhere in it."""
        self._execute("DELETE FROM losses WHERE sequence < ?", (before,))
