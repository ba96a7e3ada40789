"""Transactions on a node: staged in a process of its own, committed with one batch, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.node.rig import JSON, TINY, RealRig, Rig, until
from tests.storage.faulty_files import FaultyFiles

from millstream.model.commands import CreateBucket, DeleteBucket
from millstream.model.errors import (
    BadRequest,
    Conflict,
    CorruptData,
    NotFound,
    OutcomeUnknown,
    TooLarge,
    TransactionRefused,
    Unavailable,
)
from millstream.node.feed import FeedWish
from millstream.node.node import NodeLimits
from millstream.node.staged_parts import BODIES, StagedPart
from millstream.node.transactions import Committed, PartName
from millstream.storage.archive.rows import selected
from millstream.storage.doctor import examine

pytestmark = pytest.mark.timeout(60)
bodies = count()


class Desk:
    """Short ways to say what an application does; `rows` are (stream, message)."""

    def __init__(self, rig: Rig, app: str = "etl", bucket: str = "shop") -> None:
        self.rig = rig
        self.app = app
        self.bucket = bucket

    async def stage(
        self, version: int, part: str, *rows: tuple[str, object], order: Iterable = ()
    ) -> StagedPart | None:
        lines = [{"stream": stream, "json": value} for stream, value in rows]
        for line, key in zip(lines, order, strict=False):
            line["order"] = key
        return await self.stage_bytes(version, part, "\n".join(map(json.dumps, lines)).encode())

    async def stage_bytes(self, version: int, part: str, body: bytes, is_arrow: bool = False) -> StagedPart | None:
        name = f"{BODIES}/{next(bodies)}"
        self.rig.node.objects.put(name, [body])
        return await self.rig.node.transactions.stage(self.bucket, self.app, version, part, name, is_arrow)

    async def commit(self, version: int, *parts: str | PartName, create: bool = True, **more: object) -> Committed:
        listed = [PartName(part) if isinstance(part, str) else part for part in parts]
        return await self.rig.node.transactions.commit(
            self.bucket, self.app, version, listed, create=create, content_type=JSON, **more
        )

    async def reasons(self, version: int, *parts: str | PartName, **more: object) -> list[tuple[str, str | None]]:
        with pytest.raises(TransactionRefused) as caught:
            await self.commit(version, *parts, **more)
        return [(reason.code, reason.part or reason.stream) for reason in caught.value.reasons]

    async def read(self, stream: str) -> list[object]:
        return [json.loads(message) for message in await self.rig.messages(f"{self.bucket}/{stream}")]


def objects_in(rig: Rig, folder: str) -> list[str]:
    return sorted(path.name for path in (rig.root / "objects" / folder).iterdir())


@contextlib.asynccontextmanager
async def a_desk(root: Path, limits: NodeLimits = TINY, kind: type[Rig] = Rig):
    async with kind(root, limits) as rig:
        await rig.submit(CreateBucket("shop"))
        yield Desk(rig)


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


# --- restarts, time, space


async def test_staged_parts_survive_a_crash(tmp_path):
    async with a_desk(tmp_path) as desk:
        part = await desk.stage(1, "0", ("a", 1))
        await desk.rig.crash()
        await desk.commit(1, PartName("0", part.etag))
        assert await desk.read("a") == [1]


async def test_of_a_part_staged_twice_the_later_survives(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", ("a", "old"))
        (name,) = objects_in(desk.rig, "staged")
        old = (tmp_path / "objects" / "staged" / name).read_bytes()
        await desk.stage(1, "0", ("a", "new"))
        (tmp_path / "objects" / "staged" / name).write_bytes(old)  # a crash before it was removed
        await desk.rig.crash()
        await desk.commit(1, "0")
        assert await desk.read("a") == ["new"]


async def test_a_part_that_is_damaged_is_missing(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", ("a", 1))
        (name,) = objects_in(desk.rig, "staged")
        path = tmp_path / "objects" / "staged" / name
        path.write_bytes(path.read_bytes()[:-9])
        await desk.rig.crash()
        assert await desk.reasons(1, "0") == [("part_missing", "0")]


async def test_staged_parts_expire_and_free_their_space(tmp_path):
    async with a_desk(tmp_path, replace(TINY, staged_ttl_s=0.2)) as desk:
        await desk.stage(1, "0", ("a", 1))
        await asyncio.sleep(0.25)
        assert await desk.reasons(1, "0") == [("part_missing", "0")]
        await desk.rig.node.transactions.sweep()
        assert objects_in(desk.rig, "staged") == []
        assert desk.rig.node.transactions.parts.bytes == 0


async def test_parts_of_a_bucket_that_was_deleted_are_not_those_of_the_next(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", ("a", 1))
        await desk.rig.submit(DeleteBucket("shop"))
        await asyncio.sleep(0.01)
        await desk.rig.submit(CreateBucket("shop"))
        assert await desk.reasons(1, "0") == [("part_missing", "0")]
        await desk.rig.node.transactions.sweep()
        assert objects_in(desk.rig, "staged") == []


async def test_the_object_goes_when_the_segments_have_its_messages(tmp_path):
    async with a_desk(tmp_path, replace(TINY, lease_s=0.0), kind=RealRig) as desk:
        desk.rig.node.start()
        transactions = desk.rig.node.transactions
        transactions._limits = replace(transactions._limits, objects_kept_s=0)  # no read is under way here
        await desk.stage(1, "0", ("a", 1))
        await desk.commit(1, "0")
        assert len(objects_in(desk.rig, "transactions")) == 1
        await desk.rig.node.transactions.sweep()
        assert len(objects_in(desk.rig, "transactions")) == 1, "memory still reads from it"
        await desk.rig.node.upkeep.checkpoint()
        await desk.rig.node.transactions.sweep()
        assert objects_in(desk.rig, "transactions") == []
        assert await desk.read("a") == [1]


async def test_an_object_stays_for_reads_that_have_begun(tmp_path):
    async with a_desk(tmp_path, replace(TINY, lease_s=60.0)) as desk:
        await desk.stage(1, "0", ("a", 1))
        await desk.commit(1, "0")
        desk.rig.checkpoint()
        desk.rig.node.transactions.cooled(desk.rig.node.writer.committed_sequence)
        await desk.rig.node.transactions.sweep()
        assert len(objects_in(desk.rig, "transactions")) == 1


async def test_feed_and_bulk_reads_show_it_before_and_behind_a_checkpoint(tmp_path):
    async with a_desk(tmp_path) as desk:
        rows = [(f"s{n % 3}", {"n": n, "text": "x" * n}) for n in range(100)]
        await desk.stage(1, "0", *rows)
        await desk.commit(1, "0")

        async def seen() -> tuple[list[object], list[object]]:
            node = desk.rig.node
            page = await node.feed.page(FeedWish("shop", "", True, 1000, 1 << 20), 0)
            plan = await node.bulk.plan("shop", "", 0, node.feed.now)
            found = [row for part in plan.ranges for rows in node.bulk.rows(plan, part) for row in selected(*rows)]
            bulk = [(row.stream, bytes(row.value or b"")) for row in found]
            return [(entry.stream, entry.kind, entry.messages) for entry in page.entries], bulk

        first = await seen()
        for stream in ("s0", "s1", "s2"):
            wanted = [json.dumps(value).encode() for name, value in rows if name == stream]
            assert (stream, "appended", wanted) in first[0]
            assert [value for name, value in first[1] if name == stream] == wanted
        await desk.rig.crash()
        assert await seen() == first
        desk.rig.checkpoint()
        await desk.rig.restart()
        for path in (tmp_path / "objects" / "transactions").iterdir():
            path.unlink()
        assert await seen() == first


async def test_an_object_that_no_fact_names_is_garbage_after_a_crash(tmp_path):
    async with a_desk(tmp_path, replace(TINY, lease_s=0.0)) as desk:
        await desk.stage(1, "0", ("a", 1))
        await desk.commit(1, "0")
        (used,) = objects_in(desk.rig, "transactions")
        folder = tmp_path / "objects" / "transactions"
        (folder / "00000000000000000007").write_bytes(b"from a commit that never came to its batch")
        (folder / ".tmp-00000000000000000008-1").write_bytes(b"from one that was being merged")
        (tmp_path / "objects" / BODIES / "9").write_bytes(b"from one that was arriving")
        await desk.rig.crash()
        await desk.rig.node.transactions.sweep()
        assert objects_in(desk.rig, "transactions") == [used]
        assert objects_in(desk.rig, BODIES) == []


async def test_a_start_without_a_needed_object_is_refused(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", ("a", 1))
        await desk.commit(1, "0")
        (name,) = objects_in(desk.rig, "transactions")
        path = tmp_path / "objects" / "transactions" / name
        whole = path.read_bytes()
        desk.rig.die()
        path.write_bytes(whole.replace(b"1", b"2", 1))
        assert not examine(tmp_path).healthy
        path.unlink()
        assert not examine(tmp_path).healthy
        with pytest.raises(CorruptData, match=name):
            desk.rig.open()
        path.write_bytes(whole)
        assert examine(tmp_path).healthy
        desk.rig.open()
        assert await desk.read("a") == [1]


async def test_numbers_are_never_used_again(tmp_path):
    async with a_desk(tmp_path) as desk:
        etags = []
        for version in range(1, 4):
            etags.append(int((await desk.stage(version, "0", ("a", 1))).etag, 16))
            await desk.commit(version, "0")
            await desk.rig.restart()
        assert sorted(set(etags)) == etags


# --- trouble


async def test_the_helper_may_die(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", ("a", 1))
        desk.rig.node.transactions._stager._process.kill()
        with pytest.raises(Unavailable):
            await desk.stage(1, "1", ("a", 2))
        await desk.stage(1, "1", ("a", 2))
        await desk.commit(1, "0", "1")
        assert await desk.read("a") == [1, 2]


async def test_a_journal_that_fails_leaves_the_outcome_open_and_the_object_there(tmp_path):
    files = FaultyFiles(tmp_path)
    rig = Rig(tmp_path, TINY, files)
    rig.open()
    await rig.submit(CreateBucket("shop"))
    desk = Desk(rig)
    await desk.stage(1, "0", ("a", 1))
    files.fail("sync", 5, after=0)
    with pytest.raises(OutcomeUnknown):
        await desk.commit(1, "0")
    await rig.node.transactions.sweep()
    assert len(objects_in(rig, "transactions")) == 1
    with pytest.raises(Unavailable):
        await desk.commit(1, "0")
    rig.die()
    await rig.reap()


async def test_a_commit_is_answered_although_its_parts_cannot_be_cleared_away(tmp_path):
    """They are of no more use: the next start does it, and what is committed is committed."""
    files = FaultyFiles(tmp_path)
    async with Rig(tmp_path, TINY, files) as rig:
        await rig.submit(CreateBucket("shop"))
        desk = Desk(rig)
        await desk.stage(1, "0", ("a", 1))
        files.fail("unlink", 5, after=0)
        assert not (await desk.commit(1, "0")).is_duplicate
        files.heal()
        assert (await desk.commit(1, "0")).is_duplicate
        assert len(objects_in(rig, "staged")) == 1
        await rig.crash()
        await rig.node.transactions.clear_away(rig.node.transactions._garbage)
        assert objects_in(rig, "staged") == []
        assert await desk.read("a") == [1]


async def test_forgetting_an_application(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(5, "0", ("a", 1))
        await desk.commit(5, "0")
        await desk.stage(6, "0", ("a", 2))
        await desk.rig.node.transactions.forget("shop", "etl")
        assert objects_in(desk.rig, "staged") == []
        assert desk.rig.node.transactions.application("shop", "etl") is None
        await desk.stage(1, "0", ("a", 3))
        await desk.commit(1, "0")
        assert await desk.read("a") == [1, 3]


async def test_followers_are_woken_once_it_is_there(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.rig.create("shop/a", JSON)
        stream = desk.rig.stream("shop/a")
        woken: list[int] = []

        class Follower:
            queued = False

            def stream_changed(self) -> None:
                woken.append(stream.tail)

        desk.rig.node.followers.follow(stream, Follower())
        await desk.stage(1, "0", ("a", 1), ("a", 2))
        await desk.commit(1, "0")
        await until(lambda: woken)
        assert woken == [2]
