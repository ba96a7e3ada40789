"""Merging: fewer and fuller segments with the same content, and no garbage."""

from __future__ import annotations

import contextlib
import random

import pytest
from msgspec.structs import replace
from tests.storage.blocks import digest_of

from millstream.model.errors import CorruptData
from millstream.model.records import Extent
from millstream.node.merging import Merger, _runs, choose
from millstream.storage.catalog.save import SegmentUse
from millstream.storage.segments.block import decode_block
from millstream.storage.segments.segment import SegmentBuilder, segment_name

from .rig import BYTES, JSON, TINY, Rig


async def many_small_segments(rig, count=8):
    for key, kind in (("box/a", BYTES), ("box/j", JSON), ("box/gone", BYTES)):
        await rig.create(key, kind)
    for turn in range(count):
        await rig.append("box/a", b"<%03d>" % turn * 7)
        await rig.append("box/j", [b"%d" % turn, b'{"turn":%d}' % turn])
        await rig.append("box/gone", b"x" * 50)
        rig.checkpoint()


async def contents(rig):
    return await rig.messages("box/j"), await rig.content("box/a")


def digest(rig, key):
    """The sum of a stream's digests: equal for equal messages at equal offsets, whatever the blocks."""
    stream = rig.stream(key)
    extents = rig.node.catalog.extents(stream.number, 0, stream.tail, 1000)
    blocks = [rig.node.objects.get_range(segment_name(e.segment), e.at, e.size) for e in extents]
    return digest_of(*(decode_block(block, stream.number) for block in blocks))


@pytest.mark.parametrize("block_bytes", [1, 64, 256, 100_000])
async def test_small_segments_become_one_with_the_same_content(tmp_path, block_bytes):
    async with Rig(tmp_path, replace(TINY, block_bytes=block_bytes)) as rig:
        await many_small_segments(rig)
        before = await contents(rig), digest(rig, "box/a"), digest(rig, "box/j")
        assert len(rig.segments()) == 8
        assert rig.merge() > 0
        assert len(rig.segments()) == 1
        assert (await contents(rig), digest(rig, "box/a"), digest(rig, "box/j")) == before
        await rig.crash()
        assert (await contents(rig), digest(rig, "box/a"), digest(rig, "box/j")) == before
        assert rig.merge() == 0


async def test_times_ids_and_positions_survive_a_merge(tmp_path):
    async with Rig(tmp_path) as rig:
        await many_small_segments(rig)

        def columns():
            stream = rig.stream("box/j")
            found = []
            for e in rig.node.catalog.extents(stream.number, 0, stream.tail, 1000):
                block = decode_block(rig.node.objects.get_range(segment_name(e.segment), e.at, e.size), e.stream)
                found += zip(block.lengths, block.times_ms, block.ids_ms, block.id_seqs, block.sequences, strict=True)
            return found

        before = columns()
        rig.merge()
        assert columns() == before


async def test_what_was_deleted_is_collected(tmp_path):
    async with Rig(tmp_path) as rig:
        await many_small_segments(rig)
        before = await contents(rig)
        await rig.delete("box/gone")
        rig.checkpoint()
        rig.merge()
        assert await contents(rig) == before
        count, size, _ = rig.node.catalog.segment_bytes()
        assert count == len(rig.segments()) == 1
        assert size == sum((tmp_path / "objects" / "segments" / name).stat().st_size for name in rig.segments())
        for key in ("box/a", "box/j"):
            await rig.delete(key)
        rig.checkpoint()
        rig.merge()
        assert rig.segments() == []
        assert rig.node.catalog.segment_bytes() == (0, 0, 0)


async def test_half_dead_segments_are_written_again_without_the_dead(tmp_path):
    async with Rig(tmp_path, replace(TINY, merge_segments_min=1000)) as rig:
        await rig.create("box/big", BYTES, b"B" * 10_000)
        await rig.create("box/small", BYTES, b"s" * 100)
        rig.checkpoint()
        await rig.delete("box/big")
        rig.checkpoint()
        assert rig.merge() == 1
        (name,) = rig.segments()
        assert (tmp_path / "objects" / "segments" / name).stat().st_size < 1000
        assert await rig.content("box/small") == b"s" * 100


