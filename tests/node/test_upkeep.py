"""Upkeep with its real helper process: when checkpoints come, and what happens when the helper dies."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
import sys

import msgspec
import pytest
from msgspec.structs import replace

from millstream.model.errors import CorruptData, NotFound, Unavailable
from millstream.node import memory, upkeep
from millstream.node.upkeep_process import Assignment, Request

from .rig import BYTES, TINY, Rig, until

# Checkpoints come by age: by records too, a helper that is slow to start would have `fill` refused as write pressure.
BUSY = replace(TINY, checkpoint_age_s=0.05, checkpoint_records=50)


class Running(Rig):
    """A node that does its own upkeep."""

    def open(self):
        super().open()
        self.node.start()

    @property
    def helper(self):
        return self.node.upkeep._process

    async def is_checkpointed(self):
        node = self.node
        await until(lambda: node.upkeep.applied == node.writer.committed_sequence and not node.machine.hot_bytes, 5)

    async def fill(self, key="box/a", count=30):
        for number in range(count):
            await self.append(key, b"%04d" % number)
        return b"".join(b"%04d" % number for number in range(count))


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    monkeypatch.setattr("millstream.node.upkeep._RESTART_DELAY_S", 0.01)
    monkeypatch.setattr("millstream.node.upkeep._TICK_S", 0.005)


async def test_a_checkpoint_is_due_by_records_by_bytes_and_by_age(tmp_path):
    due = {
        "records": replace(TINY, checkpoint_records=20),
        "bytes": replace(TINY, checkpoint_records=1000, checkpoint_bytes=500),
        "age": replace(TINY, checkpoint_records=1000, checkpoint_age_s=0.05),
    }
    for why, limits in due.items():
        async with Running(tmp_path / why, limits) as rig:
            await rig.create("box/a")
            content = await rig.fill()
            await until(lambda rig=rig: rig.node.upkeep.checkpoints)
            assert await rig.content("box/a") == content


async def test_new_streams_count_twice(tmp_path):
    """They take more memory than messages, and a restart must hold them all."""
    limits = replace(TINY, checkpoint_records=24, checkpoint_bytes=1 << 30, checkpoint_age_s=3600.0)
    async with Running(tmp_path, limits) as rig:
        await rig.create("box/a")
        await rig.fill(count=15)
        await asyncio.sleep(0.1)
        assert rig.node.upkeep.checkpoints == 0
        assert rig.node.writer.committed_sequence == 17  # with the bucket
        for number in range(3):
            await rig.create(f"box/new-{number}")
        await until(lambda: rig.node.upkeep.checkpoints)


async def test_nothing_is_due_when_nothing_has_changed(tmp_path):
    async with Running(tmp_path, BUSY) as rig:
        await rig.create("box/a", BYTES, b"x")
        await rig.is_checkpointed()
        await asyncio.sleep(0.15)
        assert rig.node.upkeep.checkpoints == 1


async def test_memory_is_let_go_in_small_slices_and_readers_never_miss_anything(tmp_path, monkeypatch):
    """A long tail, and a bucket's sorted changes, go over many turns of the loop; reads come in between."""
    monkeypatch.setattr("millstream.node.upkeep._SLICE", 3)
    hot = []
    async with Running(tmp_path, replace(TINY, checkpoint_records=1000, checkpoint_bytes=1 << 30)) as rig:
        for key in ("box/a", "box/b"):
            await rig.create(key)
            content = await rig.fill(key, 50)
        rig.node.recent.tail("box")
        await rig.fill("box/b", 5)  # not sorted yet
        checkpoint = asyncio.create_task(rig.node.upkeep.checkpoint())
        while not checkpoint.done():
            hot.append(rig.node.machine.hot_bytes)
            assert await rig.content("box/a") == content
            await asyncio.sleep(0)
        await checkpoint
        assert rig.node.machine.hot_bytes == 0
        assert not rig.node.recent.tail("box").changes
    steps = [before - after for before, after in itertools.pairwise(hot) if before > after]
    assert len(steps) > 20
    assert max(steps) <= 3 * len(b"0000")


