"""The data directory: one process at a time, one format."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import pytest

from millstream.model.errors import DirectoryInUse, UnknownFormat
from millstream.storage.data_dir import DataDir, lock_directory
from millstream.storage.files import Files

from .faulty_files import FaultyFiles, PowerCut


@pytest.fixture
def place(tmp_path):
    return DataDir(tmp_path / "data")


def test_a_fresh_directory_is_made_and_stamped(place):
    lock = lock_directory(place)
    place.prepare(Files())
    assert json.loads(place.stamp.read_bytes()) == {"format": 1, "software": "millstream"}
    assert place.journal.is_dir()
    assert place.objects.is_dir()
    assert sorted(path.name for path in place.root.iterdir()) == ["format.json", "journal", "lock", "objects"]
    place.prepare(Files())  # once more changes nothing
    os.close(lock)


def test_the_names_of_all_new_folders_are_synced(tmp_path, monkeypatch):
    """Or a power cut could take a directory away in which writes were acknowledged."""
    synced = []
    monkeypatch.setattr(Files, "sync_directory", lambda _, path: synced.append(path))
    place = DataDir(tmp_path / "var" / "lib" / "data")
    lock = lock_directory(place)
    assert set(synced) == {tmp_path, tmp_path / "var", tmp_path / "var" / "lib"}
    place.prepare(Files())
    assert place.root in synced
    os.close(lock)


def test_a_second_lock_is_refused_until_the_first_is_let_go(place):
    lock = lock_directory(place)
    with pytest.raises(DirectoryInUse, match="Another process uses"):
        lock_directory(place, patience_s=0.05)
    os.close(lock)
    os.close(lock_directory(place, patience_s=0))


def test_a_lock_that_is_let_go_in_time_is_waited_for(place):
    """A killed server's helper may need a moment to notice."""
    place.root.mkdir()
    holder = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); time.sleep(.2)"
    process = subprocess.Popen([sys.executable, "-c", holder, place.lock], stdout=subprocess.PIPE)
    process.stdout.readline()
    os.close(lock_directory(place, patience_s=10))
    process.communicate()


def test_a_child_that_inherited_the_lock_keeps_it(place):
    lock = lock_directory(place)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock,))
    os.close(lock)
    with pytest.raises(DirectoryInUse):
        lock_directory(place, patience_s=0.05)
    child.communicate(b"\n")
    os.close(lock_directory(place))


@pytest.mark.parametrize("stamp", [b'{"format": 2}', b'{"format": 99, "software": "millstream"}'])
def test_another_format_is_refused_by_its_number(place, stamp):
    place.root.mkdir()
    place.stamp.write_bytes(stamp)
    with pytest.raises(UnknownFormat, match=r"has format (2|99); this version of millstream reads format 1"):
        place.prepare(Files())
    assert place.stamp.read_bytes() == stamp


@pytest.mark.parametrize("stamp", [b"", b"{", b"[]", b'{"format": "one"}', b"\xff\xfe", b"{}"])
def test_a_stamp_that_cannot_be_read_is_refused(place, stamp):
    place.root.mkdir()
    place.stamp.write_bytes(stamp)
    with pytest.raises(UnknownFormat, match="cannot be read"):
        place.prepare(Files())


def test_the_stamp_is_whole_or_absent_after_any_power_cut(tmp_path):
    for cut in range(1, 12):
        disk = tmp_path / str(cut)
        disk.mkdir()
        files = FaultyFiles(disk)
        files.cut_power_after(cut)
        with contextlib.suppress(PowerCut):
            DataDir(disk).prepare(files)
        for seed in range(10):
            after = DataDir(tmp_path / f"after-{cut}-{seed}")
            files.materialise(after.root, seed)
            assert files.is_off or after.stamp.exists()
            after.prepare(Files())
            assert json.loads(after.stamp.read_bytes())["format"] == 1
