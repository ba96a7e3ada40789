"""The doctor: says what is wrong without touching it, and cuts what cannot be read without losing a byte."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.node.rig import BYTES, JSON, Rig

from millstream.model.errors import CorruptData, PositionGone
from millstream.model.positions import Position
from millstream.storage import doctor
from millstream.storage.doctor import cut, examine
from millstream.storage.files import Files
from millstream.storage.journal.record import HEADER_BYTES, FileHeader, read_frame
from millstream.storage.objects import LocalObjects
from millstream.storage.segments.segment import read_index

from .faulty_files import FaultyFiles, PowerCut
from .journals import journal_files

KEYS = ("box/a", "box/b")
MADE = 3  # facts before the first append: the bucket and the streams


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


def written(data, appends=30, checkpoint_after=None):
    """A data directory after some appends of 100 bytes; what each stream then held, after each append."""

    async def story():
        history = []
        async with Rig(data) as rig:
            for key in KEYS:
                await rig.create(key, BYTES)
            history.append(dict.fromkeys(KEYS, b""))
            for number in range(appends):
                key = KEYS[number % 2]
                await rig.append(key, b"%04d" % number * 25)
                history.append({**history[-1], key: history[-1][key] + b"%04d" % number * 25})
                if number == checkpoint_after:
                    rig.checkpoint()
        return history

    return asyncio.run(story())


def contents(data):
    async def story():
        async with Rig(data) as rig:
            return {key: await rig.content(key) for key in KEYS}

    return asyncio.run(story())


def is_refused(data):
    async def story():
        with pytest.raises(CorruptData):
            Rig(data).open()

    asyncio.run(story())


def everything(folder):
    """All but the file through which SQLite's connections talk to each other."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "catalog.db-shm"]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def frames(path):
    """The frames of a journal file: where each starts, and its first sequence."""
    content, places = path.read_bytes(), []
    at, salt = HEADER_BYTES, FileHeader.decode(content[:HEADER_BYTES]).salt
    while (frame := read_frame(memoryview(content), at, salt)) is not None:
        places.append((at, frame.first_sequence))
        at = frame.end
    return places


