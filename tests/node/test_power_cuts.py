"""A whole node under power cuts: appends, checkpoints, merges and restarts, cut off at any call.

Every story is told by a seed. SQLite's files are taken as they are at the cut; it syncs its own.
"""

from __future__ import annotations

import asyncio
import errno
import random

import pytest
from tests.storage.faulty_files import FaultyFiles, ForgetfulFiles

from millstream.model.errors import MillstreamError, OutcomeUnknown, SequenceGap, Unavailable

from .rig import BYTES, JSON, Rig, producer

KEYS = {"box/a": BYTES, "box/b": BYTES, "box/j": JSON}


class Ledger:
    """What was asked for of each stream, in order, and how much of it was answered."""

    def __init__(self):
        self.asked = {key: [] for key in KEYS}
        self.answered = dict.fromkeys(KEYS, 0)
        self.created = dict.fromkeys(KEYS, False)

    async def check(self, rig):
        for key in KEYS:
            if not self.created[key] and rig.node.machine.find(key) is None:
                continue
            found = await rig.content(key)
            kept = self._kept(key, found)
            assert kept >= self.answered[key], f"{key}: {self.answered[key]} were answered, {kept} are there"
            with pytest.raises(SequenceGap) as gap:
                await rig.append(key, b"?", KEYS[key], producer=producer("p", kept + 1))
            assert gap.value.expected == kept, f"{key}: the producer's state and its data have parted"
            del self.asked[key][kept:]
            self.answered[key] = kept

    def _kept(self, key, found):
        kept = 0
        for payload in self.asked[key]:
            if not found.startswith(payload):
                break
            found = found[len(payload) :]
            kept += 1
        assert not found, f"{key} holds what nobody asked for: {found[:60]!r}"
        return kept


class Story:
    def __init__(self, seed, ledger):
        self.rng = random.Random(seed)
        self.ledger = ledger

    async def run(self, rig):
        """Ask for things until the power is gone."""
        for key, kind in KEYS.items():
            await rig.create(key, kind)
            self.ledger.created[key] = True
        while True:
            turn = self.rng.random()
            if turn < 0.6:
                await asyncio.gather(*(self._append(rig, rig.append) for _ in range(self.rng.randint(1, 5))))
            elif turn < 0.7:
                await self._append(rig, rig.append_large)
            elif turn < 0.85:
                rig.checkpoint()
            elif turn < 0.92:
                rig.merge()
            elif turn < 0.95:
                await self._die_before_a_sync(rig)
            else:
                rig.evict()

    async def _die_before_a_sync(self, rig):
        """What the next process finds it shows to others: from then on it has to be durable."""
        rig.files.fail("sync", errno.EIO)
        with pytest.raises(Unavailable):
            await self._append(rig, rig.append)
        rig.files.heal()
        await rig.crash()
        await self.ledger.check(rig)

    async def _append(self, rig, append):
        key = self.rng.choice(list(KEYS))
        asked = self.ledger.asked[key]
        payload = b'"%b.%d%b"' % (key.encode(), len(asked), b"x" * self.rng.choice((0, 30, 400)))
        asked.append(payload)
        body = [payload] if KEYS[key] == JSON else payload
        await append(key, body, producer=producer("p", len(asked) - 1))
        self.ledger.answered[key] += 1


async def tell(folder, seed, files_for=FaultyFiles, lives=3):
    ledger = Ledger()
    disk = folder / "0"
    disk.mkdir(parents=True)
    for life in range(lives):
        story = Story(f"{seed}-{life}", ledger)
        files = files_for(disk)
        files.cut_power_after(story.rng.randint(1, 150))
        rig = Rig(disk, files=files)
        try:
            rig.open()
        except OSError:
            pass
        else:
            with pytest.raises((OSError, MillstreamError)):
                await live(rig, story)
            rig.die()
        disk = folder / str(life + 1)
        files.materialise(disk, f"{seed}-{life}")
        async with Rig(disk) as after:
            await ledger.check(after)


async def live(rig, story):
    await story.ledger.check(rig)
    await story.run(rig)


@pytest.mark.parametrize("seed", range(20))
async def test_what_was_answered_survives_any_power_cut(tmp_path, seed):
    await tell(tmp_path, seed)


@pytest.mark.parametrize("forgets", ["sync", "sync_directory"])
async def test_these_stories_find_a_sync_that_does_nothing(tmp_path, forgets):
    for seed in range(40):
        try:
            await tell(tmp_path / str(seed), seed, lambda disk: ForgetfulFiles(disk, forgets))
        except (AssertionError, MillstreamError, NotADirectoryError):
            return
    pytest.fail(f"no story found that {forgets} does nothing")


async def killed_before_the_sync(files, disk):
    """A node that was killed when it had written an append and not synced it, started again."""
    rig = Rig(disk, files=files)
    rig.open()
    await rig.create("box/a", BYTES, b"synced,")
    files.fail("sync", errno.EIO)
    with pytest.raises(OutcomeUnknown):
        await rig.append("box/a", b"written", producer=producer("p", 0))
    files.heal()
    await rig.crash()
    return rig


async def after_the_cut(files, folder):
    """Nodes on several of the disks that a power cut could leave now."""
    for seed in range(6):
        files.materialise(folder / str(seed), seed)
        async with Rig(folder / str(seed)) as rig:
            yield rig


async def test_a_retry_is_called_a_duplicate_only_if_what_it_repeats_is_durable(tmp_path):
    """The page cache outlives the process: the next one finds an append that no sync has seen."""
    (tmp_path / "disk").mkdir()
    files = FaultyFiles(tmp_path / "disk")
    rig = await killed_before_the_sync(files, tmp_path / "disk")
    await rig.append("box/a", b"written", producer=producer("p", 0))
    async for after in after_the_cut(files, tmp_path):
        assert await after.content("box/a") == b"synced,written"
    await rig.node.close()


async def test_a_checkpoint_takes_nothing_from_the_journal_that_is_not_durable(tmp_path):
    """Or the catalog is ahead of the journal after a power cut, and the next start is refused."""
    (tmp_path / "disk").mkdir()
    files = FaultyFiles(tmp_path / "disk")
    rig = await killed_before_the_sync(files, tmp_path / "disk")
    rig.checkpoint()
    async for after in after_the_cut(files, tmp_path):
        assert (await after.content("box/a")).startswith(b"synced,")
    await rig.node.close()
