"""Opening: a directory whose parts do not agree is refused, with a reason, and left as it was."""

from __future__ import annotations

import contextlib
import os
import shutil

import pytest

from millstream.model.errors import CorruptData, DirectoryInUse, UnknownFormat
from millstream.node import node
from millstream.node.archiving import ArchiveKeeper
from millstream.storage.data_dir import DataDir, lock_directory
from millstream.storage.doctor import examine
from millstream.storage.journal import file as journal_file

from .rig import BYTES, Rig


async def written(root, *, checkpoint=True):
    """A directory with enough in it that the journal has several files, all but a few facts checkpointed."""
    async with Rig(root) as rig:
        await rig.create("box/a")
        for number in range(30):
            await rig.append("box/a", b"%04d" % number * 100)
        if checkpoint:
            rig.checkpoint()
        for number in range(30, 60):
            await rig.append("box/a", b"%04d" % number * 100)
        return rig.journal_files()


def everything(folder):
    names = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("catalog.db-")]
    return {path.relative_to(folder): path.read_bytes() for path in names}


async def refused(root, error, match):
    before = everything(root)
    with pytest.raises(error, match=match):
        Rig(root).open()
    assert everything(root) == before, "a refused start changes nothing"
    os.close(lock_directory(DataDir(root), 0))  # and holds nothing


async def test_a_journal_that_begins_after_the_catalog_s_position_is_refused(tmp_path):
    files = await written(tmp_path)
    assert len(files) > 2
    files[0].unlink()
    await refused(tmp_path, CorruptData, r"begins with sequence \d+, but the catalog needs it from 33 on")


async def test_a_journal_that_ends_before_the_catalog_s_position_is_refused(tmp_path):
    await written(tmp_path)
    async with Rig(tmp_path) as rig:
        rig.checkpoint()
        (last,) = rig.journal_files()
    first = int(last.stem)
    last.write_bytes(last.read_bytes()[:64])
    await refused(tmp_path, CorruptData, rf"stands at sequence 62, but the journal ends with {first - 1}")


async def test_a_journal_with_a_gap_is_refused(tmp_path):
    files = await written(tmp_path, checkpoint=False)
    files[1].unlink()
    await refused(tmp_path, CorruptData, "is missing")


async def test_a_lost_journal_is_refused_and_none_is_made_in_its_place(tmp_path):
    """A new one beside the files that the operator then restores would be one too many."""
    for file in await written(tmp_path):
        file.unlink()
    await refused(tmp_path, CorruptData, "journal|different data directories")


async def test_a_lost_journal_is_refused_although_nothing_was_checkpointed_yet(tmp_path):
    """The catalog knows whose it is: there was a journal. Starting anew would also set the two at odds for good."""
    for file in await written(tmp_path, checkpoint=False):
        file.unlink()
    await refused(tmp_path, CorruptData, "journal")


async def test_a_journal_file_of_another_log_is_refused(tmp_path):
    """Its numbers fit, and what it says is of other streams."""
    for name in ("one", "two"):
        await written(tmp_path / name, checkpoint=False)
    name = sorted(path.name for path in (tmp_path / "one" / "journal").iterdir())[1]
    shutil.copy(tmp_path / "two" / "journal" / name, tmp_path / "one" / "journal" / name)
    await refused(tmp_path / "one", CorruptData, name)


async def test_a_first_start_that_was_cut_short_is_made_again(tmp_path):
    (tmp_path / "catalog.db").write_bytes(b"")
    (tmp_path / "journal").mkdir()
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"fine")
        await rig.crash()
        assert await rig.content("box/a") == b"fine"


async def test_a_catalog_of_another_directory_is_refused(tmp_path):
    for name in ("one", "two"):
        await written(tmp_path / name)
    put_catalog(tmp_path / "one", tmp_path / "two")
    await refused(tmp_path / "two", CorruptData, "belong to different data directories")


async def test_a_catalog_of_another_directory_costs_no_segment(tmp_path):
    """Seen from the wrong catalog every segment is an orphan."""
    async with Rig(tmp_path / "empty"):
        pass
    await written(tmp_path / "full")
    put_catalog(tmp_path / "empty", tmp_path / "full")
    await refused(tmp_path / "full", CorruptData, "belong to different data directories")


