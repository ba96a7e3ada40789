"""When the disk fails: writes stop with a reason, nobody is told what is not so, and reads go on."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest
from msgspec.structs import replace
from tests.storage.faulty_files import FaultyFiles

from millstream.model.errors import NotFound, OutcomeUnknown, StreamClosed, Unavailable

from .rig import BYTES, TINY, Rig, producer, until


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """What the log says is looked at where it matters."""
    caplog.set_level(logging.CRITICAL)


class Broken:
    """A node whose journal breaks at the next call of one kind."""

    def __init__(self, folder, call, number):
        self.files = FaultyFiles(folder)
        self.rig = Rig(folder, files=self.files)
        self.call, self.number = call, number

    async def __aenter__(self):
        rig = self.rig
        rig.open()
        await rig.create("box/cold", BYTES, b"cold")
        rig.checkpoint()
        await rig.append("box/cold", b" and hot")
        await rig.create("box/a", BYTES, b"kept")
        return self

    async def __aexit__(self, *_):
        await self.rig.node.close()

    def break_now(self):
        self.files.fail(self.call, self.number)

    async def reads_go_on(self):
        assert await self.rig.content("box/a") == b"kept"
        assert await self.rig.content("box/cold") == b"cold and hot"
        with pytest.raises(NotFound):
            self.rig.stream("box/new")


async def answers(*futures):
    return await asyncio.gather(*futures, return_exceptions=True)


FAULTS = [("sync", errno.EIO), ("pwrite", errno.EIO), ("pwrite", errno.ENOSPC), ("sync", errno.ENOSPC)]


@pytest.mark.parametrize(("call", "number"), FAULTS)
async def test_a_journal_that_cannot_be_written_stops_writes_and_not_reads(tmp_path, call, number, caplog):
    async with Broken(tmp_path, call, number) as broken:
        rig = broken.rig
        assert rig.node.trouble() is None
        broken.break_now()
        asked = [
            rig.submit(rig.append_command("box/a", b"never")),
            rig.submit(rig.append_command("box/a", b"closing", closes=True)),
            rig.submit(rig.append_command("box/a", b"refused, resting on the one before")),
        ]
        assert [type(answer) for answer in await answers(*asked)] == [OutcomeUnknown] * 3

        later = rig.submit(rig.append_command("box/a", b"later"))
        assert type(later.exception()) is Unavailable
        assert later.exception().code == "journal_failed"
        with pytest.raises(Unavailable):
            await rig.create("box/new")
        assert "the journal could not be written" in rig.node.trouble()
        assert "restart" in caplog.text
        await broken.reads_go_on()

        broken.files.heal()
        rig.node.writer.refuse(None)  # what the watch does when there is space: it must not turn writes on again
        with pytest.raises(Unavailable):
            await rig.append("box/a", b"later")
        await broken.reads_go_on()


@pytest.mark.parametrize(("call", "number"), FAULTS)
async def test_after_a_restart_what_was_answered_is_there_and_writes_go_on(tmp_path, call, number):
    async with Broken(tmp_path, call, number) as broken:
        broken.break_now()
        unknown = await answers(broken.rig.append("box/a", b"?", producer=producer("p", 0)))
        assert type(unknown[0]) is OutcomeUnknown
    async with Rig(tmp_path) as rig:
        found = await rig.content("box/a")
        assert found in (b"kept", b"kept?")
        await rig.append("box/a", b"?", producer=producer("p", 0))  # the client's retry, whatever happened
        assert await rig.content("box/a") == b"kept?"
        assert await rig.content("box/cold") == b"cold and hot"


@pytest.mark.parametrize("call", ["create", "allocate", "sync", "link", "sync_directory"])
async def test_a_disk_that_is_full_when_the_journal_needs_a_new_file(tmp_path, call):
    async with Broken(tmp_path, call, errno.ENOSPC) as broken:
        rig = broken.rig
        await rig.append("box/a", b"x" * 2000)
        broken.break_now()
        unknown = await answers(rig.append("box/a", b"y" * 3000))
        assert type(unknown[0]) is OutcomeUnknown
        assert "No space left" in rig.node.trouble()
        with pytest.raises(Unavailable):
            await rig.append("box/a", b"z")
        assert await rig.content("box/a") == b"kept" + b"x" * 2000
    async with Rig(tmp_path) as rig:
        assert await rig.content("box/a") in (b"kept" + b"x" * 2000, b"kept" + b"x" * 2000 + b"y" * 3000)
        await rig.append("box/a", b"z")


async def test_everything_that_waits_is_told_when_the_journal_fails(tmp_path):
    """What is being synced, what is full and waits for its turn, and what is being collected."""
    async with Broken(tmp_path, "sync", errno.EIO) as broken:
        rig = broken.rig
        broken.break_now()
        asked = [rig.submit(rig.append_command("box/a", b"x" * 900)) for _ in range(10)]
        await asyncio.sleep(0)
        asked += [rig.submit(rig.append_command("box/a", b"y")) for _ in range(10)]
        told = await answers(*asked)
        assert {type(answer) for answer in told} <= {OutcomeUnknown, Unavailable}
        assert type(told[0]) is OutcomeUnknown
        await broken.reads_go_on()


async def test_a_failed_journal_forgets_what_was_decided_on_top_of_it(tmp_path):
    async with Broken(tmp_path, "sync", errno.EIO) as broken:
        rig = broken.rig
        broken.break_now()
        await answers(rig.append("box/a", b"x", closes=True), rig.create("box/new"), rig.delete("box/cold"))
        stream = rig.stream("box/a")
        assert (stream.pending, stream.inflight, stream.closed, stream.tail) == (None, 0, False, 4)
        await broken.reads_go_on()


async def test_a_failed_journal_can_still_be_checkpointed(tmp_path):
    async with Broken(tmp_path, "sync", errno.EIO) as broken:
        rig = broken.rig
        broken.break_now()
        await answers(rig.append("box/a", b"never"))
        broken.files.heal()
        rig.checkpoint()
        await broken.reads_go_on()
    async with Rig(tmp_path) as rig:
        assert (await rig.content("box/a")).startswith(b"kept")


async def test_closing_a_node_with_a_failed_journal_ends(tmp_path):
    async with Broken(tmp_path, "sync", errno.EIO) as broken:
        broken.break_now()
        asked = [broken.rig.submit(broken.rig.append_command("box/a", b"x" * 900)) for _ in range(5)]
        await asyncio.wait_for(broken.rig.node.writer.drain(), 5)
        await answers(*asked)


# -- space -----------------------------------------------------------------------------------------------------


async def test_too_little_space_refuses_writes_with_a_reason_and_reads_go_on(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"kept")
    async with Rig(tmp_path, replace(TINY, low_space_bytes=1 << 60)) as rig:
        rig.node.start()
        await until(rig.node.trouble)
        assert "the disk has" in rig.node.trouble()
        assert "low_space_bytes" in rig.node.trouble()
        with pytest.raises(Unavailable) as refused:
            await rig.append("box/a", b"more")
        assert refused.value.code == "disk_nearly_full"
        assert not isinstance(refused.value, OutcomeUnknown)
        assert await rig.content("box/a") == b"kept"


async def test_writes_come_back_by_themselves_when_there_is_space_again(tmp_path, monkeypatch):
    monkeypatch.setattr("millstream.node.node._WATCH_S", 0.01)
    files = FaultyFiles(tmp_path)
    async with Rig(tmp_path, replace(TINY, low_space_bytes=1000), files) as rig:
        await rig.create("box/a")
        files.free_bytes = lambda _: 999
        rig.node.start()
        await until(rig.node.trouble)
        files.free_bytes = lambda _: 1000
        await until(lambda: rig.node.trouble() is None)
        await rig.append("box/a", b"more")
        await rig.close_stream("box/a")
        with pytest.raises(StreamClosed):
            await rig.append("box/a", b"x")


async def test_too_much_in_memory_holds_writes_back(tmp_path):
    async with Rig(tmp_path, replace(TINY, hot_bytes_max=100)) as rig:
        await rig.create("box/a", BYTES, b"x" * 101)
        assert rig.node._reason_to_refuse().code == "write_pressure"
        rig.checkpoint()
        assert rig.node._reason_to_refuse() is None


async def test_checkpoints_that_lag_hold_writes_back(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a")
        for _ in range(50):
            await rig.append("box/a", b"x")
        assert rig.node._reason_to_refuse().code == "write_pressure"
        rig.checkpoint()
        assert rig.node._reason_to_refuse() is None


async def test_the_watch_for_space_survives_a_look_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("millstream.node.node._WATCH_S", 0.01)
    files = FaultyFiles(tmp_path)
    looks = []

    def free_bytes(_):
        looks.append(1)
        if len(looks) < 3:
            raise OSError(errno.EIO, "statvfs")
        return 0

    async with Rig(tmp_path, replace(TINY, low_space_bytes=1000), files) as rig:
        files.free_bytes = free_bytes
        rig.node.start()
        await until(rig.node.trouble, 2)
        assert "low_space_bytes" in rig.node.trouble()
