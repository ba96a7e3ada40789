"""When the next commit begins: at the end of the turn, two turns after the last one, or with most of a crowd."""

from __future__ import annotations

import asyncio
import os

import pytest
from msgspec.structs import replace

from millstream.storage.files import Files

from .rig import TINY, Rig

ROOMY = replace(TINY, journal_file_bytes=1 << 20, batch_bytes_max=1 << 18)


class SyncByHand:
    """A kernel that is done when the test says so; until `is_slow` it is done at once."""

    def __init__(self, works_elsewhere):
        self.works_elsewhere = works_elsewhere
        self.is_slow = False
        self.asked = 0
        self.fileno = os.eventfd(0, os.EFD_NONBLOCK)

    def submit(self, fd):
        self.asked += 1
        if not self.is_slow:
            os.eventfd_write(self.fileno, 1)
        return True

    def collect(self):
        if not self.is_slow:
            os.eventfd_read(self.fileno)

    def close(self):
        os.close(self.fileno)


class FilesByHand(Files):
    def __init__(self, works_elsewhere):
        super().__init__()
        self.sync_by_hand = SyncByHand(works_elsewhere)

    def kernel_syncs(self):
        return [self.sync_by_hand]


class Crowd(Rig):
    """Writers of one stream."""

    def __init__(self, root, works_elsewhere=True):
        super().__init__(root, ROOMY, FilesByHand(works_elsewhere))
        self.answered = 0

    async def gather(self, count):
        """So many in one commit, as it is when nobody was there before."""
        await self.create("box/a")
        self.files.sync_by_hand.is_slow = True
        self.files.sync_by_hand.asked = 0
        await asyncio.sleep(0.01)
        self.write(count)
        assert self.asked == 0
        await asyncio.sleep(0)
        assert self.asked == 1
        self.synced()
        assert self.answered == count

    def write(self, count):
        for _ in range(count):
            self.node.submit(self.append_command("box/a", b"x"), self._done)

    def _done(self, answer):
        self.answered += 1

    @property
    def asked(self):
        return self.files.sync_by_hand.asked

    def synced(self):
        self.node.writer._kernel_synced(self.files.sync_by_hand)

    async def finish(self):
        while not self.node.writer._is_idle():
            await asyncio.sleep(0)
            if self.node.writer._flying is not None:
                self.synced()
        self.files.sync_by_hand.is_slow = False


async def test_two_halves_of_a_crowd_take_turns(tmp_path):
    async with Crowd(tmp_path) as crowd:
        await crowd.gather(40)
        crowd.write(19)
        assert crowd.asked == 1
        crowd.write(1)  # half of them: they do not wait for the others
        assert crowd.asked == 2
        crowd.write(20)
        assert crowd.asked == 2  # one at a time
        crowd.synced()
        assert (crowd.answered, crowd.asked) == (60, 3)  # the others were at the disk before these were answered
        await crowd.finish()
        assert crowd.answered == 80
        assert await crowd.content("box/a") == b"x" * 80


async def test_most_of_a_large_crowd_do_not_wait_for_the_others(tmp_path):
    async with Crowd(tmp_path) as crowd:
        await crowd.gather(160)
        crowd.write(139)
        assert crowd.asked == 1
        crowd.write(1)  # seven eighths of them
        assert crowd.asked == 2
        crowd.write(20)
        assert crowd.asked == 2  # one at a time
        crowd.synced()
        assert (crowd.answered, crowd.asked) == (300, 2)  # the others wait for those who ask again
        await crowd.finish()
        assert crowd.answered == 320
        assert await crowd.content("box/a") == b"x" * 320


@pytest.mark.parametrize(("writers", "works_elsewhere"), [(31, True), (64, False), (160, False)])
async def test_few_writers_or_a_busy_core_wait_for_their_turn(tmp_path, writers, works_elsewhere):
    async with Crowd(tmp_path, works_elsewhere) as crowd:
        await crowd.gather(writers)
        crowd.write(writers)
        assert crowd.asked == 1
        await asyncio.sleep(0)
        assert crowd.asked == 1
        await asyncio.sleep(0)
        assert crowd.asked == 2
        await crowd.finish()
        assert crowd.answered == 2 * writers
