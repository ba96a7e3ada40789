"""Restarts and crashes: what was answered is there, what was not answered is there whole or not at all."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import textwrap

import pytest

from millstream.model.errors import NotFound, SequenceGap, StreamClosed
from millstream.model.replies import Outcome

from .rig import BYTES, JSON, RealRig, Rig, abandon, producer
from .times import START, time_in_hand


async def again(rig, how):
    await (rig.restart() if how == "restart" else rig.crash())


HOWS = ["restart", "crash"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("checkpoints", [(), (1,), (1, 2), (2,)])
async def test_everything_answered_is_there_again(tmp_path, how, checkpoints):
    async with Rig(tmp_path) as rig:
        await rig.create("box/bytes", BYTES, b"one")
        await rig.create("box/json", JSON, [b"1", b"[2]"])
        await rig.create("box/gone", BYTES, b"x")
        await rig.create("box/closed", BYTES, b"c", closed=True)
        if 1 in checkpoints:
            rig.checkpoint()
        await rig.append("box/bytes", b"two", stream_seq="s1")
        await rig.append("box/json", [b'"three"'], producer=producer("p", 0))
        await rig.delete("box/gone")
        number = rig.stream("box/json").number
        if 2 in checkpoints:
            rig.checkpoint()

        for _ in range(2):
            await again(rig, how)
            assert await rig.content("box/bytes") == b"onetwo"
            assert await rig.messages("box/json") == [b"1", b"[2]", b'"three"']
            assert rig.stream("box/json").number == number
            assert rig.stream("box/bytes").writers.stream_seq == "s1"
            with pytest.raises(NotFound):
                rig.stream("box/gone")
            with pytest.raises(StreamClosed):
                await rig.append("box/closed", b"more")
            duplicate = await rig.append("box/json", [b'"three"'], producer=producer("p", 0))
            assert duplicate.outcome is Outcome.DUPLICATE

        await rig.append("box/bytes", b"three")
        assert await rig.content("box/bytes") == b"onetwothree"


@pytest.mark.parametrize("how", HOWS)
async def test_sequences_and_numbers_go_on_where_they_stopped(tmp_path, how):
    async with Rig(tmp_path) as rig:
        numbers = []
        for turn in range(6):
            numbers.append((await rig.create(f"box/{turn}")).number)
            if turn % 2:
                rig.checkpoint()
            await again(rig, how)
        assert numbers == sorted(set(numbers))
        assert rig.node.machine.next_sequence == numbers[-1] + 1


@pytest.mark.parametrize("how", HOWS)
async def test_a_name_that_was_deleted_and_taken_again_is_the_new_stream(tmp_path, how):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"old", producer=producer("p", 0))
        rig.checkpoint()
        await rig.delete("box/a")
        new = await rig.create("box/a", JSON, [b"1"])
        for _ in range(2):
            await again(rig, how)
            assert rig.stream("box/a").number == new.number
            assert await rig.messages("box/a") == [b"1"]
            with pytest.raises(SequenceGap):  # the old stream's producers are not known here
                await rig.append("box/a", [b"2"], producer=producer("p", 1))
            rig.checkpoint()
            rig.evict()


async def test_the_incarnation_stays(tmp_path):
    async with Rig(tmp_path) as rig:
        first = rig.node.machine.incarnation
        await rig.restart()
        await rig.crash()
        assert rig.node.machine.incarnation == first


async def crash_in_flight(tmp_path, seed):
    """Submit without waiting, crash after a few turns of the loop, look, and go on: many times over."""
    rng = random.Random(seed)
    rig = RealRig(tmp_path)
    rig.open()
    await rig.create("box/a")
    content = b""
    for turn in range(8):
        asked = []
        for number in range(rng.randint(1, 12)):
            payload = b"<%d.%d:" % (turn, number) + b"x" * rng.choice((0, 10, 700)) + b">"
            command = rig.append_command("box/a", payload, producer=producer(f"p{turn}", number))
            asked.append((payload, rig.submit(command)))
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        for _ in range(rng.randint(0, 4)):
            await asyncio.sleep(rng.choice((0, 0, 0.001)))
        answered = [future.done() for _, future in asked]
        assert answered == sorted(answered, reverse=True), "answers come in order"
        abandon(rig.node)
        rig.open()
        if rng.random() < 0.3:
            rig.checkpoint()
        found = await rig.content("box/a")
        appended = found.removeprefix(content)
        kept = appended.count(b"<")
        assert found.startswith(content), "what was there before is gone"
        assert appended == b"".join(payload for payload, _ in asked[:kept]), "not what was asked for, in order"
        assert kept >= sum(answered), "something answered is lost"
        await producers_agree(rig, turn, kept, len(asked))
        content = found
    await rig.node.close()


async def producers_agree(rig, turn, kept, asked):
    """The producer's state and its data live and die together."""
    if kept:
        duplicate = await rig.append("box/a", b"again", producer=producer(f"p{turn}", kept - 1))
        assert duplicate.outcome is Outcome.DUPLICATE
    with pytest.raises(SequenceGap) as gap:
        await rig.append("box/a", b"too far", producer=producer(f"p{turn}", kept + 1))
    assert gap.value.expected == kept