def put_catalog(source, target):
    for path in target.glob("catalog.db*"):
        path.unlink()
    shutil.copy(source / "catalog.db", target / "catalog.db")


async def test_a_lost_catalog_costs_no_segment_when_the_journal_was_trimmed(tmp_path):
    """Seen from a new catalog every segment is an orphan; the operator still has to restore the old one."""
    await written(tmp_path)
    segments = everything(tmp_path / "objects")
    for path in tmp_path.glob("catalog.db*"):
        path.unlink()
    with pytest.raises(CorruptData, match="are missing"):
        Rig(tmp_path).open()
    assert everything(tmp_path / "objects") == segments


async def test_a_lost_catalog_is_made_anew_when_the_journal_has_everything(tmp_path):
    await written(tmp_path, checkpoint=False)
    for path in tmp_path.glob("catalog.db*"):
        path.unlink()
    async with Rig(tmp_path) as rig:
        assert await rig.content("box/a") == b"".join(b"%04d" % number * 100 for number in range(60))


async def test_another_format_is_refused(tmp_path):
    await written(tmp_path)
    (tmp_path / "format.json").write_text('{"format": 2}')
    await refused(tmp_path, UnknownFormat, "has format 2")


async def test_a_directory_in_use_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("millstream.storage.data_dir.lock_directory.__defaults__", (0.0,))
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"mine")
        with pytest.raises(DirectoryInUse):
            Rig(tmp_path).open()
        assert await rig.content("box/a") == b"mine"


async def test_segments_that_no_catalog_names_are_removed(tmp_path):
    await written(tmp_path)
    segments = tmp_path / "objects" / "segments"
    (segments / "000000000099").write_bytes(b"a checkpoint was killed before it was committed")
    (segments / ".tmp-000000000100-1").write_bytes(b"and another while it was written")
    async with Rig(tmp_path) as rig:
        assert rig.segments() == ["000000000001"]
        assert await rig.content("box/a") == b"".join(b"%04d" % number * 100 for number in range(60))


async def test_files_that_are_not_ours_are_left_alone(tmp_path, caplog):
    """Whoever left a copy beside a segment must not find that the server does not start, or that the copy is gone."""
    await written(tmp_path)
    folders = ("segments", "journal", "transactions", "staged", "bodies", "snapshots")
    strange = [tmp_path / "objects" / folder / "x.bak" for folder in folders]
    strange += [tmp_path / "objects" / folder / "7" for folder in folders]
    for path in strange:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"a copy")
    async with Rig(tmp_path) as rig:
        rig.checkpoint()
        rig.merge()
        with contextlib.closing(rig.checkpointer()) as checkpointer:
            ArchiveKeeper(checkpointer.catalog, checkpointer.objects, merge_min=2, age_s=0, bytes_max=0).collect()
        await rig.restart()
        assert len(await rig.content("box/a")) == 60 * 400
    assert examine(tmp_path).healthy
    assert all(path.read_bytes() == b"a copy" for path in strange)
    assert "segments/x.bak" in caplog.text


async def test_folders_in_the_place_of_files(tmp_path):
    """Among objects they are left alone; in the journal they may stand where acknowledged data should be."""
    await written(tmp_path)
    (tmp_path / "objects" / "segments" / "000000000077").mkdir()
    async with Rig(tmp_path) as rig:
        assert len(await rig.content("box/a")) == 60 * 400
    (tmp_path / "journal" / "dir.log").mkdir()
    with pytest.raises(CorruptData, match=r"dir\.log has the name of a journal file and is a folder"):
        Rig(tmp_path).open()
    assert not examine(tmp_path).healthy


async def test_a_start_reads_the_journal_through_once(tmp_path, monkeypatch):
    await written(tmp_path)
    looked = []
    for module in (node, journal_file):
        scan = module.scan_journal
        monkeypatch.setattr(module, "scan_journal", lambda *place, scan=scan: looked.append(place) or scan(*place))
    async with Rig(tmp_path) as rig:
        assert len(await rig.content("box/a")) == 60 * 400
    assert len(looked) == 1
