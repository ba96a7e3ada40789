"""A read returns the same bytes wherever they lie: in memory, in segments, or on both sides of the border."""

from __future__ import annotations

import errno

import pytest
from msgspec.structs import replace

from millstream.model.errors import BadRequest, CorruptData, Unavailable

from .rig import BYTES, JSON, TINY, Rig

SIZES = (5, 1, 9, 30, 2, 2, 14, 1, 25, 8, 3, 3)
MESSAGES = [
    b'"%b"' % (bytes([97 + number]) * (size - 2)) if size > 2 else b"%d" % number for number, size in enumerate(SIZES)
]
WHOLE = b"".join(MESSAGES)
BOUNDARIES = {sum(map(len, MESSAGES[:count])) for count in range(len(MESSAGES) + 1)}


def limits(block_bytes):
    return replace(TINY, block_bytes=block_bytes)


async def hot(rig, key, batches):
    for batch in batches:
        await rig.append(key, batch)


async def cold(rig, key, batches):
    await hot(rig, key, batches)
    rig.checkpoint()
    assert rig.stream(key).hot is None


async def cold_in_many_segments(rig, key, batches):
    for batch in batches:
        await cold(rig, key, [batch])


async def merged(rig, key, batches):
    await cold_in_many_segments(rig, key, batches)
    assert rig.merge() > 0


async def straddling(rig, key, batches):
    half = len(batches) // 2
    await cold(rig, key, batches[:half])
    await hot(rig, key, batches[half:])
    assert 0 < rig.stream(key).hot_from < rig.stream(key).tail


async def checkpointed_and_not_yet_cooled(rig, key, batches):
    """The helper has committed, the server has not heard of it: both tiers hold the same."""
    half = len(batches) // 2
    await cold(rig, key, batches[:half])
    await hot(rig, key, batches[half:])
    checkpointer = rig.checkpointer()
    checkpointer.advance(rig.node.writer.committed_sequence)
    checkpointer.close()
    rig.merge()


async def replayed(rig, key, batches):
    await straddling(rig, key, batches)
    await rig.crash()


TIERS = [hot, cold, cold_in_many_segments, merged, straddling, checkpointed_and_not_yet_cooled, replayed]
TIERS_AND_BLOCKS = [*((tier, 20) for tier in TIERS), *((tier, size) for tier in (cold, merged) for size in (1, 10_000))]


@pytest.mark.parametrize(("tier", "block_bytes"), TIERS_AND_BLOCKS)
async def test_bytes_are_the_same_from_any_offset_with_any_limit(tmp_path, tier, block_bytes):
    async with Rig(tmp_path, limits(block_bytes)) as rig:
        await rig.create("box/a", BYTES)
        await tier(rig, "box/a", MESSAGES)
        for offset in range(len(WHOLE)):
            for bytes_max in (*range(1, len(WHOLE) - offset + 2, 3), 10_000):
                cut = await rig.read("box/a", offset, bytes_max)
                assert cut.start == offset
                assert offset < cut.end <= offset + bytes_max
                assert b"".join(cut.pieces) == WHOLE[offset : cut.end]
        assert (await rig.read("box/a", len(WHOLE), 10)).pieces == []
        for bytes_max in range(1, 40):
            assert await rig.content("box/a", 0, bytes_max) == WHOLE


@pytest.mark.parametrize(("tier", "block_bytes"), TIERS_AND_BLOCKS)
async def test_json_messages_are_the_same_from_any_boundary_with_any_limit(tmp_path, tier, block_bytes):
    batches = [MESSAGES[:1], MESSAGES[1:4], MESSAGES[4:5], MESSAGES[5:6], MESSAGES[6:10], MESSAGES[10:]]
    async with Rig(tmp_path, limits(block_bytes)) as rig:
        await rig.create("box/j", JSON)
        await tier(rig, "box/j", batches)
        for offset in range(len(WHOLE) + 1):
            if offset not in BOUNDARIES:
                with pytest.raises(BadRequest, match="inside a message"):
                    await rig.read("box/j", offset, 10_000)
                continue
            rest = MESSAGES[len(MESSAGES) - messages_behind(offset) :]
            for bytes_max in range(1, len(WHOLE) - offset + 2):
                cut = await rig.read("box/j", offset, bytes_max)
                assert cut.pieces == rest[: len(cut.pieces)]
                assert cut.end - offset <= bytes_max or len(cut.pieces) == 1
                assert cut.pieces or not rest


