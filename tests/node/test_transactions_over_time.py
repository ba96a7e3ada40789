"""Transactions through restarts, time and trouble: nothing is lost, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest
from msgspec.structs import replace
from tests.node.desk import Desk, a_desk, objects_in
from tests.node.rig import JSON, TINY, RealRig, Rig, until
from tests.storage.faulty_files import FaultyFiles

from millstream.model.commands import CreateBucket, DeleteBucket
from millstream.model.errors import (
    CorruptData,
    OutcomeUnknown,
    Unavailable,
)
from millstream.node.clearing import clear_away
from millstream.node.feed import FeedWish
from millstream.node.staged_parts import BODIES, body_name
from millstream.node.transactions import PartName
from millstream.storage.archive.rows import selected
from millstream.storage.doctor import examine

pytestmark = pytest.mark.timeout(60)


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


async def test_parts_of_a_deleted_bucket_go_although_older_ones_live(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", ("a", 1))
        await desk.rig.submit(CreateBucket("other"))
        gone = Desk(desk.rig, bucket="other")
        await gone.stage(1, "0", ("a", 1))
        await desk.rig.submit(DeleteBucket("other"))
        await desk.rig.node.transactions.sweep()
        assert len(objects_in(desk.rig, "staged")) == 1
        await desk.commit(1, "0")
        assert await desk.read("a") == [1]


async def test_parts_of_a_deleted_bucket_are_not_told_of_in_the_next_of_that_name(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.rig.submit(CreateBucket("other"))
        await Desk(desk.rig, bucket="other").stage(1, "0", ("a", 1))
        transactions = desk.rig.node.transactions
        assert list(transactions.staged("other", desk.app, 1)) == ["0"]
        await desk.rig.submit(DeleteBucket("other"))
        await desk.rig.submit(CreateBucket("other"))
        assert transactions.staged("other", desk.app, 1) == {}


async def test_the_object_goes_when_the_segments_have_its_messages(tmp_path):
    async with a_desk(tmp_path, kind=RealRig) as desk:
        desk.rig.node.start()
        await desk.stage(1, "0", ("a", 1))
        await desk.commit(1, "0")
        assert len(objects_in(desk.rig, "transactions")) == 1
        await desk.rig.node.transactions.sweep()
        assert len(objects_in(desk.rig, "transactions")) == 1, "memory still reads from it"
        await desk.rig.node.upkeep.checkpoint()
        await desk.rig.node.transactions.sweep()
        assert objects_in(desk.rig, "transactions") == []
        assert await desk.read("a") == [1]


async def test_an_object_stays_for_reads_that_have_begun_and_no_longer(tmp_path):
    async with a_desk(tmp_path, replace(TINY, lease_s=0.3)) as desk:
        await desk.stage(1, "0", ("a", 1))
        await desk.commit(1, "0")
        await asyncio.sleep(0.4)  # the commit is older than a lease
        node = desk.rig.node
        plan = await node.bulk.plan("shop", "", 0, node.feed.now)
        desk.rig.checkpoint()
        node.transactions.cooled(node.writer.committed_sequence)
        async with node.leases.keeping(plan.lease):
            await asyncio.sleep(0.5)  # so is this read, but its lease is renewed
            await node.transactions.sweep()
            rows = [row for part in plan.ranges for found in node.bulk.rows(plan, part) for row in selected(*found)]
            assert [bytes(row.value) for row in rows if row.kind == "message"] == [b"1"]
        await node.transactions.sweep()
        assert objects_in(desk.rig, "transactions") == []


async def test_a_later_read_does_not_hold_an_object_that_it_cannot_name(tmp_path):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", ("a", 1))
        await desk.commit(1, "0")
        desk.rig.checkpoint()
        node = desk.rig.node
        node.transactions.cooled(node.writer.committed_sequence)
        await node.bulk.plan("shop", "", 0, node.feed.now)
        await node.transactions.sweep()
        assert objects_in(desk.rig, "transactions") == []


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
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", ("a", 1))
        await desk.commit(1, "0")
        (used,) = objects_in(desk.rig, "transactions")
        folder = tmp_path / "objects" / "transactions"
        (folder / "00000000000000000007").write_bytes(b"from a commit that never came to its batch")
        (folder / ".tmp-00000000000000000008-1").write_bytes(b"from one that was being merged")
        (tmp_path / "objects" / body_name(9)).write_bytes(b"from one that was arriving")
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


@pytest.mark.parametrize("step", ["stage", "commit"])
async def test_a_helper_that_hangs_costs_one_request_and_is_replaced(tmp_path, monkeypatch, step):
    """Stopped, not dead: it says nothing, and nothing says that it will not."""
    monkeypatch.setattr("millstream.node.staging_worker._STALL_S", 0.2)
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", ("a", 1))
        await desk.commit(1, "0")
        await desk.stage(2, "0", ("a", 2))
        transactions = desk.rig.node.transactions
        worker = transactions._stager if step == "stage" else transactions._merger
        worker._process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(5):
            with pytest.raises(Unavailable):
                await (desk.stage(2, "1", ("a", 3)) if step == "stage" else desk.commit(2, "0"))
        if step == "stage":
            await desk.stage(2, "1", ("a", 3))
            await desk.commit(2, "0", "1")
        else:
            await desk.commit(2, "0")
        assert await desk.read("a") == ([1, 2, 3] if step == "stage" else [1, 2])
        assert len(transactions.stored) == 2
        assert objects_in(desk.rig, "staged") == []


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
        await clear_away(rig.node.objects, rig.node.transactions._garbage)
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
