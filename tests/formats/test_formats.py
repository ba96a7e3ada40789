"""A data directory of every format there was opens and holds what it held; any other is refused with the way on."""

from __future__ import annotations

import base64
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import ServerProcess, StartServer, clean_environment
from tests.hostile.wire import ask, post, request
from tests.torture.harness import eventually, metric

from millstream.storage.checksum import crc32

from .write import FLAT, described, paths, produce, write

FOLDERS = sorted(path for path in Path(__file__).parent.iterdir() if (path / "expected.json").exists())


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a directory that was written long ago, where a server looks for its own."""
    shutil.copytree(request.param / "data", tmp_path / "data")
    return tmp_path


def expected(folder: Path) -> list[dict[str, object]]:
    return json.loads((folder / "expected.json").read_text())


def found(port: int) -> list[dict[str, object]]:
    return [described(port, path) for path in paths()]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_old_directory_opens_and_holds_what_it_held(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "data", tmp_path / "data")
    server = ServerProcess(tmp_path, {"low_space_bytes": 0, "checkpoint_age_s": 0.1})
    server.start()
    try:
        assert found(server.port) == expected(folder)
        check_it_goes_on(server)
        server.kill()
        server.start()
        check_it_went_on(server)
    finally:
        server.stop()


def check_it_goes_on(server: ServerProcess) -> None:
    """It is written to like any other, and what is rewritten on the way stays the same."""
    before = ask(server.port, request("GET", f"{FLAT}/bytes")).body
    post(server.port, f"{FLAT}/text", b"more")
    produce(server.port, 3)
    eventually(lambda: metric(server.port, "millstream_hot_bytes") == 0, "everything is in segments")
    assert ask(server.port, request("GET", f"{FLAT}/bytes")).body == before
    assert ask(server.port, request("GET", f"{FLAT}/gone")).status == 404
    assert (
        ask(server.port, request("POST", f"{FLAT}/closed", "Content-Type: text/plain", body=b"x"), "POST").status == 409
    )


def check_it_went_on(server: ServerProcess) -> None:
    assert ask(server.port, request("GET", f"{FLAT}/text")).body.endswith(b"in parts more")
    assert ask(server.port, request("GET", f"{FLAT}/produced")).body == b"0,1,2,3,"


def test_its_feed_goes_back_to_its_beginning(written: Path) -> None:
    """The archive has what happened, whichever way it was written down."""
    server = ServerProcess(written, {"low_space_bytes": 0, "archive_age_s": 1e9})
    server.start()
    try:
        feed = json.loads(ask(server.port, request("GET", "/ds/formats/streams/feed?data=true")).body)
        kinds = [entry["kind"] for entry in feed["entries"] if entry["stream"] == "gone"]
        assert kinds == ["created", "gap", "deleted"]
        appends = [entry for entry in feed["entries"] if entry["stream"] == "text" and entry["kind"] == "appended"]
        assert len(appends) == 2
        told = b"".join(base64.b64decode(message) for entry in appends for message in entry["messages"])
        assert told == ask(server.port, request("GET", f"{FLAT}/text")).body
    finally:
        server.stop()


def test_a_doctor_finds_it_healthy(written: Path) -> None:
    command = [sys.executable, "-m", "millstream", "doctor", "--data-dir", str(written / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_written_today_reads_the_same(tmp_path: Path) -> None:
    """Apart from names and times: so the folder of the next format can be made the same way."""
    write(tmp_path / "now")
    now, kept = expected(tmp_path / "now"), expected(FOLDERS[-1])
    for one in (*now, *kept):
        del one["stream_id"]
    assert now == kept


# --- formats that this version does not know


def stamp_directory(data: Path) -> None:
    (data / "format.json").write_text('{"format":2,"software":"millstream"}\n')


def stamp_catalog(data: Path) -> None:
    catalog = sqlite3.connect(data / "catalog.db")
    catalog.execute("PRAGMA user_version = 3")
    catalog.close()


def stamp_journal(data: Path) -> None:
    path = sorted((data / "journal").glob("*.log"))[-1]
    content = bytearray(path.read_bytes())
    content[8:10] = (2).to_bytes(2, "little")
    content[12:16] = crc32(content[8:12] + content[16:48]).to_bytes(4, "little")
    path.write_bytes(content)


def stored(data: Path) -> dict[str, bytes]:
    return {
        path.relative_to(data).as_posix(): path.read_bytes()
        for path in sorted(data.rglob("*"))
        if path.is_file() and path.name not in ("lock", "catalog.db-wal", "catalog.db-shm")
    }


@pytest.mark.parametrize("stamp", [stamp_directory, stamp_catalog, stamp_journal])
def test_an_unknown_format_is_refused_with_the_way_on_and_not_touched(
    written: Path, stamp: Callable[[Path], None]
) -> None:
    data = written / "data"
    stamp(data)
    before = stored(data)
    command = [sys.executable, "-m", "millstream", "serve", "--listen", "127.0.0.1:0", "--s3p-listen", "none"]
    command += ["--data-dir", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=clean_environment())
    assert done.returncode == 1, done.stderr
    assert re.search(r"has format [23]; this version", done.stderr)
    assert "Use the version that wrote it" in done.stderr
    assert "Traceback" not in done.stderr
    assert stored(data) == before


def test_a_new_directory_has_the_newest_format_that_is_kept_here(server: StartServer) -> None:
    fresh = server().data_dir / "format.json"
    assert json.loads(fresh.read_text()) == json.loads((FOLDERS[-1] / "data" / "format.json").read_text())
