"""Read plans that follow each other: whatever lies where, nothing is skipped and nothing comes twice."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from millstream.node.bulk import Bounds, SegmentRange

from .feed_rig import ROOMY, FeedRig, filled


class Ledger:
    """Random appends to a few streams, and what was committed with which sequence."""

    def __init__(self, rig: FeedRig, seed: int) -> None:
        self.chance = random.Random(seed)
        self.written: list[tuple[int, str, bytes]] = []
        self._rig = rig

    async def write(self, count: int) -> None:
        for number in range(count):
            bucket, name = self.chance.choice(["box", "box", "box", "other"]), self.chance.choice("abc")
            key = f"{bucket}/{name}"
            if key not in self._rig.node.machine.streams:
                await self._rig.create(key)
            message = b"%05d" % (len(self.written) + number) + self.chance.randbytes(self.chance.randrange(40))
            await self._rig.append(key, message)
            if bucket == "box":
                self.written.append((self._rig.node.feed.now, name, message))

    async def write_to_all_tiers(self) -> None:
        """Merged blocks that reach over the beginning of the archive and the archive's end; and what is in memory."""
        rig, chance = self._rig, self.chance
        for _ in range(chance.randrange(4, 10)):
            await self.write(chance.randrange(5, 25))
            rig.checkpoint()
            if chance.random() < 0.3:
                rig.merge_archive()
        rig.merge()
        size = sum(path.stat().st_size for path in (rig.root / "objects" / "journal").iterdir())
        rig.drop_archive(bytes_max=int(size * chance.choice([0, 0.3, 0.6, 1])))
        await self.write(chance.randrange(10))

    def between(self, after: int, until: int, prefix: str = "") -> list[tuple[int, str, bytes]]:
        return [row for row in self.written if after < row[0] <= until and row[1].startswith(prefix)]

    def bounds(self) -> Bounds:
        count = self.chance.choice([1, 3, 10, 40, len(self.written), len(self.written) * 5 // 4])
        return self.chance.choice([Bounds(None, count), Bounds(count * 20, None), Bounds(count * 20, count)])


async def follow(rig: FeedRig, ledger: Ledger, after: int, until: int, prefix: str, bounds: Bounds) -> None:
    """Read from plan to plan; each holds what was committed up to its own end, all of it and nothing else."""
    while after < until:
        rows, plan = await rig.rows(after=after, until=until, prefix=prefix, bounds=bounds)
        assert after < plan.until <= until, "a plan ends behind what was asked for, or where it began"
        assert plan.up_to_date == (plan.until == rig.node.feed.now)
        found = sorted((row.sequence, row.stream, row.value) for row in rows)
        assert found == ledger.between(after, plan.until, prefix)
        assert sum(range_.messages for range_ in plan.ranges) >= len(found)
        after = plan.until


@pytest.mark.parametrize("seed", range(12))
async def test_bounded_plans_skip_nothing_wherever_the_messages_lie(tmp_path, seed):
    async with FeedRig(tmp_path, replace(ROOMY, block_bytes=256 if seed % 3 == 0 else 8192)) as rig:
        ledger = Ledger(rig, seed)
        await ledger.write_to_all_tiers()
        now, chance = rig.node.feed.now, ledger.chance
        for _ in range(12):
            after = chance.choice([0, chance.randrange(now)])
            until = chance.choice([now, chance.randrange(after, now + 1)])
            await follow(rig, ledger, after, until, chance.choice(["", "a"]), ledger.bounds())


async def test_a_block_that_reaches_into_the_archive_does_not_carry_a_plan_past_its_end(tmp_path):
    async with FeedRig(tmp_path, ROOMY) as rig:
        for _ in range(6):
            await filled(rig, 5)
            await filled(rig, 5, "box/b")
            rig.checkpoint()
        rig.merge()
        sizes = [path.stat().st_size for path in sorted((rig.root / "objects" / "journal").iterdir())]
        rig.drop_archive(bytes_max=sum(sizes[-3:]))
        until = rig.node.feed.earliest + 15
        _, everything = await rig.rows(until=until)
        blocks = [range_ for range_ in everything.ranges if isinstance(range_, SegmentRange)]
        bounds = Bounds(None, sum(range_.messages for range_ in blocks))  # room for the blocks and nothing else
        _, plan = await rig.rows(until=until, bounds=bounds)
        assert plan.until == rig.node.feed.earliest
        assert not plan.up_to_date
