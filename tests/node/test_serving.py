"""A node in one process: what is asked for is decided, kept and read again."""

from __future__ import annotations

import asyncio

import pytest

from millstream.model.commands import Create
from millstream.model.errors import BadRequest, Conflict, NotFound, StreamClosed
from millstream.model.offsets import BEGINNING, NOW
from millstream.model.replies import Outcome

from .rig import BYTES, JSON, RealRig, Rig


async def test_what_is_appended_is_read(tmp_path):
    async with RealRig(tmp_path) as rig:
        assert (await rig.create("box/a")).outcome is Outcome.CREATED
        assert (await rig.append("box/a", b"hello ")).tail == 6
        assert (await rig.append("box/a", b"world")).tail == 11
        assert await rig.content("box/a") == b"hello world"
        assert await rig.content("box/a", 6) == b"world"
        assert (await rig.read("box/a", BEGINNING)).end == 11
        assert (await rig.read("box/a", NOW)).pieces == []


async def test_json_messages_are_read_one_by_one(tmp_path):
    async with RealRig(tmp_path) as rig:
        await rig.create("box/j", JSON, [b"1", b'"two"'])
        await rig.append("box/j", [b'{"three":3}'])
        assert await rig.messages("box/j") == [b"1", b'"two"', b'{"three":3}']
        assert await rig.messages("box/j", 1) == [b'"two"', b'{"three":3}']
        with pytest.raises(BadRequest, match="inside a message"):
            await rig.read("box/j", 3)


async def test_creating_again_finds_the_same_stream(tmp_path):
    async with RealRig(tmp_path) as rig:
        first = await rig.create("box/a", BYTES, b"once")
        again = await rig.create("box/a", BYTES, b"twice")
        assert (again.outcome, again.number) == (Outcome.EXISTED, first.number)
        assert await rig.content("box/a") == b"once"
        with pytest.raises(Conflict):
            await rig.create("box/a", JSON)


async def test_a_closed_stream_takes_nothing_more_and_reads_on(tmp_path):
    async with RealRig(tmp_path) as rig:
        await rig.create("box/a")
        assert (await rig.append("box/a", b"last", closes=True)).closed
        with pytest.raises(StreamClosed) as refused:
            await rig.append("box/a", b"more")
        assert refused.value.tail == 4
        assert (await rig.close_stream("box/a")).outcome is Outcome.CLOSED
        assert await rig.content("box/a") == b"last"


async def test_a_deleted_stream_is_gone_and_its_name_is_free(tmp_path):
    async with RealRig(tmp_path) as rig:
        old = await rig.create("box/a", BYTES, b"old")
        await rig.delete("box/a")
        for ask in (rig.read("box/a"), rig.append("box/a", b"x"), rig.delete("box/a")):
            with pytest.raises(NotFound):
                await ask
        new = await rig.create("box/a", BYTES, b"new")
        assert new.number > old.number
        assert await rig.content("box/a") == b"new"


async def test_what_is_asked_for_in_one_turn_is_committed_together(tmp_path):
    async with RealRig(tmp_path) as rig:
        await rig.create("box/a")
        commits = rig.node.writer.commits
        receipts = await asyncio.gather(*(rig.append("box/a", b"%03d" % number) for number in range(50)))
        assert [receipt.tail for receipt in receipts] == list(range(3, 153, 3))
        assert rig.node.writer.commits == commits + 1
        assert await rig.content("box/a") == b"".join(b"%03d" % number for number in range(50))


async def test_batches_that_grow_too_large_are_committed_one_after_the_other(tmp_path):
    async with RealRig(tmp_path) as rig:
        await rig.create("box/a")
        commits = rig.node.writer.commits
        await asyncio.gather(*(rig.append("box/a", b"x" * 1000) for _ in range(10)))
        assert rig.node.writer.commits == commits + 5  # batch_bytes_max is 2048
        assert len(await rig.content("box/a")) == 10_000


async def test_nothing_is_visible_before_it_is_answered(tmp_path):
    async with RealRig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"seen")
        appended = rig.submit(rig.append_command("box/a", b" unseen"))
        while not appended.done():
            assert await rig.content("box/a") == b"seen"
            await asyncio.sleep(0)
        assert await rig.content("box/a") == b"seen unseen"


async def test_a_refusal_that_rests_on_something_in_flight_waits_for_it(tmp_path):
    async with RealRig(tmp_path) as rig:
        await rig.create("box/a")
        closing = rig.submit(rig.append_command("box/a", b"last", closes=True))
        refused = rig.submit(rig.append_command("box/a", b"more"))
        assert not refused.done()
        with pytest.raises(StreamClosed):
            await refused
        assert closing.done()


async def test_a_refusal_that_rests_on_nothing_is_told_at_once(tmp_path):
    async with RealRig(tmp_path) as rig:
        refused = rig.submit(rig.append_command("box/none", b"x"))
        assert isinstance(refused.exception(), NotFound)


async def test_many_streams_in_one_batch_keep_their_own_bytes(tmp_path):
    async with RealRig(tmp_path) as rig:
        keys = [f"box/{number}" for number in range(30)]
        await asyncio.gather(*(rig.create(key, BYTES, key.encode()) for key in keys))
        await asyncio.gather(*(rig.append(key, b" and more of " + key.encode()) for key in keys))
        for key in keys:
            assert await rig.content(key) == b"%b and more of %b" % (key.encode(), key.encode())


async def test_an_offset_beyond_the_tail_is_refused(tmp_path):
    async with RealRig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"four")
        assert (await rig.read("box/a", 4)).pieces == []
        with pytest.raises(BadRequest, match="beyond the stream's tail"):
            await rig.read("box/a", 5)


async def test_an_answer_that_fails_costs_nobody_else_theirs(tmp_path):
    """Both waiters rest on one batch; the first one's callback breaks."""
    async with Rig(tmp_path) as rig:
        answered = asyncio.get_running_loop().create_future()

        def broken(_):
            raise RuntimeError("a listener's mistake")

        rig.node.submit(Create("box/a"), broken)
        rig.node.submit(Create("box/b"), answered.set_result)
        receipt = await asyncio.wait_for(answered, 5)
        assert receipt.outcome is Outcome.CREATED
        assert rig.stream("box/a").tail == 0
