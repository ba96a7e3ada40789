"""Writes a small data directory with everything in it, and what must be read from it, by a real server:

    python -m tests.formats.write tests/formats/v1

Until the first release the directory of the current format may be written anew when the format grows. A directory that
a release has written is never touched again: a later format gets a folder of its own beside it.
"""

from __future__ import annotations

import base64
import json
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

from tests.conftest import ServerProcess
from tests.hostile.wire import ask, post, put, request
from tests.torture.harness import eventually, metric

SETTINGS: dict[str, object] = {
    "journal_file_bytes": "64KiB",
    "checkpoint_age_s": 0.2,
    "block_bytes": "1KiB",
    "part_bytes": "1KiB",
    "merge_segments_min": 2,
    "low_space_bytes": 0,
}
NEVER: dict[str, object] = {"checkpoint_age_s": 3600, "checkpoint_records": 10**6}
JSON = "application/json"
TEXT = "text/plain"
FLAT = "/v1/stream/formats"
BUCKETED = "/ds/formats-kept"


def write(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        server = ServerProcess(Path(scratch), SETTINGS)
        server.start()
        try:
            write_first_half(server.port)
            eventually(lambda: metric(server.port, "millstream_hot_bytes") == 0, "everything is in segments")
            write_second_half(server.port)
            eventually(lambda: metric(server.port, "millstream_hot_bytes") == 0, "everything is in segments")
            server.restart(NEVER)
            write_last_words(server.port)
            expected = [described(server.port, path) for path in paths()]
        finally:
            server.stop()
        keep(server.data_dir, folder)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def paths() -> list[str]:
    return [f"{FLAT}/{name}" for name in ("text", "json", "bytes", "closed", "produced", "leased")] + [
        f"{BUCKETED}/{name}" for name in ("folded", "listed", "committed")
    ]


def produce(port: int, seq: int) -> None:
    stamp = ("Producer-Id: p", "Producer-Epoch: 2", f"Producer-Seq: {seq}")
    post(port, f"{FLAT}/produced", b"%d," % seq, TEXT, *stamp, expected=200)


def write_first_half(port: int) -> None:
    """What the catalog and the segments hold, some of it from merged segments."""
    put(port, f"{FLAT}/text")
    put(port, f"{FLAT}/json", JSON)
    put(port, f"{FLAT}/bytes", "application/octet-stream")
    put(port, f"{FLAT}/produced")
    put(port, f"{FLAT}/gone")
    post(port, f"{FLAT}/text", "naïve café ".encode() * 200)
    post(port, f"{FLAT}/json", b'[{"a": 1.0}, "two", [3], null]', JSON)
    post(port, f"{FLAT}/bytes", bytes(range(256)) * 8, "application/octet-stream")
    produce(port, 0)
    post(port, f"{FLAT}/gone", b"enough for the journal to begin a new file " * 2000)
    assert ask(port, request("DELETE", f"{FLAT}/gone"), "DELETE").status == 204
    settings = json.dumps({"ttl_seconds": 10**9}).encode()
    assert ask(port, request("PUT", BUCKETED, "Content-Type: application/json", body=settings), "PUT").status == 201


def write_second_half(port: int) -> None:
    put(port, f"{FLAT}/closed")
    post(port, f"{FLAT}/closed", b"last words", TEXT, "Stream-Closed: true")
    put(port, f"{BUCKETED}/folded")
    post(port, f"{BUCKETED}/folded", b"one,two,")
    state = request("PUT", f"{BUCKETED}/folded/snapshot/8", "Content-Type: text/plain", body=b"folded: 2")
    assert ask(port, state, "PUT").status == 204
    post(port, f"{BUCKETED}/folded", b"three,")
    put(port, f"{BUCKETED}/listed")
    produce(port, 1)
    commit(port, 1)


def commit(port: int, version: int) -> None:
    target = f"{BUCKETED}/streams/transactions/job/{version}"
    rows = b"\n".join(b'{"stream":"committed","json":"row %d of %d"}' % (row, version) for row in range(3))
    assert (
        ask(port, request("PUT", f"{target}/0", "Content-Type: application/x-ndjson", body=rows), "PUT").status == 200
    )
    listed = b'{"parts":["0"],"create":true,"content_type":"application/json"}'
    assert ask(port, request("POST", target, "Content-Type: application/json", body=listed), "POST").status == 200


def write_last_words(port: int) -> None:
    """What only the journal holds, bodies in parts among it."""
    post(port, f"{FLAT}/text", b"and a body in parts " * 100)
    post(port, f"{FLAT}/json", b"[5, 6]", JSON)
    lease = request("PUT", f"{FLAT}/leased", "Content-Type: text/plain", "Stream-TTL: 2000000000", body=b"leased")
    assert ask(port, lease, "PUT").status == 201
    post(port, f"{BUCKETED}/folded", b"four,")
    produce(port, 2)
    commit(port, 2)


def described(port: int, path: str) -> dict[str, object]:
    """All that a client can learn about a stream."""
    head = ask(port, request("HEAD", path), "HEAD")
    assert head.status == 200, (path, head)
    snapshot = head.headers.get("stream-snapshot-offset")
    found = {
        "path": path,
        "content_type": head.headers["content-type"],
        "next_offset": head.headers["stream-next-offset"],
        "stream_id": head.headers["stream-id"],
        "closed": "stream-closed" in head.headers,
        "has_ttl": "stream-ttl" in head.headers,
        "snapshot_offset": snapshot,
        "content": _content(port, f"{path}?offset={snapshot or '-1'}"),
    }
    if snapshot is not None:
        found["snapshot"] = _content(port, f"{path}/snapshot/{snapshot}")
    return found


def _content(port: int, target: str) -> str:
    answer = ask(port, request("GET", target))
    assert answer.status == 200, (target, answer)
    return base64.b64encode(answer.body).decode()


def keep(data_dir: Path, folder: Path) -> None:
    """The directory without what a running server adds; the catalog in one file, whatever was in its log."""
    shutil.copytree(data_dir, folder / "data", ignore=shutil.ignore_patterns("lock", "catalog.db*"))
    source, target = sqlite3.connect(data_dir / "catalog.db"), sqlite3.connect(folder / "data" / "catalog.db")
    source.backup(target)
    target.execute("PRAGMA journal_mode = DELETE")
    target.execute("VACUUM")
    source.close()
    target.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
