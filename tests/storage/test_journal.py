"""The journal: what is written and synced is read again, in order, over any number of files."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

import pytest

from millstream.model.codec import encode_facts
from millstream.model.errors import CorruptData, UnknownFormat
from millstream.storage.files import Files
from millstream.storage.journal import scan_journal
from millstream.storage.journal.file import start_file, trim_files
from millstream.storage.journal.reading import JournalReader
from millstream.storage.journal.record import FRAME_BYTES, HEADER_BYTES, FileHeader

from .faulty_files import FaultyFiles
from .journals import NOW, appended, commit, held, journal_files, open_journal, write


def test_a_new_journal_is_one_empty_file(tmp_path):
    journal = open_journal(tmp_path)
    assert journal.last_sequence == 0
    assert list(journal.batches(0)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000000001.log"]
    assert journal_files(tmp_path)[0].stat().st_size == 4096
    journal.close()


def test_batches_come_back_as_they_were_written(tmp_path):
    journal = open_journal(tmp_path)
    written = [commit(journal, b"one"), commit(journal, b"two", b"three"), commit(journal, b"")]
    assert list(journal.batches(0)) == written
    journal.close()
    assert held(tmp_path) == written
    assert [batch.last_sequence for batch in written] == [1, 3, 4]


def test_a_reopened_journal_goes_on_where_it_stopped(tmp_path):
    written, incarnations = [], set()
    for turn in range(5):
        journal = open_journal(tmp_path)
        incarnations.add(journal.incarnation)
        assert journal.last_sequence == turn
        written.append(commit(journal, b"turn %d" % turn))
        journal.close()
    assert held(tmp_path) == written
    assert len(incarnations) == 1


def test_files_are_rotated_when_they_are_full(tmp_path):
    journal = open_journal(tmp_path, file_bytes=256)
    written = [commit(journal, b"x" * 50) for _ in range(20)]
    journal.close()
    assert len(journal_files(tmp_path)) > 5
    assert held(tmp_path) == written
    firsts = [int(path.stem) for path in journal_files(tmp_path)]
    assert firsts == sorted(firsts)


def test_a_batch_that_fills_a_file_to_its_last_byte_needs_no_new_one(tmp_path):
    room = 256 - HEADER_BYTES - FRAME_BYTES
    payload = b"x" * (room - len(encode_facts([appended(b"x" * 100)])) + 100)
    journal = open_journal(tmp_path, file_bytes=256)
    first = commit(journal, payload)
    assert not journal.fits(0)
    assert len(journal_files(tmp_path)) == 1
    second = commit(journal, b"next")
    journal.close()
    assert len(journal_files(tmp_path)) == 2
    assert held(tmp_path) == [first, second]


@pytest.mark.parametrize("size", [300, 5000, 70_000, 200_000])
def test_a_batch_larger_than_a_file_gets_a_file_of_its_own_size(tmp_path, size):
    journal = open_journal(tmp_path, file_bytes=256)
    written = [commit(journal, payload) for payload in (b"small", b"L" * size, b"small", b"M" * size)]
    journal.close()
    assert held(tmp_path) == written


def test_a_first_batch_larger_than_a_file_lets_the_empty_file_grow(tmp_path):
    journal = open_journal(tmp_path, file_bytes=128)
    written = [commit(journal, b"L" * 5000)]
    assert len(journal_files(tmp_path)) == 1
    journal.close()
    assert held(tmp_path) == written


def test_batches_after_a_sequence_start_with_the_one_that_holds_the_next(tmp_path):
    journal = open_journal(tmp_path, file_bytes=256)
    written = [commit(journal, b"a", b"b", b"c") for _ in range(6)]
    for after in range(19):
        assert list(journal.batches(after)) == [batch for batch in written if batch.last_sequence > after]
    journal.close()


def test_a_kill_right_after_the_roll_leaves_an_empty_file_that_is_continued(tmp_path):
    journal = open_journal(tmp_path)
    written = [commit(journal, b"before")]
    header = FileHeader(0, journal.incarnation, 77, 2, NOW)
    journal.close()
    fd, _ = start_file(tmp_path, Files(), header, 256)
    Files().close(fd)

    for size in (40, 40, 5000):  # the last one does not fit into the empty file's rest
        journal = open_journal(tmp_path)
        written.append(commit(journal, b"x" * size))
        journal.close()
    assert held(tmp_path) == written


def test_a_batch_larger_than_the_empty_file_a_kill_left_lets_that_grow(tmp_path):
    journal = open_journal(tmp_path)
    before = commit(journal, b"before")
    header = FileHeader(0, journal.incarnation, 77, 2, NOW)
    journal.close()
    fd, _ = start_file(tmp_path, Files(), header, 0)
    Files().close(fd)

    journal = open_journal(tmp_path)
    after = commit(journal, b"x" * 10_000)
    journal.close()
    assert held(tmp_path) == [before, after]


@pytest.mark.parametrize("leftover", [b"", b"\0" * 300, b"MILLJRNL half a header"])
def test_a_crash_inside_the_making_of_a_file_is_fine(tmp_path, leftover):
    journal = open_journal(tmp_path, file_bytes=256)
    written = [commit(journal, b"x" * 50)]
    journal.close()
    (tmp_path / ".tmp-00000000000000000002").write_bytes(leftover)
    journal = open_journal(tmp_path, file_bytes=256)
    written += [commit(journal, b"x" * 150) for _ in range(3)]
    journal.close()
    assert held(tmp_path) == written
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_kill_between_naming_a_file_and_clearing_up_keeps_no_second_name_for_it(tmp_path):
    """The second name would hold the file's space when the journal is trimmed: 64 MiB for each such kill."""
    files = FaultyFiles(tmp_path)
    journal = open_journal(tmp_path, files, file_bytes=256)
    commit(journal, b"x" * 150)
    files.fail("unlink", errno.EIO)  # as good as a kill: the name is given, the temporary one is not taken away
    with pytest.raises(OSError, match="Input/output"):
        write(journal, b"x" * 150)
    journal.close()

    journal = open_journal(tmp_path, file_bytes=256)
    for _ in range(5):
        commit(journal, b"x" * 150)
    journal.trim(journal.last_sequence)
    journal.close()
    assert [path.name for path in tmp_path.iterdir()] == [journal_files(tmp_path)[-1].name]


