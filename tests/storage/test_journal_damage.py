"""A torn end is cut, because nobody was told; any other damage stops the start, because somebody was."""

from __future__ import annotations

import struct

import pytest

from millstream.model.errors import CorruptData
from millstream.storage.checksum import crc32
from millstream.storage.files import Files
from millstream.storage.journal import record, scan_journal
from millstream.storage.journal.record import FRAME_BYTES, FRAME_MAGIC, HEADER_BYTES, FileHeader, frame_header

from .journals import commit, held, journal_files, open_journal, write


class Story:
    """A small journal, its batches, and where each one's frame lies in the last file."""

    def __init__(self, directory, payloads, file_bytes=4096):
        self.directory = directory
        self.batches, self.frames = [], []
        journal = open_journal(directory, file_bytes=file_bytes)
        for payload in payloads:
            self.batches.append(commit(journal, payload))
            self.path = journal_files(directory)[-1]
            end = scan_journal(directory, Files()).end
            self.frames.append((self.path, end - FRAME_BYTES - self._body_bytes(end), end))
        journal.close()
        self.contents = {path: path.read_bytes() for path in journal_files(directory)}

    def _body_bytes(self, end):
        content, at = self.path.read_bytes(), HEADER_BYTES
        while True:
            (length,) = struct.unpack_from("<I", content, at + 4)
            if at + FRAME_BYTES + length == end:
                return length
            at += FRAME_BYTES + length

    def restore(self):
        for path in journal_files(self.directory):
            if path not in self.contents:
                path.unlink()
        for path, content in self.contents.items():
            path.write_bytes(content)

    def is_untouched(self, but):
        return all(path.read_bytes() == content for path, content in self.contents.items() if path != but)


def truncated(content, at, end):
    return content[:at]


def zeroed(content, at, end):
    return content[:at] + bytes(len(content) - at)


def garbled(content, at, end):
    return content[:at] + bytes(byte ^ 0x5A for byte in content[at:end]) + content[end:]


def one_sector_lost(content, at, end):
    return content[:at] + bytes(min(16, end - at)) + content[at + min(16, end - at) :]


TEARS = [truncated, zeroed, garbled, one_sector_lost]


@pytest.mark.parametrize("tear", TEARS)
@pytest.mark.parametrize("payloads", [[b"first", b"second", b"the last one"], [b"A" * 100, b"B" * 100, b"C" * 100]])
def test_a_batch_torn_anywhere_is_cut_and_everything_before_it_is_there(tmp_path, tear, payloads):
    # Files of 256 bytes put each of the larger batches at the start of a file of its own.
    story = Story(tmp_path, payloads, file_bytes=256)
    path, start, end = story.frames[-1]
    for at in range(start, end):
        story.restore()
        torn = tear(story.contents[path], at, end)
        if torn == story.contents[path]:
            continue
        path.write_bytes(torn)
        journal = open_journal(tmp_path)
        assert journal.last_sequence == 2, at
        assert (journal.torn_bytes > 0) == any(torn[start:])
        assert list(journal.batches(0)) == story.batches[:-1]
        assert not any(path.read_bytes()[start:]), "nothing of the torn batch may stay"
        again = commit(journal, b"written after the crash")
        journal.close()
        assert held(tmp_path) == [*story.batches[:-1], again]


def test_what_a_torn_batch_left_can_never_follow_a_shorter_one(tmp_path):
    """The rest of a long batch must not be read as the frame behind a short one that takes its place."""
    story = Story(tmp_path, [b"first", b"x" * 500])
    path, start, _ = story.frames[-1]
    path.write_bytes(garbled(story.contents[path], start, start + 1))
    journal = open_journal(tmp_path)
    short = commit(journal, b"s")
    journal.close()
    assert held(tmp_path) == [story.batches[0], short]
    assert scan_journal(tmp_path, Files()).torn_bytes == 0


def test_garbage_behind_the_last_batch_is_cut(tmp_path):
    story = Story(tmp_path, [b"first", b"second"])
    path, _, end = story.frames[-1]
    for garbage in (b"\x01", FRAME_MAGIC, FRAME_MAGIC + b"\xff" * 40, b"\0" * 100 + b"x"):
        content = story.contents[path]
        path.write_bytes(content[:end] + garbage + content[end + len(garbage) :])
        assert held(tmp_path) == story.batches
        assert path.read_bytes() == content


def test_a_flipped_byte_in_an_earlier_frame_of_the_file_refuses_the_start(tmp_path):
    story = Story(tmp_path, [b"first", b"second", b"third"])
    path = story.path
    for at in range(story.frames[0][1], story.frames[1][2]):
        refuses_with_a_flipped_byte(story, path, at)