@pytest.mark.parametrize("seed", range(8))
async def test_a_crash_at_any_moment_keeps_what_was_answered_and_nothing_by_half(tmp_path, seed):
    await crash_in_flight(tmp_path, seed)


def test_a_process_that_ends_without_a_word_loses_nothing_it_printed(tmp_path):
    program = textwrap.dedent(
        """
        import asyncio, os, sys
        from pathlib import Path
        from tests.node.rig import RealRig

        async def story():
            rig = RealRig(Path(sys.argv[1]))
            rig.open()
            await rig.create("box/a")
            for number in range(200):
                receipt = await rig.append("box/a", b"%06d" % number)
                os.write(1, b"%d\\n" % receipt.tail)
                if number == 60:
                    rig.checkpoint()
                if number == 120:
                    for later in range(50):
                        rig.submit(rig.append_command("box/a", b"%06d" % (121 + later)))
                    await asyncio.sleep(0)
                    os._exit(9)

        asyncio.run(story())
        """
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONPATH": "."}, timeout=30, check=False)
    assert done.returncode == 9, done.stderr
    tail = int(done.stdout.split()[-1])
    assert tail == 121 * 6

    async def look():
        async with Rig(tmp_path) as rig:
            content = await rig.content("box/a")
            assert content == b"".join(b"%06d" % number for number in range(len(content) // 6))
            assert len(content) >= tail

    asyncio.run(look())


async def test_closing_waits_for_what_is_in_flight(tmp_path):
    rig = Rig(tmp_path)
    rig.open()
    await rig.create("box/a")
    asked = [rig.submit(rig.append_command("box/a", b"x" * 500)) for _ in range(20)]
    await rig.restart()
    assert all(future.done() for future in asked)
    assert len(await rig.content("box/a")) == 10_000
    await rig.node.close()


async def test_replay_needs_only_what_the_catalog_does_not_have(tmp_path):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a")
        for _ in range(10):
            await rig.append("box/a", b"x")
        rig.checkpoint()
        for _ in range(3):
            await rig.append("box/a", b"y")
        await rig.crash()
        assert rig.node.replayed == 3
        rig.checkpoint()
        await rig.crash()
        assert rig.node.replayed == 0


async def test_commit_times_never_go_back_although_the_wall_clock_does(tmp_path):
    """The catalog has everything, so that nothing is replayed; the log's time still only grows."""
    with time_in_hand() as time:
        async with Rig(tmp_path) as rig:
            await rig.create("box/a", BYTES, b"first")
            rig.checkpoint()
            time.set_ahead_s(-3_600)
            await rig.restart()
            await rig.append("box/a", b"second")
            assert rig.stream("box/a").written_ms >= START
            rig.checkpoint()
            rig.merge()
            assert await rig.content("box/a") == b"firstsecond"
