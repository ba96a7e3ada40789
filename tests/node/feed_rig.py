"""A node on a test bench, and the feed's side of upkeep: archives that are merged and dropped."""

from __future__ import annotations

import contextlib

from msgspec.structs import replace

from millstream.model.commands import PublishSnapshot, Trim
from millstream.node.archiving import ArchiveKeeper
from millstream.node.bulk import Bounds
from millstream.node.feed import FeedWish
from millstream.node.leases import held_now
from millstream.storage.archive.object import archive_name
from millstream.storage.archive.rows import selected

from .rig import TINY, Rig

ROOMY = replace(TINY, journal_file_bytes=1 << 16)


class FeedRig(Rig):
    def keeper(self, checkpointer, age_s=1e6, bytes_max=1 << 40, merge_min=2):
        return ArchiveKeeper(
            checkpointer.catalog, checkpointer.objects, merge_min=merge_min, age_s=age_s, bytes_max=bytes_max
        )

    def chunks(self):
        """The bytes of every chunk there is."""
        places = self.node.catalog.archives.all_chunks()
        return [self.node.objects.get_range(archive_name(place.archive), place.at, place.size) for place in places]

    def merge_archive(self):
        with contextlib.closing(self.checkpointer()) as checkpointer:
            keeper = self.keeper(checkpointer)
            merges = 0
            while keeper.merge():
                merges += 1
                assert merges < 20
            keeper.collect(self.held_archives)
            return merges

    def drop_archive(self, **limits):
        with contextlib.closing(self.checkpointer()) as checkpointer:
            keeper = self.keeper(checkpointer, **limits)
            dropped = keeper.drop(self.node.clock.lease_ms())
            keeper.collect(self.held_archives)
            return dropped

    def held_archives(self):
        return held_now(self.root, self.node.clock.lease_ms()).archives_below

    def archives(self):
        return sorted(path.name for path in (self.root / "objects" / "journal").iterdir())

    async def trim(self, key, offset):
        return await self.submit(Trim(key, offset))

    async def snapshot(self, key, offset, payload):
        return await self.submit(PublishSnapshot(key, offset, "text/plain", len(payload), b"d" * 16, payload))

    async def entries(self, bucket="box", after=None, limit=1000, prefix="", with_data=False, bytes_max=1 << 30):
        after = self.node.feed.earliest if after is None else after
        wish = FeedWish(bucket, prefix, with_data, limit, bytes_max)
        found = []
        while True:
            page = await self.node.feed.page(wish, after)
            found += page.entries
            assert page.next_sequence >= after
            after = page.next_sequence
            if page.up_to_date:
                assert after == self.node.feed.now
                return found

    async def rows(self, bucket="box", after=0, until=None, prefix="", bounds=None):
        """The rows of a plan, as a bulk read gives them."""
        until = self.node.feed.now if until is None else until
        plan = await self.node.bulk.plan(bucket, prefix, after, until, bounds or Bounds())
        rows = list(plan.rows)
        for range_ in plan.ranges:
            for portion, selection in self.node.bulk.rows(plan, range_):
                rows += selected(portion, selection)
        self.node.leases.drop(plan.lease)
        return [row._replace(value=None if row.value is None else bytes(row.value)) for row in rows], plan


async def filled(rig, count=10, key="box/a"):
    if key not in rig.node.machine.streams:
        await rig.create(key)
    for number in range(count):
        await rig.append(key, b"%03d" % number)
