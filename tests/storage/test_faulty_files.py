"""The disk that the other tests trust to fail the way real ones do."""

from __future__ import annotations

import errno
from itertools import count

import pytest

from .faulty_files import SECTOR, FaultyFiles, ForgetfulFiles, PowerCut


@pytest.fixture
def disk(tmp_path):
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.fixture
def after(tmp_path):
    """Every disk that a power cut could leave, as far as 60 seeds show: what `look` says of each."""
    numbers = count()

    def outcomes(files, look):
        seen = []
        for seed in range(60):
            target = tmp_path / f"after-{next(numbers)}"
            files.materialise(target, seed)
            seen.append(look(target))
        return seen

    return outcomes


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_what_is_synced_with_its_name_is_there_always(disk, after):
    files = FaultyFiles(disk)
    fd = files.create(disk / "a")
    files.pwrite(fd, b"hello", 0)
    files.sync(fd)
    files.sync_directory(disk)
    assert set(after(files, lambda folder: (folder / "a").read_bytes())) == {b"hello"}
    files.close(fd)


def test_a_name_that_is_not_synced_may_be_undone(disk, after):
    files = FaultyFiles(disk)
    fd = files.create(disk / "a")
    files.sync(fd)
    assert {tuple(seen) for seen in after(files, names)} == {(), ("a",)}
    files.close(fd)


def test_links_and_unlinks_come_in_order_or_not_at_all(disk, after):
    files = FaultyFiles(disk)
    fd = files.create(disk / "a")
    files.sync_directory(disk)
    files.link(disk / "a", disk / "b")
    files.unlink(disk / "a")
    assert {tuple(seen) for seen in after(files, names)} == {("a",), ("a", "b"), ("b",)}
    files.sync_directory(disk)
    assert {tuple(seen) for seen in after(files, names)} == {("b",)}
    files.close(fd)


def test_a_folder_needs_its_parent_synced(disk, after):
    files = FaultyFiles(disk)
    files.make_directory(disk / "x" / "y")
    fd = files.create(disk / "x" / "y" / "a")
    files.sync(fd)
    files.sync_directory(disk / "x" / "y")
    files.sync_directory(disk / "x")
    assert {tuple(seen) for seen in after(files, names)} == {(), ("x/y/a",)}
    files.sync_directory(disk)
    assert {tuple(seen) for seen in after(files, names)} == {("x/y/a",)}
    files.close(fd)


def test_what_is_not_synced_is_dropped_kept_or_torn_at_sectors(disk, after):
    files = FaultyFiles(disk)
    fd = files.create(disk / "a")
    files.allocate(fd, 4 * SECTOR)
    files.sync(fd)
    files.sync_directory(disk)
    files.pwrite(fd, b"x" * (3 * SECTOR), 100)
    contents = set(after(files, lambda folder: (folder / "a").read_bytes()))
    edges = {len(content) - len(content.lstrip(b"\0")) for content in contents if any(content)}
    assert bytes(4 * SECTOR) in contents
    assert (disk / "a").read_bytes() in contents
    assert edges == {100, SECTOR, 2 * SECTOR, 3 * SECTOR}
    files.close(fd)


def test_a_cut_file_may_keep_its_old_end_until_it_is_synced(disk, after):
    files = FaultyFiles(disk)
    fd = files.create(disk / "a")
    files.pwrite(fd, b"hello", 0)
    files.sync(fd)
    files.sync_directory(disk)
    files.truncate(fd, 2)
    assert set(after(files, lambda folder: (folder / "a").read_bytes())) == {b"hello", b"he"}
    files.sync(fd)
    assert set(after(files, lambda folder: (folder / "a").read_bytes())) == {b"he"}
    files.close(fd)


def test_the_same_seed_leaves_the_same_disk(disk, tmp_path):
    files = FaultyFiles(disk)
    fd = files.create(disk / "a")
    files.sync_directory(disk)
    files.pwrite(fd, bytes(range(256)) * 20, 0)
    for seed in range(10):
        for copy in ("one", "two"):
            files.materialise(tmp_path / f"{copy}-{seed}", seed)
        assert (tmp_path / f"one-{seed}/a").read_bytes() == (tmp_path / f"two-{seed}/a").read_bytes()
    files.close(fd)


def test_after_the_cut_nothing_happens_any_more(disk, after):
    files = FaultyFiles(disk)
    fd = files.create(disk / "a")
    files.sync_directory(disk)
    files.cut_power_after(2)
    files.pwrite(fd, b"first", 0)
    for call in (lambda: files.sync(fd), lambda: files.pwrite(fd, b"second", 0), lambda: files.unlink(disk / "a")):
        with pytest.raises(PowerCut):
            call()
    assert set(after(files, lambda folder: (folder / "a").read_bytes())) == {b"", b"first"}
    files.close(fd)


def test_what_was_there_before_is_durable_and_other_programs_files_are_taken_as_they_are(disk, after):
    (disk / "sub").mkdir()
    (disk / "sub" / "old").write_bytes(b"old")
    files = FaultyFiles(disk)
    (disk / "catalog.db").write_bytes(b"sqlite")
    assert {tuple(seen) for seen in after(files, names)} == {("catalog.db", "sub/old")}


def test_faults_come_when_they_are_asked_for(disk):
    files = FaultyFiles(disk)
    fd = files.create(disk / "a")
    files.fail("pwrite", errno.ENOSPC, after=2)
    files.pwrite(fd, b"fine", 0)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            files.pwrite(fd, b"half", 4)
    assert (disk / "a").read_bytes() == b"fineha"
    files.heal()
    files.pwrite(fd, b"half", 4)
    files.close(fd)


@pytest.mark.parametrize("forgets", ["sync", "sync_directory"])
def test_a_forgetful_disk_says_it_synced_and_did_not(disk, after, forgets):
    files = ForgetfulFiles(disk, forgets)
    fd = files.create(disk / "a")
    files.pwrite(fd, b"hello", 0)
    files.sync(fd)
    files.sync_directory(disk)
    seen = after(files, lambda folder: {path.name: path.read_bytes() for path in folder.iterdir()})
    assert any(found != {"a": b"hello"} for found in seen)
    files.close(fd)
