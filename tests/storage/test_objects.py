"""The local object store: an object has a name only when it is whole and safe."""

from __future__ import annotations

import errno
import random

import pytest

from millstream.model.errors import CorruptData
from millstream.storage.buffers import BufferPool
from millstream.storage.files import Files
from millstream.storage.objects import LocalObjects

from .faulty_files import FaultyFiles, ForgetfulFiles, PowerCut


def store_at(root, files=None):
    objects = LocalObjects(root, files or Files())
    objects.prepare("things")
    return objects


@pytest.fixture
def store(tmp_path):
    objects = store_at(tmp_path)
    yield objects
    objects.close()


def on_disk(root):
    return sorted(path.name for path in (root / "things").iterdir())


def test_an_object_is_its_pieces_in_a_row(store):
    assert store.put("things/a", [b"one", bytearray(b"two"), memoryview(b"three"), b""]) == 11
    assert store.get_range("things/a", 0, 11) == b"onetwothree"
    assert store.get_range("things/a", 3, 3) == b"two"
    assert store.size("things/a") == 11


def test_a_range_is_read_into_a_kept_buffer(store):
    store.put("things/a", [b"onetwo"])
    buffers = BufferPool()
    one = store.get_range_into(buffers, "things/a", 0, 3)
    two = store.get_range_into(buffers, "things/a", 3, 3)
    assert (bytes(one), bytes(two)) == (b"one", b"two")
    kept = id(one.obj)
    del one
    assert id(store.get_range_into(buffers, "things/a", 0, 6).obj) == kept
    with pytest.raises(CorruptData, match="ends at 6, 7 was expected"):
        store.get_range_into(buffers, "things/a", 2, 5)
    with pytest.raises(FileNotFoundError):
        store.get_range_into(buffers, "things/b", 0, 1)


def test_a_range_that_is_not_in_memory_is_read_all_the_same(tmp_path, monkeypatch):
    files = Files()
    monkeypatch.setattr(files, "pread_cached", lambda *_: False)
    store = store_at(tmp_path, files)
    store.put("things/a", [b"onetwo"])
    assert store.get_range_into(BufferPool(), "things/a", 3, 3) == b"two"


def test_objects_are_listed_with_their_sizes_and_deleted(store):
    for name in ("b", "a", "c"):
        store.put(f"things/{name}", [name.encode() * 3])
    assert store.list("things") == [("things/a", 3), ("things/b", 3), ("things/c", 3)]
    store.delete("things/b")
    store.delete("things/b")  # an absent object is fine
    assert store.list("things") == [("things/a", 3), ("things/c", 3)]


def test_a_taken_name_is_refused_and_keeps_what_it_had(store, tmp_path):
    store.put("things/a", [b"first"])
    with pytest.raises(FileExistsError):
        store.put("things/a", [b"second"])
    assert store.get_range("things/a", 0, 5) == b"first"
    assert on_disk(tmp_path) == ["a"]


def test_a_range_beyond_the_end_is_damage(store):
    store.put("things/a", [b"12345"])
    with pytest.raises(CorruptData, match="ends at 5, 6 was expected"):
        store.get_range("things/a", 2, 4)


def test_a_cached_range_is_the_same_bytes_or_nothing(store):
    store.put("things/a", [b"12345"])
    assert store.get_range_cached("things/a", 1, 3) in (b"234", None)
    assert store.get_range_cached("things/a", 1, 30) is None
    with pytest.raises(FileNotFoundError):
        store.get_range_cached("things/b", 0, 1)


def test_only_so_many_files_stay_open(store):
    for number in range(300):
        store.put(f"things/{number}", [b"%03d" % number])
    for _ in range(2):
        for number in range(300):
            assert store.get_range_cached(f"things/{number}", 0, 3) in (b"%03d" % number, None)
    assert len(store._open) == 256


def test_a_deleted_object_is_let_go_of(store):
    store.put("things/a", [b"old"])
    store.get_range_cached("things/a", 0, 3)
    store.delete("things/a")
    store.put("things/a", [b"new"])
    assert store.get_range_cached("things/a", 0, 3) in (b"new", None)


def test_preparing_clears_what_a_crash_left_and_nothing_else(store, tmp_path):
    store.put("things/a", [b"whole"])
    (tmp_path / "things" / ".tmp-b-123").write_bytes(b"half")
    assert store.list("things") == [("things/a", 5)]
    store.prepare("things")
    assert on_disk(tmp_path) == ["a"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["create", "pwrite", "sync", "link"])
def test_a_fault_on_the_way_leaves_no_name(tmp_path, call, number):
    files = FaultyFiles(tmp_path)
    store = store_at(tmp_path, files)
    files.fail(call, number)
    with pytest.raises(OSError, match=rf"Errno {number}"):
        store.put("things/a", [b"one", b"two"])
    assert on_disk(tmp_path) == []
    files.heal()
    store.put("things/a", [b"one", b"two"])
    assert store.get_range("things/a", 0, 6) == b"onetwo"


def test_pieces_that_cannot_be_had_leave_no_name(store, tmp_path):
    def pieces():
        yield b"first"
        raise CorruptData("the second could not be read")

    with pytest.raises(CorruptData):
        store.put("things/a", pieces())
    assert on_disk(tmp_path) == []


def keep_house(disk, files, seed):
    """Put and delete until the power goes; what must be there afterwards, and what may be."""
    rng = random.Random(seed)
    sure, possible = {}, {}
    files.cut_power_after(rng.randint(1, 40))
    try:
        store = store_at(disk, files)
        while True:
            name = f"things/{rng.randint(0, 5)}"
            if name in sure:
                possible[name] = sure.pop(name)
                store.delete(name)
                del possible[name]
            else:
                content = rng.randbytes(rng.choice((1, 100, 3000)))
                possible[name] = content
                store.put(name, [content])
                sure[name] = possible.pop(name)
    except PowerCut:
        return sure, possible


def check_house(folder, seed, files_for):
    disk, after = folder / "disk", folder / "after"
    disk.mkdir(parents=True)
    files = files_for(disk)
    sure, possible = keep_house(disk, files, seed)
    files.materialise(after, seed)
    store = store_at(after)
    found = {name: store.get_range(name, 0, size) for name, size in store.list("things")}
    assert found.items() >= sure.items(), "an object is lost"
    assert found.items() <= (sure | possible).items(), "an object is half there, or came back"
    assert all(not name.startswith(".") for name in on_disk(after))


def test_an_object_survives_any_power_cut_whole_or_not_at_all(tmp_path):
    for seed in range(150):
        try:
            check_house(tmp_path / str(seed), seed, FaultyFiles)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("forgets", ["sync", "sync_directory"])
def test_these_stories_find_a_sync_that_does_nothing(tmp_path, forgets):
    for seed in range(150):
        try:
            check_house(tmp_path / str(seed), seed, lambda disk: ForgetfulFiles(disk, forgets))
        except AssertionError:
            return
    pytest.fail(f"no story found that {forgets} does nothing")
