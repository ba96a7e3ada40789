"""Names that are deleted and taken again while somebody waits: what he asks for then is of the one that he saw."""

from __future__ import annotations

import asyncio

import pytest
from tests.node.desk import a_desk, objects_in
from tests.node.rig import BYTES, Rig, until
from tests.node.times import time_in_hand

from millstream.model.commands import Create, CreateBucket, DeleteBucket, PublishSnapshot
from millstream.model.errors import Conflict, Gone, NotFound
from millstream.model.facts import BucketSettings
from millstream.node.staging_worker import StagingWorker
from millstream.server.settings import Settings
from millstream.server.snapshot_routes import SnapshotRoutes
from millstream.server.stream_routes import StreamRoutes


class Gate:
    """Holds up a coroutine function until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, target: object, name: str) -> None:
        self._is_open = asyncio.Event()
        self.waiting = 0
        passed = getattr(target, name)

        async def wait(*given, **more):
            self.waiting += 1
            await self._is_open.wait()
            return await passed(*given, **more)

        monkeypatch.setattr(target, name, wait)

    async def reached(self) -> None:
        await until(lambda: self.waiting)

    def open(self) -> None:
        self._is_open.set()


async def renewed(rig: Rig, key: str, payload: bytes = b"another") -> None:
    await rig.delete(key)
    await rig.create(key, BYTES, payload)


# --- streams


def a_snapshot(key="box/a", offset=3):
    return PublishSnapshot(key, offset, "text/plain", 4, b"d" * 16, b"fold")


async def test_a_snapshot_never_lands_on_another_stream_of_that_name(tmp_path, monkeypatch):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"old")
        routes = SnapshotRoutes(StreamRoutes(rig.node, Settings()))
        gate = Gate(monkeypatch, rig.node.reader, "is_boundary")
        publishing = asyncio.ensure_future(routes._submit(a_snapshot(), rig.stream("box/a").number))
        await gate.reached()
        await renewed(rig, "box/a", b"new")
        gate.open()
        answer = await publishing
        assert isinstance(answer, Gone)
        assert answer.code == "stream_recreated"
        assert rig.stream("box/a").snapshot is None
        assert await rig.content("box/a") == b"new"


async def test_a_snapshot_whose_body_came_while_the_name_was_taken_again_is_refused(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"old")
        routes = SnapshotRoutes(StreamRoutes(rig.node, Settings()))
        seen = rig.stream("box/a").number  # as its sink notes it when the body begins
        await renewed(rig, "box/a", b"new")
        answer = await routes._submit(a_snapshot(), seen)
        assert isinstance(answer, Gone)
        await rig.delete("box/a")
        with pytest.raises(NotFound):
            await routes._submit(a_snapshot(), seen)


async def test_who_waited_for_the_disk_follows_what_is_in_memory_now(tmp_path):
    """A stream that left memory meanwhile has come back as another object, and only that one is told of changes."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x")
        rig.checkpoint()
        seen = rig.stream("box/a")
        assert rig.evict() == ["box/a"]
        await rig.append("box/a", b"y")
        assert rig.node.present(seen).tail == 2
        await renewed(rig, "box/a")
        with pytest.raises(NotFound):
            rig.node.present(seen)


async def test_retention_of_a_deleted_bucket_never_trims_another_of_that_name(tmp_path, monkeypatch):
    async with Rig(tmp_path) as rig:
        await rig.submit(CreateBucket("kept", BucketSettings(retention_bytes=1)))
        await rig.create("kept/a", BYTES, b"old")
        gate = Gate(monkeypatch, rig.node.retention, "_sweep_bucket")
        sweeping = asyncio.ensure_future(rig.node.retention.sweep())
        await gate.reached()
        await rig.delete("kept/a")
        await rig.submit(DeleteBucket("kept"))
        await rig.submit(CreateBucket("kept"))
        await rig.create("kept/a")
        for _ in range(3):
            await rig.append("kept/a", b"new")
        gate.open()
        await sweeping
        await rig.node.writer.drain()
        assert await rig.content("kept/a") == b"newnewnew"


# --- buckets