async def test_small_segments_are_merged_and_garbage_is_collected(tmp_path):
    async with Running(tmp_path, BUSY) as rig:
        for key in ("box/a", "box/gone"):
            await rig.create(key)
        content = b""
        for _ in range(4):
            content += await rig.fill()
            await rig.append("box/gone", b"x" * 1000)
            await rig.is_checkpointed()
        await rig.delete("box/gone")
        await rig.is_checkpointed()
        await until(lambda: len(rig.segments()) == 1)
        assert rig.node.upkeep.merges > 0
        assert await rig.content("box/a") == content
        with pytest.raises(NotFound):
            rig.stream("box/gone")


async def test_a_helper_that_is_killed_is_replaced_and_nothing_is_lost(tmp_path):
    async with Running(tmp_path, BUSY) as rig:
        await rig.create("box/a")
        content = b""
        killed = set()
        for _ in range(3):
            await until(lambda: rig.helper is not None)
            killed.add(rig.helper.pid)
            os.kill(rig.helper.pid, signal.SIGKILL)
            content += await rig.fill()
            await rig.is_checkpointed()
            assert await rig.content("box/a") == content
        assert len(killed) == 3
        assert rig.node.upkeep.failures >= 3


async def test_a_helper_whose_server_was_killed_ends_without_a_word(tmp_path):
    """It may get to its report before the kernel gets to it."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x")
        through = rig.node.writer.committed_sequence
    assignment = Assignment(str(tmp_path), 1 << 17, 8, os.getpid(), 3600.0, 1 << 30, 0)
    command = [sys.executable, "-m", "millstream.node.upkeep_process", msgspec.json.encode(assignment).decode()]
    pipe = asyncio.subprocess.PIPE
    helper = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    helper._transport.get_pipe_transport(1).close()
    helper.stdin.write(msgspec.json.encode(Request(through)) + b"\n")
    assert await asyncio.wait_for(helper.stderr.read(), 20) == b""
    assert await helper.wait() == 1


async def test_closing_ends_the_helper_and_frees_the_directory(tmp_path):
    async with Running(tmp_path, BUSY) as rig:
        await rig.create("box/a", BYTES, b"x")
        await until(lambda: rig.helper is not None)
        helper = rig.helper
        await rig.restart()
        assert helper.returncode == 0
        assert await rig.content("box/a") == b"x"


async def test_idle_streams_leave_memory_when_there_are_too_many(tmp_path):
    async with Running(tmp_path, replace(BUSY, hot_streams_max=5)) as rig:
        keys = [f"box/{number}" for number in range(20)]
        for key in keys:
            await rig.create(key, BYTES, key.encode())
        await until(lambda: len(rig.node.machine.streams) <= 5)
        for key in keys:
            assert await rig.content(key) == key.encode()


async def test_memory_goes_back_to_the_machine_when_most_streams_have_left_it(tmp_path, monkeypatch):
    given_back = []
    monkeypatch.setattr(memory, "give_back", lambda: given_back.append(len(rig.node.machine.streams)))
    monkeypatch.setattr(upkeep, "_SLICE", 10)
    async with Running(tmp_path, replace(TINY, checkpoint_records=1000, hot_streams_max=5)) as rig:
        for number in range(20):
            await rig.create(f"box/{number}")
        await rig.node.upkeep.checkpoint()  # until then nothing may leave
        await until(lambda: given_back)
    assert given_back == [5]


async def test_a_damaged_segment_stops_neither_merges_nor_checkpoints(tmp_path, caplog):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"will be damaged" * 10)
        await rig.create("box/b")
        rig.checkpoint()
        (name,) = rig.segments()
    path = tmp_path / "objects" / "segments" / name
    content = bytearray(path.read_bytes())
    content[150] ^= 1
    path.write_bytes(content)
    async with Running(tmp_path, BUSY) as rig:
        for _ in range(3):
            await rig.append("box/b", b"fine" * 100)
            await rig.is_checkpointed()
        await until(lambda: rig.node.upkeep.merges >= 1 and rig.node.damage.count == 1)
        await until(lambda: len(rig.segments()) == 2)
        for _ in range(2):
            with pytest.raises(CorruptData):
                await rig.content("box/a")
        assert await rig.content("box/b") == b"fine" * 300
        assert rig.node.upkeep.failures == 0
    (told,) = [record.getMessage() for record in caplog.records]
    assert f"Stream box/a: the block in segments/{name} at byte" in told
    assert path.read_bytes() == content


async def test_a_helper_that_cannot_be_started_for_a_while_is_started_later(tmp_path, monkeypatch):
    """No memory or no descriptors for a moment must not end checkpoints for good."""
    spawn = asyncio.create_subprocess_exec
    refusals = 3

    async def reluctant(*args, **more):
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return await spawn(*args, **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", reluctant)
    async with Running(tmp_path, BUSY) as rig:
        await rig.create("box/a", BYTES, b"x")
        await rig.is_checkpointed()


@pytest.mark.parametrize(
    "last_words",
    [
        pytest.param("printf '{\"appl'", id="killed in the middle of a report"),
        pytest.param("printf 'no report\\n'; exec sleep 60", id="not a report"),
        pytest.param("head -c 3000000 /dev/zero; exec sleep 60", id="a report without an end"),
    ],
)
async def test_a_helper_that_cannot_be_understood_is_replaced(tmp_path, once_strange, last_words):
    strange = once_strange(last_words)
    async with Running(tmp_path, BUSY) as rig:
        await rig.create("box/a")
        content = await rig.fill()
        await rig.is_checkpointed()
        assert not strange
        assert rig.node.upkeep.failures == 1
        assert await rig.content("box/a") == content


PRESSED = replace(TINY, checkpoint_age_s=0.05, checkpoint_records=10_000, hot_bytes_max=100_000, part_bytes=8_000)


@pytest.mark.parametrize("size", [5_000, 20_000], ids=["in one piece", "in parts"])
async def test_what_is_created_and_deleted_does_not_grow_past_the_bound_while_the_helper_is_stopped(tmp_path, size):
    """A helper that hangs, not one that has died: nobody replaces it, and its silence must not fill the memory."""
    async with Running(tmp_path, PRESSED) as rig:
        await rig.create("box/kept", BYTES, b"kept")
        await rig.is_checkpointed()
        rig.helper.send_signal(signal.SIGSTOP)
        written = 0

        async def come_and_go() -> None:
            nonlocal written
            while written <= 5 * PRESSED.hot_bytes_max:
                await rig.create("box/a")
                await (rig.append if size < PRESSED.part_bytes else rig.append_large)("box/a", b"x" * size)
                written += size
                await rig.delete("box/a")

        with pytest.raises(Unavailable) as refused:
            await come_and_go()
        assert refused.value.code == "write_pressure"
        assert PRESSED.hot_bytes_max <= written <= PRESSED.hot_bytes_max + 2 * size
        assert payload_held(rig.node) <= PRESSED.hot_bytes_max + 2 * size
        await rig.delete("box/kept")  # what frees space is taken
        rig.helper.send_signal(signal.SIGCONT)
        await until(lambda: rig.node.machine.held_bytes == 0 and rig.node.writer.refusal is None)
        assert payload_held(rig.node) == 0
        await rig.create("box/b", BYTES, b"x" * 5_000)


def payload_held(node) -> int:
    """The bytes of all payloads that are reachable, each once."""
    told = [fact for batch in node.recent._raw for fact in batch.told]
    told += [change.fact for tail in node.recent._tails.values() for change in tail.changes]
    told += [record for stream in node.machine.streams.values() for record in stream.hot or ()]
    payloads = [part for parts in node.machine.uploads.values() for part in parts]
    payloads += [getattr(fact, "payload", b"") for fact in told]
    return sum({id(payload): len(payload) for payload in payloads}.values())
