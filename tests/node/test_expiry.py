"""Streams that end by themselves: on time, never early, and for good."""

from __future__ import annotations

import asyncio

import pytest

from millstream.model.commands import Expire
from millstream.model.errors import NotFound
from millstream.model.replies import Outcome

from .rig import BYTES, Rig, until
from .times import START, time_in_hand


@pytest.fixture
def time():
    with time_in_hand() as clocks:
        yield clocks


def is_there(rig, key="box/a"):
    try:
        rig.stream(key)
        return True
    except NotFound:
        return False


def read(rig, key="box/a"):
    """As a listener does: a read renews."""
    stream = rig.stream(key)
    rig.node.renew(stream)
    return stream


async def test_a_stream_past_its_deadline_reads_as_absent_at_once(tmp_path, time):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=10)
        time.pass_s(9.999)
        assert is_there(rig)
        assert rig.node.seconds_left(rig.stream("box/a")) == 1
        time.pass_s(0.001)
        assert not is_there(rig)
        with pytest.raises(NotFound):
            await rig.append("box/a", b"too late")
        assert await rig.create("box/a", BYTES, b"new") is not None
        assert await rig.content("box/a") == b"new"


async def test_reads_and_writes_keep_a_stream_alive(tmp_path, time):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=10)
        for turn in range(10):
            time.pass_s(9)
            if turn % 2:
                read(rig)
            else:
                await rig.append("box/a", b"y")
            await rig.node.writer.drain()
        assert is_there(rig)
        time.pass_s(10)
        assert not is_there(rig)


async def test_a_fixed_end_is_not_moved(tmp_path, time):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", expires_at_ms=START + 10_000)
        time.pass_s(9)
        read(rig)
        await rig.append("box/a", b"y")
        time.pass_s(1)
        assert not is_there(rig)


@pytest.mark.parametrize(("gone", "checkpointed"), [("crash", False), ("crash", True), ("evict", True)])
async def test_after_a_reload_the_deadline_is_never_earlier_than_a_reader_was_told(tmp_path, time, gone, checkpointed):
    """Renewals are journaled now and then only; what was not journaled is made up for."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=100)
        time.pass_s(9)  # less than a tenth of the TTL: this renewal stays in memory
        promised = time.ms + 100_000
        read(rig)
        await rig.node.writer.drain()
        if checkpointed:
            rig.checkpoint()
        if gone == "crash":
            await rig.crash()
        else:
            assert rig.evict() == ["box/a"]
        time.pass_s((promised - 1 - time.ms) / 1000)
        assert is_there(rig)
        time.pass_s(10.001)
        assert not is_there(rig), "later, but by no more than a tenth"


async def test_a_stream_that_was_over_is_not_back_because_memory_was_needed(tmp_path, time):
    """What is fetched again may live a little longer; so what is over stays until that is durable."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=100)
        rig.checkpoint()
        time.pass_s(100)
        assert not is_there(rig)
        assert rig.evict() == []
        assert not is_there(rig)
        await rig.submit(Expire("box/a", rig.node.machine.streams["box/a"].number))
        rig.checkpoint()
        rig.evict()
        assert not is_there(rig)


async def test_a_read_after_a_reload_never_brings_the_deadline_forward(tmp_path, time):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=100)
        await rig.crash()
        left = rig.node.seconds_left(rig.stream("box/a"))
        read(rig)
        assert rig.node.seconds_left(rig.stream("box/a")) >= left


async def test_renewals_by_reads_are_journaled_now_and_then(tmp_path, time):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=100)
        sequence = rig.node.writer.committed_sequence
        for _ in range(100):
            time.pass_s(1)
            read(rig)
            await rig.node.writer.drain()
        assert 9 <= rig.node.writer.committed_sequence - sequence <= 10


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_an_expired_stream_is_swept_and_its_space_freed(tmp_path, time, checkpointed):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x" * 500, ttl_s=10)
        await rig.create("box/b", BYTES, b"stays")
        if checkpointed:
            rig.checkpoint()
        time.pass_s(10)
        assert (await rig.expire("box/a")).outcome is Outcome.EXPIRED
        assert rig.node.machine.hot_bytes == (0 if checkpointed else 5)
        rig.checkpoint()
        rig.merge()
        assert list(rig.node.machine.streams) == ["box/b"]
        assert rig.node.catalog.stream_count() == 1
        await rig.crash()
        assert not is_there(rig)
        assert await rig.content("box/b") == b"stays"


async def test_expiring_what_is_not_over_or_not_the_same_does_nothing(tmp_path, time):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=10)
        assert (await rig.expire("box/a")).outcome is Outcome.NOTHING
        number = rig.stream("box/a").number
        await rig.delete("box/a")
        await rig.create("box/a", BYTES, b"new", ttl_s=10)
        time.pass_s(100)
        assert (await rig.submit(Expire("box/a", number))).outcome is Outcome.NOTHING


async def test_an_expired_name_taken_again_survives_a_crash_as_the_new_stream(tmp_path, time):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"old", ttl_s=10)
        rig.checkpoint()
        time.pass_s(10)
        new = await rig.create("box/a", BYTES, b"new")
        for _ in range(2):
            await rig.crash()
            assert rig.stream("box/a").number == new.number
            assert await rig.content("box/a") == b"new"
            rig.checkpoint()
        assert rig.node.catalog.stream_count() == 1


async def test_the_sweeper_finds_streams_in_memory_and_in_the_catalog(tmp_path, time):
    async with Rig(tmp_path) as rig:
        await rig.create("box/away", BYTES, b"x", ttl_s=10)
        rig.checkpoint()
        rig.evict()
        await rig.create("box/watched", BYTES, b"x", ttl_s=10)
        rig.node.sweeper.watch(rig.stream("box/watched"))
        rig.node.sweeper.start()
        await asyncio.sleep(0.05)
        assert rig.node.catalog.stream_count() == 1
        time.pass_s(11)  # the one that was reloaded gets a second more: an unjournaled renewal is made up for
        machine = rig.node.machine
        await until(lambda: all(machine.find(key).deleted for key in ("box/away", "box/watched")))
        await rig.node.sweeper.stop()


async def test_the_sweeper_counts_each_stream_it_ended_once(tmp_path, time):
    """Until the next checkpoint the catalog goes on listing a stream that has ended already."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=10)
        rig.checkpoint()
        time.pass_s(10)
        for _ in range(5):
            rig.node.sweeper._sweep_catalog()
            await rig.node.writer.drain()
        assert rig.node.sweeper.expired == 1


async def test_a_stream_that_was_over_before_1970_is_swept_as_well(tmp_path, time):
    """Stream-Expires-At takes any date; what nobody can read should not stay for ever."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", expires_at_ms=-10_000)
        assert not is_there(rig)
        rig.checkpoint()
        rig.node.sweeper._sweep_catalog()
        await rig.node.writer.drain()
        rig.checkpoint()
        assert rig.node.catalog.stream_count() == 0