def messages_behind(offset):
    return len([boundary for boundary in BOUNDARIES if boundary > offset])


@pytest.mark.parametrize("tier", TIERS)
async def test_a_json_read_ends_at_the_same_message_wherever_the_messages_lie(tmp_path, tier):
    """A range has an ETag and is cached; it should not depend on when a checkpoint was made."""
    async with Rig(tmp_path, limits(20)) as rig:
        await rig.create("box/j", JSON)
        await tier(rig, "box/j", [[message] for message in MESSAGES])
        for offset in sorted(BOUNDARIES - {len(WHOLE)}):
            for bytes_max in range(1, len(WHOLE) - offset + 2):
                cut = await rig.read("box/j", offset, bytes_max)
                fitting = [boundary for boundary in BOUNDARIES if offset < boundary <= offset + bytes_max]
                assert cut.end == max(fitting, default=min(b for b in BOUNDARIES if b > offset)), (offset, bytes_max)


async def test_a_read_from_the_disk_and_one_from_the_page_cache_are_the_same(tmp_path, monkeypatch):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES)
        await cold_in_many_segments(rig, "box/a", MESSAGES)
        await rig.append("box/a", b"hot")
        monkeypatch.setattr(rig.node.objects, "get_range_cached", lambda *_: None)
        for offset in range(0, len(WHOLE), 7):
            assert await rig.content("box/a", offset, 10) == WHOLE[offset:] + b"hot"


async def test_blocks_that_are_merged_away_during_a_read_are_looked_up_again(tmp_path, monkeypatch):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES)
        await cold_in_many_segments(rig, "box/a", MESSAGES)
        reader, fetch = rig.node.reader, rig.node.reader._fetch
        monkeypatch.setattr(rig.node.objects, "get_range_cached", lambda *_: None)

        fetches = []

        def fetch_after_a_merge(extents):
            if not fetches:
                rig.merge()
            fetches.append(extents)
            return fetch(extents)

        monkeypatch.setattr(reader, "_fetch", fetch_after_a_merge)
        assert b"".join((await rig.read("box/a")).pieces) == WHOLE
        assert len(fetches) == 2


async def test_a_damaged_block_is_refused_and_not_read_around(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES)
        await cold(rig, "box/a", MESSAGES)
        (name,) = rig.segments()
        path = tmp_path / "objects" / "segments" / name
        content = bytearray(path.read_bytes())
        content[150] ^= 1
        path.write_bytes(content)
        with pytest.raises(CorruptData):
            await rig.read("box/a")


async def test_a_block_that_the_catalog_does_not_know_is_missed_and_not_skipped(tmp_path):
    async with Rig(tmp_path, limits(1)) as rig:
        await rig.create("box/a", BYTES)
        await cold(rig, "box/a", MESSAGES)
        checkpointer = rig.checkpointer()
        extents = checkpointer.catalog.extents_of_segments([1])
        with checkpointer.catalog.transaction():
            checkpointer.catalog.remove_extents(extents[3:4])
        checkpointer.close()
        with pytest.raises(CorruptData, match="no segment block holds offset 15"):
            await rig.read("box/a")


async def test_very_many_small_blocks_are_read_in_several_answers(tmp_path):
    async with Rig(tmp_path, limits(1)) as rig:
        await rig.create("box/j", JSON)
        await rig.append("box/j", [b"%d" % (number % 10) for number in range(5000)])
        rig.checkpoint()
        assert len(await rig.messages("box/j")) == 5000
        assert await rig.content("box/j", 4321) == b"".join(b"%d" % (number % 10) for number in range(4321, 5000))


async def test_a_disk_that_cannot_be_read_now_is_said_to_be_so(tmp_path, monkeypatch):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES)
        await cold(rig, "box/a", MESSAGES)

        def broken(*_):
            raise OSError(errno.EIO, "the disk is on fire")

        monkeypatch.setattr(rig.node.objects, "get_range_cached", broken)
        monkeypatch.setattr(rig.node.objects, "get_range", broken)
        with pytest.raises(Unavailable, match="cannot be read from disk now"):
            await rig.read("box/a")
        monkeypatch.undo()
        assert await rig.content("box/a") == WHOLE