def test_trimming_removes_files_that_hold_nothing_later_and_keeps_the_last(tmp_path):
    journal = open_journal(tmp_path, file_bytes=256)
    written = [commit(journal, b"x" * 50) for _ in range(20)]
    firsts = [int(path.stem) for path in journal_files(tmp_path)]
    for through in range(25):
        journal.trim(through)
        kept = [int(path.stem) for path in journal_files(tmp_path)]
        assert kept == [
            first for first, following in zip(firsts, [*firsts[1:], 99], strict=True) if following > through + 1
        ]
        assert kept[-1] == firsts[-1]
        assert list(journal.batches(through)) == [batch for batch in written if batch.last_sequence > through]
    written.append(commit(journal, b"after the trim"))
    journal.close()
    assert held(tmp_path)[-1] == written[-1]
    assert trim_files(tmp_path, Files(), 10_000) == len(journal_files(tmp_path)) - 1


def test_a_trimmed_journal_opens_with_the_sequence_it_had(tmp_path):
    journal = open_journal(tmp_path, file_bytes=256)
    for _ in range(20):
        commit(journal, b"x" * 50)
    journal.trim(20)
    journal.close()
    journal = open_journal(tmp_path)
    assert journal.last_sequence == 20
    journal.close()


def test_batches_of_no_facts_take_no_sequence(tmp_path):
    journal = open_journal(tmp_path, file_bytes=200)
    written = []
    for _ in range(10):
        commit(journal)
        written.append(commit(journal, b"one"))
        commit(journal)
    journal.close()
    assert [batch for batch in held(tmp_path) if batch.facts] == written
    assert scan_journal(tmp_path, Files()).last_sequence == 10