def test_a_flipped_byte_in_an_earlier_file_refuses_the_start(tmp_path):
    story = Story(tmp_path, [b"A" * 40, b"B" * 40, b"C" * 40], file_bytes=200)
    assert len(story.contents) == 3
    for path, start, end in story.frames[:-1]:
        for at in range(start, end):
            refuses_with_a_flipped_byte(story, path, at)


def refuses_with_a_flipped_byte(story, path, at):
    flipped = bytearray(story.contents[path])
    flipped[at] ^= 1 << (at % 8)
    path.write_bytes(flipped)
    with pytest.raises(CorruptData, match="Nothing was changed"):
        open_journal(story.directory)
    assert path.read_bytes() == flipped
    assert story.is_untouched(but=path)
    path.write_bytes(story.contents[path])


@pytest.mark.parametrize("zeros", ["frame", "rest of the file"])
def test_a_batch_zeroed_in_an_earlier_file_refuses_the_start(tmp_path, zeros):
    story = Story(tmp_path, [b"A" * 40, b"B" * 40, b"C" * 40], file_bytes=200)
    path, start, end = story.frames[1]
    content = story.contents[path]
    path.write_bytes(content[:start] + bytes((end if zeros == "frame" else len(content)) - start) + content[end:])
    with pytest.raises(CorruptData, match="Nothing was changed"):
        open_journal(tmp_path)


# -- bytes that clients sent -----------------------------------------------------------------------------------


def fake_frame(salt, first_sequence):
    body = b"\xdd\0\0\0\x01" + b"whatever"
    return frame_header(salt, first_sequence, 1, body) + body


def test_frames_that_a_client_made_up_never_make_a_torn_batch_look_like_damage(tmp_path):
    sent = b"".join(fake_frame(salt, sequence) for salt in (0, 1, 0xFFFFFFFF) for sequence in (1, 2, 3, 4, 1000))
    torn_everywhere_is_cut(Story(tmp_path, [b"first", b"second", b"<" + sent + b">"]))


def test_a_copy_of_the_journal_kept_in_a_stream_never_makes_a_torn_batch_look_like_damage(tmp_path):
    """A backup of the data directory may well be stored in the server it was taken from."""
    directory = tmp_path / "journal"
    journal = open_journal(directory)
    batches = [commit(journal, b"first"), commit(journal, b"second")]
    copy = journal_files(directory)[0].read_bytes().rstrip(b"\0")
    start = scan_journal(directory, Files()).end
    write(journal, copy)
    journal.close()
    path = journal_files(directory)[0]
    content = path.read_bytes()
    for at in range(start, len(content.rstrip(b"\0"))):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert scan_journal(directory, Files()).damage is None, at
    assert held(directory) == batches


def torn_everywhere_is_cut(story):
    path, start, end = story.frames[-1]
    for at in range(start, end, 3):
        path.write_bytes(garbled(story.contents[path], at, at + 1))
        scan = scan_journal(story.directory, Files())
        assert (scan.damage, scan.last_sequence, scan.end) == (None, 2, start), at
    assert held(story.directory) == story.batches[:-1]


def test_a_client_cannot_make_the_search_behind_a_torn_batch_long(tmp_path, monkeypatch):
    """Bytes that look like thousands of large frames must not be checksummed thousands of times."""
    file_bytes = 1 << 16
    looks_like_frames = (FRAME_MAGIC + struct.pack("<I", file_bytes // 2)) * 2000
    story = Story(tmp_path, [b"first", b"second", looks_like_frames], file_bytes=file_bytes)
    path, start, _ = story.frames[-1]
    path.write_bytes(garbled(story.contents[path], start, start + 1))

    checked = 0

    def counting(data, value=0):
        nonlocal checked
        checked += len(data)
        return crc32(data, value)

    monkeypatch.setattr(record, "crc32", counting)
    assert scan_journal(tmp_path, Files()).last_sequence == 2
    assert checked < 10 * file_bytes, f"{checked} bytes were checksummed to search a file of {file_bytes}"


def test_two_files_never_share_a_salt(tmp_path):
    journal = open_journal(tmp_path, file_bytes=128)
    for _ in range(20):
        commit(journal, b"x" * 30)
    journal.close()
    salts = [FileHeader.decode(path.read_bytes()[:HEADER_BYTES]).salt for path in journal_files(tmp_path)]
    assert len(set(salts)) == len(salts) > 10
