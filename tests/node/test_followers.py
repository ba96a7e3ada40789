"""Live readers: told after the writers are answered, a few at a time, and never twice for one thing."""

from __future__ import annotations

import asyncio

from millstream.node.followers import SLICE

from .rig import Rig, until


class Reader:
    """A follower that reads what is new when it is told."""

    def __init__(self, rig, key, told):
        self.queued = False
        self.rig, self.stream, self.told = rig, rig.stream(key), told
        self.place = self.stream.tail
        self.times = 0

    def stream_changed(self):
        self.times += 1
        self.place = self.stream.tail
        self.told.append(self)


def following(rig, key, count):
    told = []
    readers = [Reader(rig, key, told) for _ in range(count)]
    for reader in readers:
        rig.node.followers.follow(reader.stream, reader)
    return readers, told


async def test_a_follower_is_told_of_each_change_and_reads_from_its_place(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a")
        await rig.create("box/b")
        (reader,), told = following(rig, "box/a", 1)
        for tail in (3, 6):
            await rig.append("box/a", b"new")
            await until(lambda tail=tail: reader.place == tail)
        await rig.append("box/b", b"not followed")
        await asyncio.sleep(0.01)
        assert told == [reader, reader]
        await rig.close_stream("box/a")
        await until(lambda: reader.times == 3)


async def test_writers_are_answered_before_a_thousand_followers_are_told(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a")
        readers, told = following(rig, "box/a", 1000)
        counts = []
        rig.node.submit(rig.append_command("box/a", b"x"), lambda _: counts.append(len(told)))
        while len(told) < 1000:
            before = len(told)
            await asyncio.sleep(0)
            assert len(told) - before <= SLICE
        assert counts == [0]
        assert told == readers, "who came first is told first"


async def test_a_follower_that_waits_in_line_is_told_once_for_everything(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a")
        _, told = following(rig, "box/a", 500)
        await asyncio.gather(*(rig.append("box/a", b"x") for _ in range(20)))
        await until(lambda: len(told) >= 500)
        await asyncio.sleep(0.01)
        assert len(told) <= 1000
        assert all(reader.place == 20 for reader in told[-500:])


async def test_who_has_left_is_not_followed_up(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a")
        (one, two), told = following(rig, "box/a", 2)
        rig.node.followers.leave(one.stream, one)
        rig.node.followers.leave(one.stream, one)
        assert rig.node.followers.count == 1
        await rig.append("box/a", b"x")
        await until(lambda: told)
        assert told == [two]
        rig.node.followers.leave(two.stream, two)
        rig.checkpoint()
        assert rig.evict() == ["box/a"]
