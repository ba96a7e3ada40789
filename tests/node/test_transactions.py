"""Transactions on a node: staged in a process of its own, committed with one batch, or refused with every reason."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.node.desk import Desk, a_desk, objects_in
from tests.node.rig import JSON, TINY

from millstream.model.errors import (
    BadRequest,
    Conflict,
    NotFound,
    TooLarge,
    Unavailable,
)
from millstream.node.transactions import Committed, PartName

pytestmark = pytest.mark.timeout(60)


# --- committing


async def test_parts_of_many_tasks_become_one_append_for_each_stream(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", ("a", 1), ("b", 20), ("a", 4), order=[1, 9, 4])
        await desk.stage(1, "1", ("a", 3), ("a", 2), ("c", 30), order=[3, 2, 1])
        done = await desk.commit(1, "0", "1")
        assert not done.is_duplicate
        figures = done.application
        assert (figures.version, figures.messages, figures.streams, figures.created) == (1, 6, 3, 3)
        assert [await desk.read(stream) for stream in "abc"] == [[1, 2, 3, 4], [20], [30]]
        assert objects_in(desk.rig, "staged") == []


async def test_what_is_committed_reads_the_same_from_memory_journal_and_segments(tmp_path):
    async with a_desk(tmp_path) as desk:
        rows = [(f"s{n % 5}", {"n": n, "text": "x" * (n % 300)}) for n in range(300)]
        for part in range(3):
            await desk.stage(1, str(part), *rows[part::3], order=range(part, 300, 3))
        await desk.commit(1, "0", "1", "2")
        wanted = {f"s{k}": [value for stream, value in rows if stream == f"s{k}"] for k in range(5)}

        async def found() -> dict[str, list[object]]:
            return {stream: await desk.read(stream) for stream in wanted}

        assert await found() == wanted
        await desk.rig.crash()
        assert await found() == wanted
        desk.rig.checkpoint()
        assert await found() == wanted
        assert desk.rig.node.machine.hot_bytes == 0
        await desk.rig.restart()
        assert await found() == wanted


async def test_others_append_meanwhile_and_get_their_places(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.rig.create("shop/a", JSON)
        await desk.stage(1, "0", *(("a", n) for n in range(100)))
        committing = asyncio.create_task(desk.commit(1, "0"))
        written = 0
        while not committing.done():
            await desk.rig.append("shop/a", [b"-1"])
            written += 1
        await committing
        await desk.rig.append("shop/a", [b"-2"])
        found = await desk.read("a")
        at = found.index(0)
        assert found[at : at + 100] == list(range(100)), "a transaction's messages follow each other without a gap"
        assert found == [-1] * at + list(range(100)) + [-1] * (written - at) + [-2]


async def test_a_small_read_inside_a_large_slice(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", *(("a", "x" * 100) for _ in range(50)))
        await desk.commit(1, "0")
        assert await desk.rig.messages("shop/a", bytes_max=250) == [b'"%b"' % (b"x" * 100)] * 50


# --- exactly once


async def test_the_same_commit_again_says_so_and_changes_nothing(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", ("a", 1))
        first = await desk.commit(1, "0")
        again = await desk.commit(1, "0", "parts", "that", "never", "were")
        assert again == Committed(first.application, True)
        await desk.rig.crash()
        assert (await desk.commit(1)).is_duplicate
        assert await desk.read("a") == [1]


async def test_two_drivers_at_once(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", ("a", 1))
        done = await asyncio.gather(*(desk.commit(1, "0") for _ in range(5)))
        assert sorted(answer.is_duplicate for answer in done) == [False, True, True, True, True]
        assert await desk.read("a") == [1]


async def test_a_zombie_is_fenced(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(4, "0", ("a", "zombie"))
        await desk.stage(5, "0", ("a", 5))
        await desk.commit(5, "0")
        assert objects_in(desk.rig, "staged") == [], "what cannot be committed any more is dropped"
        for refused in (desk.commit(4, "0"), desk.stage(4, "0", ("a", "zombie"))):
            with pytest.raises(Conflict, match="5") as caught:
                await refused
            assert caught.value.code == "transaction_fenced"
        assert await desk.read("a") == [5]


async def test_a_job_that_runs_again_stages_nothing(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", ("a", 1))
        await desk.commit(1, "0")
        assert await desk.stage(1, "0", ("a", 1)) is None
        assert objects_in(desk.rig, "staged") == []


async def test_a_task_that_runs_again_replaces_its_part(tmp_path):
    async with a_desk(tmp_path) as desk:
        first = await desk.stage(1, "0", ("a", "half"))
        second = await desk.stage(1, "0", ("a", "whole"))
        assert first.etag != second.etag
        assert await desk.reasons(1, PartName("0", first.etag)) == [("part_replaced", "0")]
        await desk.commit(1, PartName("0", second.etag))
        assert await desk.read("a") == ["whole"]


async def test_losers_of_a_race_between_attempts_are_dropped(tmp_path):
    async with a_desk(tmp_path) as desk:
        await asyncio.gather(desk.stage(1, "0-1", ("a", 1)), desk.stage(1, "0-2", ("a", 1)))
        await desk.commit(1, "0-2")
        assert await desk.read("a") == [1]
        assert objects_in(desk.rig, "staged") == []


# --- refusals


async def test_every_missing_part_is_named_and_the_rest_stays_staged(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "1", ("a", 1))
        assert await desk.reasons(1, "0", "1", "2") == [("part_missing", "0"), ("part_missing", "2")]
        await desk.stage(1, "0", ("a", 0))
        await desk.commit(1, "0", "1")
        assert await desk.read("a") == [0, 1]


async def test_a_refused_commit_leaves_no_object_and_can_be_repeated(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.rig.create("shop/closed", JSON, closed=True)
        await desk.stage(1, "0", ("a", 1), ("closed", 2))
        assert await desk.reasons(1, "0", create=False) == [("stream_not_found", "a"), ("stream_closed", "closed")]
        assert objects_in(desk.rig, "transactions") == []
        await desk.rig.delete("shop/closed")
        await desk.commit(1, "0")
        assert await desk.read("closed") == [2]


async def test_messages_for_json_streams_are_checked(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage_bytes(1, "0", b'{"stream":"a","json":1}\n{"stream":"a","value":"bm9wZQ=="}')
        assert await desk.reasons(1, "0") == [("invalid_json", "a")]


async def test_bad_parts_leave_nothing(tmp_path):
    async with a_desk(tmp_path) as desk:
        for body, is_arrow in ((b"nonsense", False), (b"nonsense", True), (b'{"stream":"a"}', False)):
            with pytest.raises(BadRequest):
                await desk.stage_bytes(1, "0", body, is_arrow)
        assert objects_in(desk.rig, "staged") == []
        assert await desk.reasons(1, "0") == [("part_missing", "0")]


async def test_limits_of_size(tmp_path):
    async with a_desk(tmp_path, replace(TINY, transaction_bytes_max=20, staged_bytes_max=40)) as desk:
        await desk.stage(1, "0", ("a", "x" * 30))
        with pytest.raises(TooLarge) as caught:
            await desk.commit(1, "0")
        assert caught.value.code == "transaction_too_large"
        await desk.stage(1, "1", ("a", "x" * 30))
        with pytest.raises(Unavailable) as full:
            await desk.stage(1, "2", ("a", "x"))
        assert full.value.code == "too_much_staged"
        await desk.rig.node.transactions.drop("shop", "etl", 1)
        await desk.stage(1, "2", ("a", "x"))


async def test_the_last_space_of_the_disk_is_the_journals(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", ("a", "x" * 100))
        free = desk.rig.node.objects.free_bytes()
        limits = desk.rig.node.transactions._limits
        desk.rig.node.transactions._limits = replace(limits, low_space_bytes=2 * free)
        for refused in (desk.stage(1, "1", ("a", "x")), desk.commit(1, "0")):
            with pytest.raises(Unavailable) as caught:
                await refused
            assert caught.value.code == "disk_nearly_full"
        desk.rig.node.transactions._limits = limits
        await desk.commit(1, "0")


async def test_a_missing_bucket(tmp_path):
    async with a_desk(tmp_path) as desk:
        stranger = Desk(desk.rig, bucket="nowhere")
        for refused in (stranger.stage(1, "0", ("a", 1)), stranger.commit(1, "0")):
            with pytest.raises(NotFound):
                await refused
