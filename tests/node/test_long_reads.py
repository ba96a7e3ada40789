"""Reads of any length: piece by piece from wherever the stream has it by then, up to an end that was fixed before."""

from __future__ import annotations

import asyncio

import pytest

from millstream.model.commands import Trim
from millstream.model.errors import CorruptData, Gone, NotFound, Unavailable
from millstream.node import long_reads
from millstream.node.long_reads import Room

from .rig import BYTES, JSON, Rig
from .test_tiers import BOUNDARIES, MESSAGES, TIERS_AND_BLOCKS, WHOLE, cold, cold_in_many_segments, hot, limits


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(long_reads, "_PIECE_BYTES", 20)
    monkeypatch.setattr(long_reads, "_PIECE_MESSAGES", 3)
    monkeypatch.setattr(long_reads, "_COUNTED_MAX", 2)


def long_read(rig, key, start, end):
    return rig.node.long_read(rig.stream(key), start, end)


async def all_of(read):
    return [bytes(piece) async for cut in read.cuts() for piece in cut.pieces]


@pytest.mark.parametrize(("tier", "block_bytes"), TIERS_AND_BLOCKS)
async def test_bytes_between_any_two_places(tmp_path, tier, block_bytes):
    async with Rig(tmp_path, limits(block_bytes)) as rig:
        await rig.create("box/a", BYTES)
        await tier(rig, "box/a", MESSAGES)
        for start in range(0, len(WHOLE), 7):
            for end in range(start + 1, len(WHOLE) + 1, 11):
                assert b"".join(await all_of(long_read(rig, "box/a", start, end))) == WHOLE[start:end]


@pytest.mark.parametrize(("tier", "block_bytes"), TIERS_AND_BLOCKS)
async def test_messages_between_any_two_boundaries_and_their_number(tmp_path, tier, block_bytes):
    async with Rig(tmp_path, limits(block_bytes)) as rig:
        await rig.create("box/j", JSON)
        await tier(rig, "box/j", [MESSAGES[:4], MESSAGES[4:5], MESSAGES[5:9], MESSAGES[9:]])
        boundaries = sorted(BOUNDARIES)
        for first, start in enumerate(boundaries[:-1]):
            for last, end in enumerate(boundaries[first + 1 :], first + 1):
                read = long_read(rig, "box/j", start, end)
                assert await read.count() == last - first
                assert await all_of(read) == MESSAGES[first:last]


async def test_the_largest_boundary_that_is_not_behind_a_place(tmp_path):
    for tier in (hot, cold):
        async with Rig(tmp_path / tier.__name__, limits(20)) as rig:
            await rig.create("box/j", JSON)
            await tier(rig, "box/j", [MESSAGES[:4], MESSAGES[4:]])
            stream = rig.stream("box/j")
            for offset in range(len(WHOLE) + 1):
                expected = max(place for place in BOUNDARIES if place <= offset)
                assert await rig.node.reader.boundary(stream, offset) == expected


async def test_what_happens_meanwhile_changes_nothing(tmp_path):
    """Checkpoints, merges and appends between any two pieces, and the stream leaving memory."""
    async with Rig(tmp_path, limits(20)) as rig:
        await rig.create("box/j", JSON)
        await cold_in_many_segments(rig, "box/j", [[message] for message in MESSAGES[:6]])
        await hot(rig, "box/j", [MESSAGES[6:8], MESSAGES[8:]])
        read, found, turns = long_read(rig, "box/j", 0, len(WHOLE)), [], 0
        async for cut in read.cuts():
            found += map(bytes, cut.pieces)
            await rig.append("box/j", [b'"later"'])
            if turns != 1:
                rig.checkpoint()
                assert "box/j" in rig.evict()
            if turns == 2:
                assert rig.merge()
            assert await read.count() == len(MESSAGES)
            turns += 1
        assert found == MESSAGES
        assert turns > 3


async def begun(rig, tier):
    """A read whose first piece is there."""
    await rig.create("box/a", BYTES)
    await tier(rig, "box/a", MESSAGES)
    cuts = long_read(rig, "box/a", 0, len(WHOLE)).cuts()
    await anext(cuts)
    return cuts


@pytest.mark.parametrize("tier", [hot, cold])
async def test_a_stream_that_is_gone_ends_the_read(tmp_path, tier):
    async with Rig(tmp_path, limits(20)) as rig:
        cuts = await begun(rig, tier)
        await rig.delete("box/a")
        with pytest.raises(NotFound):
            await anext(cuts)


@pytest.mark.parametrize("tier", [hot, cold])
async def test_another_stream_of_that_name_is_not_read(tmp_path, tier):
    async with Rig(tmp_path, limits(20)) as rig:
        cuts = await begun(rig, tier)
        await rig.delete("box/a")
        await rig.create("box/a", BYTES)
        await tier(rig, "box/a", MESSAGES)
        with pytest.raises(NotFound):
            await anext(cuts)


@pytest.mark.parametrize("tier", [hot, cold])
async def test_what_was_trimmed_meanwhile_ends_the_read(tmp_path, tier):
    async with Rig(tmp_path, limits(20)) as rig:
        cuts = await begun(rig, tier)
        await rig.submit(Trim("box/a", len(WHOLE)))
        with pytest.raises(Gone):
            await anext(cuts)


async def test_a_block_that_is_missing_ends_the_read(tmp_path):
    async with Rig(tmp_path, limits(1)) as rig:
        cuts = await begun(rig, cold)
        checkpointer = rig.checkpointer()
        with checkpointer.catalog.transaction():
            checkpointer.catalog.remove_extents(checkpointer.catalog.extents_of_segments([1])[-1:])
        checkpointer.close()
        with pytest.raises(CorruptData):
            [cut async for cut in cuts]


async def test_large_pieces_wait_for_each_other_and_small_ones_for_nobody():
    room, order = Room(), []

    async def read(name, size):
        async with room.holding(size):
            order.append(name)
            await asyncio.sleep(0.01)
            order.append(f"{name} is sent")

    async with asyncio.timeout(10), asyncio.TaskGroup() as reads:
        for name, size in (("first", 200 << 20), ("second", 200 << 20), ("small", 4 << 20), ("huge", 1 << 30)):
            reads.create_task(read(name, size))
    assert order.index("second") > order.index("first is sent")
    assert order.index("small") < order.index("first is sent")
    assert order.index("huge") > order.index("second is sent"), "alone, but it is read"


async def test_nobody_waits_for_ever_for_the_large_pieces_of_slow_clients(monkeypatch):
    monkeypatch.setattr(long_reads, "_PATIENCE_S", 0.05)
    room = Room()
    async with room.holding(200 << 20):
        with pytest.raises(Unavailable, match="large messages"):
            async with room.holding(200 << 20):
                pass
    async with asyncio.timeout(1), room.holding(200 << 20):
        pass  # whoever gave up has taken no room


async def test_a_few_bytes_are_found_in_two_tiers(tmp_path, monkeypatch):
    """Also where the disk must be waited for: a read then brings no more than what is in segments."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"a\xe2")
        rig.checkpoint()
        rig.evict()
        await rig.append("box/a", b"\x82")
        stream, reader = rig.stream("box/a"), rig.node.reader
        assert stream.hot_from == 2
        at_hand = reader.read_now
        monkeypatch.setattr(
            reader, "read_now", lambda of, at, size: None if at < stream.hot_from else at_hand(of, at, size)
        )
        assert (await reader.read(stream, 0, 3)).end == 2
        assert await reader.bytes_between(stream, 0, 3) == b"a\xe2\x82"
