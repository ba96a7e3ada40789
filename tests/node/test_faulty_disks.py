"""Disks that are slow, that flip bits, and catalogs that SQLite brings back as they were some commits ago."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import sqlite3
import time

import pytest
from msgspec.structs import replace
from tests.storage.faulty_files import FaultyFiles

from millstream.model.errors import CorruptData, MillstreamError, NotFound

from .rig import BYTES, JSON, TINY, Rig, producer

ROOMY = replace(TINY, journal_file_bytes=1 << 20)  # nothing is trimmed off the journal


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.CRITICAL)


# -- slow syncs ------------------------------------------------------------------------------------------------


async def test_a_slow_sync_delays_answers_and_nothing_else(tmp_path):
    """Nothing is visible early, the loop goes on, and all that waits shares the next sync."""
    files = FaultyFiles(tmp_path)
    async with Rig(tmp_path, files=files) as rig:
        await rig.create("box/a", BYTES, b"durable")
        files.slow_s = 0.4
        commits = rig.node.writer.commits
        first = rig.submit(rig.append_command("box/a", b",first"))
        await asyncio.sleep(0.1)
        others = [rig.submit(rig.append_command("box/a", b",%d" % index)) for index in range(50)]
        longest_s, looks = 0.0, 0
        while not first.done():
            assert rig.stream("box/a").tail == 7
            assert await rig.content("box/a") == b"durable"
            began = time.monotonic()
            await asyncio.sleep(0.001)
            longest_s, looks = max(longest_s, time.monotonic() - began), looks + 1
        assert looks > 20
        assert longest_s < 0.3, "the loop waited for the disk"
        await asyncio.gather(*others)
        assert rig.node.writer.commits == commits + 2
        files.slow_s = 0.0
        assert await rig.content("box/a") == b"durable,first" + b"".join(b",%d" % index for index in range(50))


# -- flipped bits ----------------------------------------------------------------------------------------------


async def test_a_bit_flipped_on_read_is_never_served(tmp_path):
    """At every byte of a segment, footer and all: the right bytes, or none."""
    files = FaultyFiles(tmp_path)
    async with Rig(tmp_path, files=files) as rig:
        await rig.create("box/a", BYTES, b"some bytes that compress well " * 12)
        await rig.create("box/j", JSON, [b'{"n":%d}' % index for index in range(30)])
        expected = {key: await rig.content(key) for key in ("box/a", "box/j")}
        rig.checkpoint()
        (segment,) = rig.segments()
        size = (tmp_path / "objects" / "segments" / segment).stat().st_size
        refused = 0
        for at in range(size):
            files.flip_bit = 8 * at + at % 8
            for key, content in expected.items():
                try:
                    assert await rig.content(key) == content, f"{key}: a bit flipped at byte {at} was served"
                except CorruptData:
                    refused += 1
        assert refused > size / 3, "most of a segment is blocks"
        files.flip_bit = None
        assert {key: await rig.content(key) for key in expected} == expected, "what is refused once is not lost"


async def serves_or_refuses(rig, expected):
    """A bit flipped in the last batch looks like a torn tail, which is cut; nothing else may be missing."""
    try:
        found = await rig.content("box/a")
    except CorruptData:
        return True
    assert expected.startswith(found), f"bit {rig.files.flip_bit} was served: {found[:80]!r}"
    assert len(found) >= len(expected) - 60, f"bit {rig.files.flip_bit} cost more than the last batch"
    return False


async def test_bits_flipped_at_random_under_a_start_are_refused_or_harmless(tmp_path):
    """In the journal and in the segments, on the way in; the files are whole, so the next start finds everything."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"checkpointed")
        rig.checkpoint()
        for index in range(20):
            await rig.append("box/a", b",%d" % index * 20)
        expected = await rig.content("box/a")
    end = max(path.stat().st_size for path in rig.journal_files())
    rng, refused = random.Random(3), 0
    for number in range(150):
        disk = tmp_path.parent / f"{tmp_path.name}-{number}"
        shutil.copytree(tmp_path, disk)
        files = FaultyFiles(disk)
        files.flip_bit = rng.randrange(8 * end)
        flipped = Rig(disk, files=files)
        try:
            flipped.open()
        except MillstreamError:
            refused += 1
        else:
            refused += await serves_or_refuses(flipped, expected)
            await flipped.node.close()
        shutil.rmtree(disk)
    assert refused > 10


