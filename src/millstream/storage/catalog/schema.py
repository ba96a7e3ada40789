"""The catalog's tables.

Streams, buckets and their like are kept as the bytes of their record (`model.records`), beside the few columns
that are searched: the record is spelled once, and adding a field to it changes no table.

Plain appends change no row of `streams`: a stream's last extent knows its tail as well, and tells it to whoever reads
the record (`stream_of`). With many streams a checkpoint would otherwise be busy with saying everything twice.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from ...model.records import StreamRecord
from ...model.timeline import Gap, Timeline

# 1: every record was up to date, extents had no ids, segments counted blocks instead of messages, none was shared
VERSION = 2
_records = msgspec.msgpack.Decoder(StreamRecord)

_TABLES = """
CREATE TABLE IF NOT EXISTS state (
    name TEXT PRIMARY KEY,       -- incarnations, applied, replay_from, next_segment, the clock's and the archive's
    value INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS clock_gaps (
    from_ms INTEGER PRIMARY KEY, -- commit times that were stepped over
    to_ms INTEGER NOT NULL
);

CREATE TABLE IF NOT EXISTS buckets (
    name TEXT PRIMARY KEY,
    record BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS streams (
    number INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,    -- bucket/name
    deadline_ms INTEGER,         -- of those that expire
    record BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS streams_by_deadline ON streams (deadline_ms) WHERE deadline_ms IS NOT NULL;

CREATE TABLE IF NOT EXISTS producers (
    stream INTEGER NOT NULL,
    id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (stream, id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS extents (
    stream INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    next_offset INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    at INTEGER NOT NULL,
    size INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL,
    last_ms INTEGER NOT NULL,
    last_id_ms INTEGER NOT NULL DEFAULT 0,
    last_id_seq INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (stream, first_offset)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS extents_by_segment ON extents (segment);

CREATE TABLE IF NOT EXISTS snapshot_objects (
    stream INTEGER PRIMARY KEY,
    name TEXT NOT NULL           -- of a large snapshot, in the object store
);

CREATE TABLE IF NOT EXISTS segments (
    segment INTEGER PRIMARY KEY,
    bytes INTEGER NOT NULL,      -- of the whole object
    block_bytes INTEGER NOT NULL,  -- of messages
    live_bytes INTEGER NOT NULL    -- of those that some extent reaches
);

CREATE TABLE IF NOT EXISTS archives (
    archive INTEGER PRIMARY KEY,
    bytes INTEGER NOT NULL,
    first_sequence INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL,
    last_ms INTEGER NOT NULL
);

CREATE TABLE IF NOT EXISTS archive_chunks (
    bucket TEXT NOT NULL,
    last_sequence INTEGER NOT NULL,
    first_sequence INTEGER NOT NULL,
    last_ms INTEGER NOT NULL,
    archive INTEGER NOT NULL,
    at INTEGER NOT NULL,
    size INTEGER NOT NULL,
    row_count INTEGER NOT NULL,
    bytes INTEGER NOT NULL,      -- of payload
    PRIMARY KEY (bucket, last_sequence)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS archive_chunks_by_archive ON archive_chunks (archive);

CREATE TABLE IF NOT EXISTS losses (
    stream INTEGER PRIMARY KEY,
    bucket TEXT NOT NULL,
    sequence INTEGER NOT NULL,   -- of the fact by which it lost messages that the archive still holds
    earliest INTEGER             -- the first offset it has kept; NULL: the stream is gone
);
CREATE INDEX IF NOT EXISTS losses_by_bucket ON losses (bucket, sequence);
"""


def create_tables(connection: sqlite3.Connection, version: int) -> None:
    """Make what a catalog of this version lacks; 0 for a new one."""
    connection.executescript(_TABLES)
    if version == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    if version == 1:
        connection.execute("ALTER TABLE extents ADD COLUMN last_id_ms INTEGER NOT NULL DEFAULT 0")
        connection.execute("ALTER TABLE extents ADD COLUMN last_id_seq INTEGER NOT NULL DEFAULT 0")
        connection.execute(_COUNT_MESSAGES)
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


# How much of the dead bytes was messages is not known any more; as much as of the live ones, then.
_COUNT_MESSAGES = """
UPDATE segments SET
    live_bytes = counted.live,
    block_bytes = max(counted.live, CAST(1.0 * block_bytes * counted.live / max(live_bytes, 1) AS INTEGER))
FROM (SELECT segment AS number, sum(next_offset - first_offset) AS live FROM extents GROUP BY segment) AS counted
WHERE segment = counted.number
"""


SELECT_STREAMS = (
    "SELECT s.record, e.next_offset, e.last_ms, e.last_id_ms, e.last_id_seq FROM streams s LEFT JOIN extents e"
    " ON e.stream = s.number AND e.first_offset = (SELECT max(first_offset) FROM extents WHERE stream = s.number)"
)


def stream_of(row: tuple[bytes, int | None, int, int, int]) -> StreamRecord:
    """What a row of `SELECT_STREAMS` says."""
    encoded, tail, written_ms, id_ms, id_seq = row
    record = _records.decode(encoded)
    if tail is not None and tail > record.tail:
        record.tail, record.written_ms, record.id_ms, record.id_seq = tail, written_ms, id_ms, id_seq
    return record


def read_timeline(connection: sqlite3.Connection) -> Timeline:
    state = dict(connection.execute("SELECT name, value FROM state"))
    gaps = [Gap(*row) for row in connection.execute("SELECT from_ms, to_ms FROM clock_gaps ORDER BY from_ms")]
    return Timeline(state.get("at_ms", 0), state.get("shift_ms", 0), state.get("offset_ms", 0), gaps)


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    mode = "ro" if read_only else "rwc"
    connection = sqlite3.connect(
        f"file:{path.absolute().as_posix()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA busy_timeout = 10000")
    return connection
