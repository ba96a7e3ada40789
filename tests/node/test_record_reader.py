"""Reading by message: the same records and the same places, wherever they lie and however they got there."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from millstream.model.commands import Trim
from millstream.model.errors import CorruptData, Unavailable
from millstream.model.ids import U64_MAX, ZERO_ID, MessageId
from millstream.storage.segments.segment import segment_name

from .rig import BYTES, PLENTY, TINY, Rig, body_of

KEY = "_s3p/a"
Expected = list[tuple[tuple[int, int], bytes]]


async def fill(rig: Rig, batches: int, client_ids: bool, after_each=None) -> Expected:
    await rig.create(KEY, client_ids=client_ids)
    expected: Expected = []
    for number in range(batches):
        messages = [b"%d.%d" % (number, part) + b"-" * (number % 7 * 5) for part in range(number % 4 + 1)]
        first = MessageId(number // 2 * 3 + 1, number % 2 * 100) if client_ids else None
        receipt = await rig.append(KEY, body_of(messages), BYTES, first_id=first)
        ms, seq = receipt.last_id
        expected += [((ms, seq - len(messages) + 1 + at), message) for at, message in enumerate(messages)]
        if after_each is not None:
            after_each(number)
    return expected


async def records_after(rig: Rig, last: tuple[int, int], count: int = 10_000, bytes_max: int = PLENTY) -> Expected:
    """What READ does."""
    stream = rig.stream(KEY)
    place = await rig.node.records.place_after(stream, MessageId(*last))
    records = await rig.node.records.read(stream, place, count, bytes_max)
    at_once = rig.node.records.read_now(stream, place, count, bytes_max)
    assert at_once is None or at_once == records
    assert records.end == place + sum(map(len, records.payloads))
    return list(zip(zip(records.ids_ms, records.id_seqs, strict=True), records.payloads, strict=True))


async def check_everything(rig: Rig, expected: Expected) -> None:
    assert await records_after(rig, ZERO_ID) == expected
    assert await records_after(rig, (U64_MAX, U64_MAX)) == []
    for at in range(0, len(expected), 3):
        ms, seq = expected[at][0]
        assert await records_after(rig, (ms, seq)) == expected[at + 1 :]
        assert await records_after(rig, (ms, seq), count=2) == expected[at + 1 : at + 3]
        later = [record for record in expected if record[0] > (ms, U64_MAX)]
        assert await records_after(rig, (ms, U64_MAX), count=3) == later[:3]
    found: Expected = []
    while more := await records_after(rig, found[-1][0] if found else ZERO_ID, bytes_max=64):
        assert sum(len(data) for _, data in more) <= 64 or len(more) == 1
        found += more
    assert found == expected


@pytest.mark.parametrize("client_ids", [False, True])
@pytest.mark.parametrize("block_bytes", [16, 4096])
async def test_every_id_leads_to_what_is_behind_it(tmp_path, client_ids, block_bytes):
    async with Rig(tmp_path, replace(TINY, block_bytes=block_bytes)) as rig:

        def checkpoint_sometimes(number: int) -> None:
            if number % 5 == 4 and number < 20:
                rig.checkpoint()

        expected = await fill(rig, 24, client_ids, checkpoint_sometimes)
        await check_everything(rig, expected)  # in segments and in memory
        rig.checkpoint()
        rig.merge()
        await check_everything(rig, expected)
        await rig.crash()
        await check_everything(rig, expected)


async def test_trimming_is_seen_at_once_and_kept(tmp_path):
    async with Rig(tmp_path) as rig:
        expected = await fill(rig, 30, True, lambda number: rig.checkpoint() if number == 20 else None)
        for cut in (5, 17, 50, len(expected)):
            place = sum(len(message) for _, message in expected[:cut])
            await rig.submit(Trim(KEY, place, rig.stream(KEY).number))
            for after in (ZERO_ID, expected[0][0], expected[cut - 1][0]):
                assert await records_after(rig, after) == expected[cut:]
        rig.checkpoint()
        rig.merge()
        await rig.crash()
        assert await records_after(rig, ZERO_ID) == []
        stream = rig.stream(KEY)
        assert (stream.id_ms, stream.id_seq) == expected[-1][0]


async def test_reading_on_needs_no_search(tmp_path):
    """Who reads batch by batch asks for what follows the last id it got."""
    async with Rig(tmp_path, replace(TINY, block_bytes=64)) as rig:
        expected = await fill(rig, 40, False)
        rig.checkpoint()
        last = ZERO_ID
        for at in range(0, len(expected), 7):
            stream = rig.stream(KEY)
            place = rig.node.records.place_after_now(stream, last)
            assert place is not None, "the place was known after the read before"
            records = await rig.node.records.read(stream, place, 7, PLENTY)
            assert records.payloads == [message for _, message in expected[at : at + 7]]
            last = MessageId(records.ids_ms[-1], records.id_seqs[-1])


async def test_a_merge_under_way_is_planned_around(tmp_path):
    async with Rig(tmp_path, replace(TINY, block_bytes=64)) as rig:
        expected = await fill(rig, 24, False, lambda number: rig.checkpoint() if number % 4 == 3 else None)
        stream = rig.stream(KEY)
        reads = [asyncio.create_task(rig.node.records.read(stream, 0, 10_000, PLENTY)) for _ in range(4)]
        await asyncio.sleep(0)
        assert rig.merge() > 0
        for read in reads:
            assert (await read).payloads == [message for _, message in expected]


async def test_damage_is_never_served(tmp_path):
    async with Rig(tmp_path) as rig:
        await fill(rig, 8, False)
        rig.checkpoint()
        stream = rig.stream(KEY)
        (extent,) = rig.node.catalog.extents(stream.number, 0, stream.tail, 10)[-1:]
        path = tmp_path / "objects" / segment_name(extent.segment)
        data = bytearray(path.read_bytes())
        data[extent.at + extent.size - 1] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptData):
            await rig.node.records.read(stream, 0, 10_000, PLENTY)


async def test_a_disk_that_cannot_be_read_is_said_so(tmp_path):
    async with Rig(tmp_path) as rig:
        await fill(rig, 8, False)
        rig.checkpoint()
        stream = rig.stream(KEY)
        for path in (tmp_path / "objects" / "segments").iterdir():
            path.unlink()
            rig.node.objects.forget(f"segments/{path.name}")
        with pytest.raises(Unavailable):
            await rig.node.records.read(stream, 0, 10_000, PLENTY)