# -- the catalog, some commits ago -----------------------------------------------------------------------------


class Chronicle:
    """A node's story, with the catalog put aside after every commit of it."""

    def __init__(self, folder, seed, limits=ROOMY):
        self.merges = seed % 2 == 0
        self.rng = random.Random(seed)
        self.folder = folder
        self.rig = Rig(folder / "disk", limits)
        self.states = 0
        self.removed_at = 0  # states before this one name what is gone by now
        self.kept = {}
        self.seq = 0

    def put_aside(self):
        """The committed state as SQLite sees it, whatever is in its log."""
        self.states += 1
        source = sqlite3.connect(self.folder / "disk" / "catalog.db")
        target = sqlite3.connect(self.folder / f"catalog-{self.states}.db")
        source.backup(target)
        source.close()
        target.close()

    async def tell(self):
        rig = self.rig
        rig.root.mkdir()
        rig.open()
        self.put_aside()
        await rig.create("box/p")
        for _ in range(40):
            turn = self.rng.random()
            key = f"box/{self.rng.randint(1, 4)}"
            if turn < 0.5:
                await self._append(key)
            elif turn < 0.6 and key in self.kept:
                await rig.delete(key)
                del self.kept[key]
            elif turn < 0.7:
                await rig.append("box/p", b"%d," % self.seq, producer=producer("p", self.seq))
                self.seq += 1
            elif turn < 0.9:
                rig.checkpoint()
                self.put_aside()
            elif self.merges and turn < 0.95:
                self._merge()
        await rig.node.close()

    async def _append(self, key):
        payload = self.rng.randbytes(self.rng.choice((1, 30, 300)))
        if key not in self.kept:
            await self.rig.create(key)
            self.kept[key] = b""
        await self.rig.append(key, payload)
        self.kept[key] += payload

    def _merge(self):
        before = set(self.rig.segments())
        self.rig.merge()
        self.put_aside()
        if before - set(self.rig.segments()):
            self.removed_at = self.states

    def with_catalog(self, number):
        """A copy of the disk with the catalog of then."""
        disk = self.folder / f"disk-{number}"
        shutil.copytree(self.folder / "disk", disk)
        for path in disk.glob("catalog.db*"):
            path.unlink()
        shutil.copy(self.folder / f"catalog-{number}.db", disk / "catalog.db")
        return disk


@pytest.mark.parametrize("seed", range(6))
async def test_any_earlier_state_of_the_catalog_recovers_as_long_as_nothing_it_needs_was_removed(tmp_path, seed):
    chronicle = Chronicle(tmp_path, seed)
    await chronicle.tell()
    states = range(max(1, chronicle.removed_at), chronicle.states + 1)
    assert chronicle.merges or len(states) > 5
    for number in states:
        async with Rig(chronicle.with_catalog(number), ROOMY) as rig:
            for key in (f"box/{index}" for index in range(1, 5)):
                if key in chronicle.kept:
                    assert await rig.content(key) == chronicle.kept[key], f"state {number}: {key}"
                else:
                    with pytest.raises(NotFound):
                        rig.stream(key)
            expected = b"".join(b"%d," % index for index in range(chronicle.seq))
            assert await rig.content("box/p") == expected, f"state {number}"
            rig.checkpoint()
            assert await rig.content("box/p") == expected, f"state {number}, checkpointed again"


async def test_a_state_of_the_catalog_older_than_the_journal_is_refused_and_nothing_is_touched(tmp_path):
    chronicle = Chronicle(tmp_path, 1, replace(TINY, journal_file_bytes=300))
    await chronicle.tell()
    first = int(min(chronicle.rig.journal_files()).stem)
    assert first > 1, "the story was too short to have a file trimmed"
    disk = chronicle.with_catalog(1)
    before = {path: path.read_bytes() for path in disk.rglob("*") if path.is_file() and "catalog" not in path.name}
    with pytest.raises(CorruptData, match="Restore"):
        Rig(disk, TINY).open()
    after = {path: path.read_bytes() for path in disk.rglob("*") if path.is_file() and "catalog" not in path.name}
    assert after == before