def damage(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def errors(report):
    return [finding for finding in report.findings if finding.severity == "error"]


def what(report):
    return "\n".join(finding.what for finding in report.findings)


# -- looking --------------------------------------------------------------------------------------------------


def test_a_healthy_directory_is_said_to_be_healthy_and_left_alone(data):
    written(data, checkpoint_after=20)
    before = everything(data)
    report = examine(data)
    assert report.healthy
    assert {finding.severity for finding in report.findings} == {"ok"}
    assert "the catalog has 2 streams" in what(report)
    assert "in 1 segments read well" in what(report)
    assert everything(data) == before


def test_a_folder_that_is_no_data_directory_is_told_apart(tmp_path):
    report = examine(tmp_path)
    assert not report.healthy
    assert "is not a data directory" in what(report)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_examined_with_a_warning(data):
    async def story():
        async with Rig(data) as rig:
            await rig.create("box/a", JSON, [b"1"])
            report = examine(data)
            assert report.healthy
            assert "a server is using the directory" in what(report)

    asyncio.run(story())
    assert "a server" not in what(examine(data))


def test_a_torn_end_is_only_a_warning(data):
    written(data)
    last = journal_files(data / "journal")[-1]
    damage(last, frames(last)[-1][0] + 40)
    report = examine(data)
    assert report.healthy
    assert "bytes of a torn batch at its end" in what(report)


def test_another_format_is_named(data):
    written(data)
    (data / "format.json").write_text('{"format": 5}')
    assert "has format 5" in what(examine(data))


def test_a_damaged_block_and_a_missing_segment_are_named(data):
    written(data, checkpoint_after=20)
    (segment,) = (data / "objects" / "segments").iterdir()
    whole = segment.read_bytes()
    damage(segment, 200)
    assert segment.name in what(examine(data))
    assert not examine(data).healthy
    segment.unlink()
    assert f"segment {int(segment.name)} is missing" in what(examine(data))
    segment.write_bytes(whole)
    assert examine(data).healthy


def test_every_damaged_block_of_a_segment_is_named(data):
    written(data, appends=2000, checkpoint_after=1999)
    (segment,) = (data / "objects" / "segments").iterdir()
    places = sorted({e.at for e in read_index(LocalObjects(data / "objects", Files()), f"segments/{segment.name}")})
    assert len(places) > 2
    for at in places[1:]:
        damage(segment, at + 40)
    said = what(examine(data))
    assert "1 blocks in 1 segments read well" in said
    for at in places[1:]:
        assert f"{segment.name} at byte {at}, stream " in said


def test_a_damaged_catalog_is_named(data):
    written(data, checkpoint_after=20)
    catalog = data / "catalog.db"
    content = bytearray(catalog.read_bytes())
    content[4096:] = b"\x5a" * (len(content) - 4096)
    catalog.write_bytes(content)
    assert not examine(data).healthy


def test_a_journal_that_ends_before_the_catalog_or_begins_after_it_is_named(data):
    written(data, checkpoint_after=20)
    files = journal_files(data / "journal")
    kept = {path: path.read_bytes() for path in files}
    files[0].unlink()
    assert "are missing" in what(examine(data))
    for path in files[1:]:
        path.unlink()
    written_file = files[0]
    written_file.write_bytes(kept[files[0]][:64])
    assert "ends before the catalog's sequence" in what(examine(data))


# -- cutting --------------------------------------------------------------------------------------------------


def test_there_may_be_nothing_to_cut(data):
    written(data)
    before = contents(data)
    assert "there is nothing to cut" in what(cut(data))
    assert not (data / "removed").exists()
    assert contents(data) == before


def removed_bytes(data):
    """What was saved, by the name of the journal file and the place it came from."""
    return {
        tuple(path.name.rpartition("-")[0].split("-from-")): path.read_bytes() for path in (data / "removed").iterdir()
    }


@pytest.mark.parametrize(("file", "frame"), [(0, 2), (0, 9), (1, 0), (1, 5), (-1, 0), (-1, 3)])
def test_a_damaged_frame_is_an_error_with_advice_and_the_cut_keeps_what_comes_before(data, file, frame):
    history = written(data, appends=60)
    files = journal_files(data / "journal")
    path, (at, first_lost) = files[file], frames(files[file])[frame]
    damage(path, at + 30)
    before = {path.name: path.read_bytes() for path in files}

    report = examine(data)
    (error,) = errors(report)
    assert error.what.startswith(f"the journal is damaged: {path.name} at byte {at}: ")
    assert "millstream doctor --cut" in error.advice
    assert {path.name: path.read_bytes() for path in files} == before
    is_refused(data)

    report = cut(data)
    assert report.healthy, what(report)
    assert f"behind {path.name}:{at} were moved to removed/" in what(report)
    saved = removed_bytes(data)
    assert saved.pop((path.name, str(at))) == before[path.name][at:]
    assert saved == {(later.name, "0"): before[later.name] for later in files if later.name > path.name}
    assert contents(data) == history[first_lost - 1 - MADE]
    assert examine(data).healthy


def test_a_directory_that_was_cut_takes_appends_again(data):
    written(data)
    files = journal_files(data / "journal")
    damage(files[0], frames(files[0])[5][0] + 30)
    cut(data)
    kept = contents(data)

    async def story():
        async with Rig(data) as rig:
            await rig.append("box/a", b"after the cut")
            rig.checkpoint()
            await rig.crash()
            assert await rig.content("box/a") == kept["box/a"] + b"after the cut"

    asyncio.run(story())


def test_what_was_cut_is_not_mistaken_for_what_comes_in_its_place(data):
    """A consumer behind the cut is told; it must not take other facts for those it has seen, nor skip any."""
    written(data)
    files = journal_files(data / "journal")

    async def read() -> tuple[str, str]:
        async with Rig(data) as rig:
            feed = rig.node.feed
            return feed.token(feed.now), rig.node.stream_id(rig.stream("box/a").number)

    position, stream_id = asyncio.run(read())
    damage(files[0], frames(files[0])[5][0] + 30)
    cut(data)

    async def story():
        async with Rig(data) as rig:
            for number in range(60):
                await rig.append("box/a", b"%d" % number)
            assert rig.node.stream_id(rig.stream("box/a").number) != stream_id
            with pytest.raises(PositionGone):
                rig.node.feed.sequence_of(Position.from_token(position))
            mine = rig.node.feed.token(rig.node.feed.now)
            rig.checkpoint()
            await rig.crash()
            assert rig.node.feed.sequence_of(Position.from_token(mine)) == rig.node.feed.now, "it stays from then on"

    asyncio.run(story())
    assert examine(data).healthy


def test_a_missing_file_is_cut_so_that_the_directory_opens_again(data):
    history = written(data, appends=90)
    files = journal_files(data / "journal")
    first_lost = int(files[1].stem)
    files[1].unlink()
    is_refused(data)
    report = cut(data)
    assert report.healthy, what(report)
    assert contents(data) == history[first_lost - 1 - MADE]


def test_an_earlier_file_that_ends_in_zeros_too_soon_is_cut_so_that_the_directory_opens_again(data):
    history = written(data, appends=90)
    files = journal_files(data / "journal")
    path, content, (at, first_lost) = files[1], files[1].read_bytes(), frames(files[1])[-3]
    path.write_bytes(content[:at] + bytes(len(content) - at))
    is_refused(data)
    report = cut(data)
    assert report.healthy, what(report)
    assert contents(data) == history[first_lost - 1 - MADE]


def test_damage_in_what_the_catalog_has_costs_nothing_that_the_catalog_has(data):
    history = written(data, appends=60, checkpoint_after=29)
    files = journal_files(data / "journal")
    damage(files[0], frames(files[0])[1][0] + 30)
    is_refused(data)
    report = cut(data)
    assert report.healthy, what(report)
    found = contents(data)
    assert all(found[key].startswith(history[30][key]) for key in KEYS)
    assert found in history


def test_damage_in_a_journal_that_the_catalog_has_whole_costs_nothing(data):
    history = written(data, appends=60, checkpoint_after=59)
    files = journal_files(data / "journal")
    damage(files[0], frames(files[0])[1][0] + 30)
    before = b"".join(path.read_bytes() for path in files)
    report = cut(data)
    assert report.healthy, what(report)
    assert contents(data) == history[-1]
    saved = sorted((data / "removed").iterdir(), key=lambda path: "-from-" in path.name)
    assert b"".join(path.read_bytes() for path in saved) == before, "every byte is kept, the readable ones too"


def test_a_power_cut_during_the_cut_loses_no_byte(data, tmp_path, monkeypatch):
    """At any moment each byte is where it was, or saved, or both."""
    written(data)
    files = journal_files(data / "journal")
    path, (at, _) = files[0], frames(files[0])[3]
    damage(path, at + 30)
    whole = {file.name: file.read_bytes() for file in files}
    for changes in range(1, 30):
        disk = tmp_path / str(changes)
        copy_folder(data, disk)
        faulty = FaultyFiles(disk)
        faulty.cut_power_after(changes)
        monkeypatch.setattr(doctor, "Files", lambda faulty=faulty: faulty)
        with contextlib.suppress(PowerCut):
            cut(disk)
        monkeypatch.undo()
        for seed in range(8):
            after = tmp_path / f"{changes}-{seed}"
            faulty.materialise(after, seed)
            for name, content in whole.items():
                start = at if name == path.name else 0
                kept = after / "journal" / name
                copies = [kept.read_bytes()[start:]] if kept.exists() else []
                if (after / "removed").exists():
                    copies += [saved.read_bytes() for saved in (after / "removed").glob(f"{name}-from-*")]
                assert content[start:] in copies, f"{name} is lost after {changes} changes, seed {seed}"
        if not faulty.is_off:
            break
    else:
        pytest.fail("the cut needed more changes than were tried")


def copy_folder(source, target):
    for path in source.rglob("*"):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())


def test_a_damaged_archive_is_a_warning(data):
    written(data, checkpoint_after=20)
    assert any("chunks of the archive" in finding.what for finding in examine(data).findings)
    (archive,) = (data / "objects" / "journal").iterdir()
    damaged = bytearray(archive.read_bytes())
    damaged[100] ^= 1
    archive.write_bytes(damaged)
    report = examine(data)
    assert report.healthy
    assert [finding.what for finding in report.findings if finding.severity == "warning"] == [
        "journal/000000000001: An archive chunk does not match its checksum."
    ]
    archive.unlink()
    assert any("No such file" in finding.what for finding in examine(data).findings)