async def test_a_merge_that_is_killed_is_as_good_as_none(tmp_path, monkeypatch):
    async with Rig(tmp_path) as rig:
        await many_small_segments(rig)
        before = await contents(rig)
        checkpointer = rig.checkpointer()
        merger = Merger(checkpointer, segments_min=2, block_bytes=256)

        def killed(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(checkpointer.catalog, "empty_segments", killed)
        with pytest.raises(KeyboardInterrupt):
            merger.step()
        checkpointer.close()
        assert len(rig.segments()) == 9, "the new segment is written, nobody knows it"
        assert await contents(rig) == before
        await rig.crash()
        assert len(rig.segments()) == 8
        assert await contents(rig) == before
        rig.merge()
        assert await contents(rig) == before


async def test_a_merge_killed_before_it_collected_collects_the_next_time(tmp_path):
    async with Rig(tmp_path) as rig:
        await many_small_segments(rig)
        before = await contents(rig)
        checkpointer = rig.checkpointer()
        assert Merger(checkpointer, segments_min=2, block_bytes=256).step()
        checkpointer.close()
        assert len(rig.segments()) == 9
        await rig.crash()
        assert await contents(rig) == before
        rig.merge()
        assert len(rig.segments()) == 1
        assert await contents(rig) == before


@pytest.mark.parametrize("fault", ["damaged", "missing"])
async def test_merges_go_around_a_segment_that_cannot_be_read(tmp_path, fault):
    """What is good in it stays, what is bad is not passed on, and the others are merged and collected."""
    async with Rig(tmp_path) as rig:
        await many_small_segments(rig)
        before = await contents(rig)
        names = rig.segments()
        path = tmp_path / "objects" / "segments" / names[3]
        whole = path.read_bytes()
        if fault == "damaged":
            path.write_bytes(whole[:120] + bytes([whole[120] ^ 1]) + whole[121:])
        else:
            path.unlink()
        damaged = path.read_bytes() if path.exists() else None
        with contextlib.closing(rig.checkpointer()) as checkpointer:
            merger = Merger(checkpointer, segments_min=2, block_bytes=256)
            with pytest.raises(CorruptData, match=rf"Stream box/\w+: .*segments/{path.name} at byte \d+"):
                merger.step()
            assert set(rig.segments()) >= set(names) - {path.name}
            while merger.step():
                pass
            collected = merger.collect()
        assert len(collected) == len(names) - 1
        rig._forget(collected)
        assert (path.read_bytes() if path.exists() else None) == damaged
        path.write_bytes(whole)  # restored: nothing is lost
        assert await contents(rig) == before


async def test_merging_comes_to_an_end_whatever_the_history(tmp_path):
    rng = random.Random(1)
    async with Rig(tmp_path) as rig:
        expected = {}
        for turn in range(40):
            key = f"box/{rng.randint(0, 5)}"
            if key not in expected:
                await rig.create(key)
                expected[key] = b""
            if rng.random() < 0.2:
                await rig.delete(key)
                del expected[key]
            else:
                payload = bytes([65 + turn % 26]) * rng.choice((1, 10, 300, 3000))
                await rig.append(key, payload)
                expected[key] += payload
            rig.checkpoint()
            if rng.random() < 0.3:
                rig.merge()
        rig.merge()
        for key, content in expected.items():
            assert await rig.content(key) == content


async def test_a_tiny_block_of_a_long_stream_is_not_merged_for_ever(tmp_path):
    """Its index entry and the segment's frame outweigh it: that does not make it half dead."""
    async with Rig(tmp_path) as rig:
        checkpointer = rig.checkpointer()
        builder = SegmentBuilder(1, 256)
        builder.add(100_000, 1 << 33, [(b"x", 1 << 41, 1 << 41, 0, 1 << 33)])
        with checkpointer.catalog.transaction():
            checkpointer.catalog.add_segment(1, builder.write(checkpointer.objects), builder.extents)
            checkpointer.catalog.set_state("next_segment", 2)
        checkpointer.close()
        assert rig.merge(steps_max=5) <= 1


# -- what is chosen ------------------------------------------------------------------------------------------


def uses(*sizes):
    return [SegmentUse(number, size + 100, size, live) for number, (size, live) in enumerate(sizes, 1)]


def test_a_few_small_segments_are_left_alone():
    assert choose(uses(*[(1000, 1000)] * 7), 8) == []


def test_enough_segments_of_one_size_are_merged():
    assert choose(uses(*[(1000, 1000)] * 8), 8) == list(range(1, 9))
    assert choose(uses(*[(1000, 1000)] * 4, *[(10 << 20, 10 << 20)] * 4), 8) == []


def test_half_dead_segments_come_first():
    assert choose(uses((100_000, 10_000), *[(1000, 1000)] * 8), 8) == [1]


def test_dead_and_very_large_segments_are_never_merged():
    assert choose(uses(*[(1000, 0)] * 10), 2) == []
    assert choose(uses(*[(60 << 20, 60 << 20)] * 10), 2) == []


def test_one_merge_is_bounded():
    chosen = choose(uses(*[(20 << 20, 20 << 20)] * 10), 2)
    assert 2 <= len(chosen) <= 3


def test_blocks_are_joined_up_to_the_wanted_size_and_never_across_a_gap():
    def joined(*spans):
        extents = [Extent(1, first, following, 1, 0, 10, 1, 1, 1) for first, following in spans]
        return [len(run) for run in _runs(extents, 1000)]

    assert joined((0, 10), (10, 20), (30, 40)) == [2, 1]
    assert joined((0, 900), (900, 1000), (1000, 1001)) == [2, 1]
    assert joined((0, 5000), (5000, 5001), (5001, 5002)) == [1, 2]