def test_frames_of_no_length_end_no_scan(tmp_path):
    journal = open_journal(tmp_path)
    for _ in range(3):
        journal.write(1, NOW, b"")
    commit(journal, b"one")
    journal.close()
    assert scan_journal(tmp_path, Files())[1:] == (1, scan_journal(tmp_path, Files()).end, 0, None)


def test_writing_the_wrong_sequence_is_a_mistake_of_ours(tmp_path):
    journal = open_journal(tmp_path)
    with pytest.raises(AssertionError):
        journal.write(2, NOW, encode_facts([appended(b"x")]))
    journal.close()


# -- formats that are not ours -------------------------------------------------------------------------------


def damage(path, at, data):
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def test_a_journal_of_another_format_is_refused_by_its_number(tmp_path):
    journal = open_journal(tmp_path)
    journal.close()
    damage(journal_files(tmp_path)[0], 8, (2).to_bytes(2, "little"))
    with pytest.raises(UnknownFormat, match="format 2; this version reads format 1"):
        open_journal(tmp_path)


def test_a_damaged_header_is_refused_wherever_it_is_damaged(tmp_path):
    journal = open_journal(tmp_path)
    commit(journal, b"data")
    journal.close()
    path = journal_files(tmp_path)[0]
    good = path.read_bytes()
    for at in range(48):  # the rest of the header is padding
        damage(path, at, bytes([good[at] ^ 0x40]))
        with pytest.raises((CorruptData, UnknownFormat)):
            open_journal(tmp_path)
        path.write_bytes(good)


@pytest.mark.parametrize("content", [b"", b"MILL", b"MILLJRNL", b"\0" * 64, b"something else entirely" * 10])
def test_a_file_that_is_no_journal_is_refused_and_named(tmp_path, content):
    (tmp_path / "00000000000000000001.log").write_bytes(content)
    with pytest.raises(CorruptData, match=r"00000000000000000001\.log"):
        open_journal(tmp_path)


def test_a_missing_file_in_the_middle_is_refused_and_nothing_is_changed(tmp_path):
    journal = open_journal(tmp_path, file_bytes=256)
    for _ in range(10):
        commit(journal, b"x" * 50)
    journal.close()
    files = journal_files(tmp_path)
    for missing in files[1:-1]:
        content = missing.read_bytes()
        missing.unlink()
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with pytest.raises(CorruptData, match="missing"):
            open_journal(tmp_path)
        with pytest.raises(CorruptData):
            list(JournalReader(tmp_path, Files()).batches(0))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        missing.write_bytes(content)


def test_a_look_from_outside_sees_what_has_been_written_so_far(tmp_path):
    """The helper process reads the journal while the server writes it."""
    journal = open_journal(tmp_path, file_bytes=256)
    for count in range(1, 20):
        commit(journal, b"x" * 50)
        assert scan_journal(tmp_path, Files()).last_sequence == count
    write(journal, b"not synced yet")
    assert [batch.last_sequence for batch in JournalReader(tmp_path, Files()).batches(0)][-1] == 20
    journal.close()


