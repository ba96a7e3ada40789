"""Streams that nobody asks for leave memory, and come back as they were."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from millstream.model.errors import Conflict, Fenced, NotFound, SequenceGap, StreamClosed, TooMany
from millstream.model.records import StreamRecord
from millstream.model.replies import Outcome

from .rig import BYTES, JSON, TINY, Rig, producer


async def evicted(rig):
    """Checkpoint and let everything go."""
    rig.checkpoint()
    gone = rig.evict()
    assert rig.node.machine.streams == {}
    return gone


def record_of(stream):
    return [getattr(stream, field) for field in StreamRecord.__struct_fields__]


async def test_a_stream_comes_back_with_all_its_state(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"one", ttl_s=1000, stream_seq="s1")
        await rig.append("box/a", b"two", producer=producer("p", 0))
        before = rig.stream("box/a")
        record = record_of(before)
        assert await evicted(rig) == ["box/a"]
        after = rig.stream("box/a")
        assert after is not before
        assert record_of(after) == record
        assert await rig.content("box/a") == b"onetwo"
        await rig.append("box/a", b"three")
        assert await rig.content("box/a") == b"onetwothree"
        with pytest.raises(Conflict, match="Stream-Seq is a growing sequence"):
            await rig.append("box/a", b"x", stream_seq="s1")


async def test_producers_come_back_with_their_stream(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"c", producer=producer("creator", 0))
        for seq in range(3):
            await rig.append("box/a", b"%d" % seq, producer=producer("p", seq))
        await rig.append("box/a", b"q", producer=producer("q", 0, epoch=7))
        for _ in range(2):
            await evicted(rig)
            assert (await rig.append("box/a", b"x", producer=producer("p", 1))).outcome is Outcome.DUPLICATE
            assert (await rig.append("box/a", b"x", producer=producer("creator", 0))).outcome is Outcome.DUPLICATE
            with pytest.raises(SequenceGap) as gap:
                await rig.append("box/a", b"x", producer=producer("p", 9))
            assert (gap.value.expected, gap.value.received) == (3, 9)
            with pytest.raises(Fenced) as fenced:
                await rig.append("box/a", b"x", producer=producer("q", 0, epoch=6))
            assert fenced.value.epoch == 7
            with pytest.raises(SequenceGap):
                await rig.append("box/a", b"x", producer=producer("unknown", 1))
        assert await rig.content("box/a") == b"c012q"
        await rig.append("box/a", b"3", producer=producer("p", 3))
        await evicted(rig)
        assert (await rig.append("box/a", b"x", producer=producer("p", 3))).outcome is Outcome.DUPLICATE


async def test_a_producer_written_after_the_reload_counts_beside_those_in_the_catalog(tmp_path):
    async with Rig(tmp_path, replace(TINY, producers_max=3)) as rig:
        await rig.create("box/a")
        for name in ("one", "two"):
            await rig.append("box/a", b"x", producer=producer(name, 0))
        await evicted(rig)
        await rig.append("box/a", b"x", producer=producer("three", 0))
        with pytest.raises(TooMany):
            await rig.append("box/a", b"x", producer=producer("four", 0))
        for name in ("one", "two", "three"):
            assert (await rig.append("box/a", b"x", producer=producer(name, 0))).outcome is Outcome.DUPLICATE
            await rig.append("box/a", b"y", producer=producer(name, 1))
        await evicted(rig)
        with pytest.raises(TooMany):
            await rig.append("box/a", b"x", producer=producer("four", 0))


async def test_who_closed_a_stream_is_remembered(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a")
        await rig.append("box/a", b"last", closes=True, producer=producer("p", 0))
        await rig.create("box/b")
        await rig.close_stream("box/b", producer=producer("p", 0))
        for _ in range(2):
            await evicted(rig)
            again = await rig.append("box/a", b"last", closes=True, producer=producer("p", 0))
            assert again.outcome is Outcome.DUPLICATE
            assert (await rig.close_stream("box/b", producer=producer("p", 0))).outcome is Outcome.DUPLICATE
            with pytest.raises(StreamClosed):
                await rig.append("box/a", b"last", closes=True, producer=producer("p", 1))
            await rig.crash()


async def test_what_is_hot_in_flight_followed_or_recent_stays(tmp_path):
    async with Rig(tmp_path) as rig:
        for key in ("box/hot", "box/flying", "box/followed", "box/recent", "box/idle"):
            await rig.create(key, BYTES, b"x")
        rig.checkpoint()
        rig.node.machine.coarse_s = 100
        await rig.append("box/hot", b"more")
        rig.stream("box/followed").followers = [object()]
        flying = rig.submit(rig.append_command("box/flying", b"more"))
        rig.stream("box/recent")
        machine, applied = rig.node.machine, rig.node.upkeep.applied
        for stream in machine.streams.values():
            stream.used = 100 if stream.key == "box/recent" else 0
        gone = [s.key for s in list(machine.streams.values()) if machine.evict_idle(s, applied, 100)]
        assert gone == ["box/idle"]
        await flying
        assert await rig.content("box/flying") == b"xmore"


async def test_a_stream_deleted_while_it_was_away_is_gone(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"old")
        await evicted(rig)
        await rig.delete("box/a")
        rig.evict()
        with pytest.raises(NotFound):
            rig.stream("box/a")
        await evicted(rig)
        with pytest.raises(NotFound):
            rig.stream("box/a")
        new = await rig.create("box/a", JSON, [b"1"])
        await evicted(rig)
        assert rig.stream("box/a").number == new.number
        assert await rig.messages("box/a") == [b"1"]


async def test_a_reader_of_a_stream_that_was_evicted_keeps_reading(tmp_path):
    """A listener may hold the object while the machine has loaded another for the same stream."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"one")
        old = rig.stream("box/a")
        await evicted(rig)
        await rig.append("box/a", b"two")
        assert b"".join((await rig.node.reader.read(old, 0, 100)).pieces) == b"one"
        assert await rig.content("box/a") == b"onetwo"


async def test_many_producers_cost_no_memory_until_they_come_back(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a")
        await asyncio.gather(*(rig.append("box/a", b"x", producer=producer(f"p{n}", 0)) for n in range(500)))
        await evicted(rig)
        await rig.append("box/a", b"y", producer=producer("p250", 1))
        assert set(rig.stream("box/a").producers) == {"p250"}