async def renew_bucket(rig: Rig, name: str = "shop") -> None:
    await rig.submit(DeleteBucket(name))
    await rig.submit(CreateBucket(name))


@pytest.mark.parametrize("rows", [(("a", 1),), ()])
async def test_parts_of_a_deleted_bucket_never_commit_into_another_of_that_name(tmp_path, monkeypatch, rows):
    async with a_desk(tmp_path) as desk:
        await desk.stage(1, "0", *rows)
        gate = Gate(monkeypatch, StagingWorker if rows else desk.rig.node.transactions, "run" if rows else "_submit")
        committing = asyncio.ensure_future(desk.commit(1, "0"))
        await gate.reached()
        await renew_bucket(desk.rig)
        gate.open()
        with pytest.raises(NotFound):
            await committing
        assert desk.rig.node.transactions.application("shop", "etl") is None
        assert not any(key.startswith("shop/") for key in desk.rig.node.machine.streams)
        assert objects_in(desk.rig, "transactions") == []
        assert await desk.reasons(1, "0") == [("part_missing", "0")]


async def test_a_part_that_was_being_staged_when_its_bucket_went_is_refused(tmp_path, monkeypatch):
    async with a_desk(tmp_path) as desk:
        gate = Gate(monkeypatch, StagingWorker, "run")
        staging = asyncio.ensure_future(desk.stage(1, "0", ("a", 1)))
        await gate.reached()
        await renew_bucket(desk.rig)
        gate.open()
        with pytest.raises(NotFound):
            await staging
        assert objects_in(desk.rig, "staged") == []


@pytest.mark.parametrize("crash", [False, True])
async def test_two_buckets_of_one_millisecond_are_two(tmp_path, crash):
    with time_in_hand():
        async with a_desk(tmp_path) as desk:
            await desk.stage(1, "0", ("a", 1))
            await renew_bucket(desk.rig)
            if crash:
                desk.rig.checkpoint()
                await desk.rig.crash()
            assert await desk.reasons(1, "0") == [("part_missing", "0")]


async def test_a_deletion_that_waited_spares_another_bucket_of_that_name(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.submit(CreateBucket("shop"))
        seen = rig.node.bucket("shop").number
        await renew_bucket(rig)
        with pytest.raises(NotFound):
            await rig.submit(DeleteBucket("shop", seen))
        await rig.submit(DeleteBucket("shop", rig.node.bucket("shop").number))


# --- buckets whose streams are over


@pytest.mark.parametrize("known", ["memory", "catalog", "both"])
async def test_a_bucket_of_streams_that_are_over_is_empty(tmp_path, known):
    with time_in_hand() as time:
        async with Rig(tmp_path) as rig:
            await rig.submit(CreateBucket("shop"))
            await rig.create("shop/a", BYTES, b"x", ttl_s=1)
            await rig.create("shop/b", BYTES, b"x", expires_at_ms=time.ms + 1000)
            await rig.create("shop/c", BYTES, b"x", ttl_s=100)
            if known != "memory":
                rig.checkpoint()
            if known == "catalog":
                rig.evict()
            time.pass_s(2.1)
            await rig.node.sweeper.sweep_bucket("shop")
            assert rig.node.bucket("shop").streams == 1
            with pytest.raises(Conflict, match="holds 1 stream"):
                await rig.submit(DeleteBucket("shop"))
            time.pass_s(120)
            await rig.node.sweeper.sweep_bucket("shop")
            await rig.submit(DeleteBucket("shop"))


async def test_many_that_are_over_go_in_slices(tmp_path):
    with time_in_hand() as time:
        async with Rig(tmp_path) as rig:
            for number in range(1200):
                rig.submit(Create(f"shop/{number}", BYTES, ttl_s=1))
            await rig.node.writer.drain()
            rig.checkpoint()
            for number in range(1200, 2000):
                rig.submit(Create(f"shop/{number}", BYTES, ttl_s=1))
            await rig.node.writer.drain()
            time.pass_s(2.1)
            await rig.node.sweeper.sweep_bucket("shop")
            assert rig.node.bucket("shop").streams == 0
            assert rig.node.sweeper.expired == 2000