@contextlib.contextmanager
def all_descriptors_taken() -> Iterator[list[int]]:
    """As a crowd of connections would; gives what it took."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield taken
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def test_a_roll_needs_no_descriptor_that_others_can_take(tmp_path):
    journal = open_journal(tmp_path, Files(), file_bytes=256)
    with all_descriptors_taken():
        written = [commit(journal, b"x" * 50) for _ in range(20)]
    assert len(journal_files(tmp_path)) > 5
    journal.close()
    assert held(tmp_path) == written


def test_a_roll_waits_for_descriptors_that_come_back(tmp_path, monkeypatch):
    journal = open_journal(tmp_path, Files(), file_bytes=256)
    journal._give_spares()
    with all_descriptors_taken() as taken:
        pauses = iter(range(100))

        def somebody_leaves(_: float) -> None:
            if next(pauses) % 5 == 4:
                os.close(taken.pop())

        monkeypatch.setattr("millstream.storage.journal.file.time.sleep", somebody_leaves)
        written = [commit(journal, b"x" * 50) for _ in range(20)]
    journal.close()
    assert held(tmp_path) == written


class CountingFiles(Files):
    """How much is read."""

    def __init__(self) -> None:
        self.bytes_read = 0

    def pread(self, fd: int, size: int, at: int) -> bytes:
        data = super().pread(fd, size, at)
        self.bytes_read += len(data)
        return data


def test_what_was_allocated_and_never_written_is_not_read(tmp_path):
    """A start must not take the longer the emptier the last file is."""
    journal = open_journal(tmp_path, Files(), file_bytes=256 << 20)
    written = [commit(journal, b"x" * 1000) for _ in range(10)]
    journal.close()
    files = CountingFiles()
    assert scan_journal(tmp_path, files)[1:] == (10, written_bytes(written), 0, None)
    assert files.bytes_read < 4 << 20, "does the file system of this folder know what was never written?"
    with journal_files(tmp_path)[0].open("r+b") as file:
        file.seek(200 << 20)
        file.write(b"torn")
    scan = scan_journal(tmp_path, files)
    assert (scan.end + scan.torn_bytes, scan.damage) == ((200 << 20) + 4, None), "bytes anywhere behind are found"


def written_bytes(batches):
    return HEADER_BYTES + sum(FRAME_BYTES + len(encode_facts(batch.facts)) for batch in batches)


@pytest.mark.parametrize("gap", [0, 1 << 20, (1 << 20) - 2, 3 << 20])
def test_a_good_frame_far_behind_a_bad_one_is_found(tmp_path, gap):
    """Also one that ends in zeros, and one that lies on the edge of what is read at a time."""
    journal = open_journal(tmp_path, Files(), file_bytes=16 << 20)
    commit(journal, b"first")
    first = scan_journal(tmp_path, Files()).end
    commit(journal, b"bad" + b"y" * gap)
    commit(journal, b"good" + bytes(5000))
    journal.close()
    with journal_files(tmp_path)[0].open("r+b") as file:
        file.seek(first + 40)
        file.write(b"#")
    scan = scan_journal(tmp_path, Files())
    assert scan.damage is not None
    assert (scan.last_sequence, scan.damage.at) == (1, first)


@pytest.mark.parametrize("window_bytes", [1, 33, 100, 4096])
def test_a_window_of_any_size_shows_every_batch(tmp_path, window_bytes):
    journal = open_journal(tmp_path, file_bytes=4096)
    written = [commit(journal, b"x" * size) for size in (0, 1, 50, 3000, 900, 5000, 2, 40)]
    reader = JournalReader(tmp_path, Files(), window_bytes)
    assert list(reader.batches(0)) == written
    for after in range(len(written)):
        assert list(reader.batches(after)) == written[after:]
        assert list(reader.batches(after, through=after + 1)) == written[after : after + 1]
    journal.close()


def test_a_reader_that_comes_back_goes_on_where_it_stopped(tmp_path):
    journal = open_journal(tmp_path, file_bytes=1 << 20)
    files = CountingFiles()
    reader = JournalReader(tmp_path, files, window_bytes=1024)
    for _ in range(200):
        commit(journal, b"x" * 500)
    assert len(list(reader.batches(0))) == 200
    for after in range(200, 250):
        files.bytes_read = 0
        new = commit(journal, b"y" * 500)
        assert list(reader.batches(after, through=after + 1)) == [new]
        assert files.bytes_read < 4 * 1024, "neither what was read before nor the empty rest of the file is read"
    assert next(iter(reader.batches(100))).first_sequence == 101
    assert [batch.first_sequence for batch in reader.batches(249)] == [250]
    journal.close()


def test_what_is_read_to_its_end_is_followed_into_the_next_file(tmp_path):
    journal = open_journal(tmp_path, file_bytes=256)
    reader = JournalReader(tmp_path, Files())
    for after in range(30):
        new = commit(journal, b"x" * 50)
        assert list(reader.batches(after)) == [new]
    journal.close()
