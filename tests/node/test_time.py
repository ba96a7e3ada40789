"""Slow disks, and clocks that are set ahead and back: nothing ends early, comes back, or stays for ever."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

import pytest
from msgspec.structs import replace
from tests.node.desk import a_desk, objects_in
from tests.node.feed_rig import ROOMY, FeedRig, filled
from tests.node.rig import BYTES, TINY, Rig, until
from tests.node.times import START, YEAR_S, time_in_hand
from tests.storage.faulty_files import QuickFiles

from millstream.model.commands import ChangeBucket, CreateBucket
from millstream.model.errors import NotFound
from millstream.model.facts import BucketSettings, ClockRead
from millstream.model.timeline import Gap, Timeline
from millstream.node.clock import Clock, HelpersClock
from millstream.node.leases import LeaseBook, held_now


@pytest.fixture
def time():
    with time_in_hand() as clocks:
        yield clocks


class SlowFiles(QuickFiles):
    """A disk that syncs when we say so."""

    def __init__(self) -> None:
        super().__init__()
        self._gate = threading.Event()
        self._gate.set()

    def sync(self, fd: int) -> None:
        self._gate.wait(30)

    def hold(self) -> None:
        self._gate.clear()

    def let_go(self) -> None:
        self._gate.set()


def is_there(rig, key="box/a"):
    try:
        rig.stream(key)
        return True
    except NotFound:
        return False


def live(rig, key="box/a"):
    """As a listener does: a read renews."""
    rig.node.renew(rig.stream(key))


# --- slow disks


async def test_a_ttl_counts_from_the_answer_not_from_the_decision(tmp_path, time):
    files = SlowFiles()
    async with Rig(tmp_path, TINY, files) as rig:
        files.hold()
        creating = asyncio.ensure_future(rig.create("box/a", BYTES, b"x", ttl_s=2))
        await until(lambda: rig.node.writer._flying)
        time.pass_s(3)
        files.let_go()
        await creating
        assert is_there(rig), "its time was up before its creator knew of it"
        await rig.node.writer.drain()
        assert rig.node.seconds_left(rig.stream("box/a")) == 2
        time.pass_s(1.999)
        assert is_there(rig)
        time.pass_s(0.001)
        assert not is_there(rig)


@pytest.mark.parametrize("renewal", [True, False])
async def test_what_follows_a_creation_in_flight_finds_the_stream(tmp_path, time, renewal):
    files = SlowFiles()
    async with Rig(tmp_path, replace(TINY, ttl_renewal=renewal), files) as rig:
        await rig.create("box/other")
        files.hold()
        creating = asyncio.ensure_future(rig.create("box/a", BYTES, b"x", ttl_s=2))
        await until(lambda: rig.node.writer._flying)
        time.pass_s(3)
        appending = asyncio.ensure_future(rig.append("box/a", b"y"))
        await asyncio.sleep(0)
        files.let_go()
        await creating
        await appending
        assert is_there(rig)


async def test_a_stream_that_was_over_does_not_come_back_with_an_append(tmp_path, time):
    """The batch was opened while the stream lived; the append came when it was over."""
    files = SlowFiles()
    async with Rig(tmp_path, TINY, files) as rig:
        await rig.create("box/other")
        await rig.create("box/a", BYTES, b"x", ttl_s=2)
        files.hold()
        first = asyncio.ensure_future(rig.append("box/other", b"in flight"))
        await until(lambda: rig.node.writer._flying)
        second = asyncio.ensure_future(rig.append("box/other", b"opens the next batch"))
        await asyncio.sleep(0)
        time.pass_s(2)
        assert not is_there(rig)
        late = asyncio.ensure_future(rig.append("box/a", b"too late"))
        await asyncio.sleep(0)
        files.let_go()
        await asyncio.gather(first, second)
        with pytest.raises(NotFound):
            await late
        assert not is_there(rig)
        await rig.crash()
        assert not is_there(rig)


async def test_a_stream_is_not_over_while_a_write_that_renews_it_is_in_flight(tmp_path, time):
    files = SlowFiles()
    async with Rig(tmp_path, TINY, files) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=2)
        files.hold()
        appending = asyncio.ensure_future(rig.append("box/a", b"y"))
        await until(lambda: rig.node.writer._flying)
        time.pass_s(3)
        assert is_there(rig), "404 now, and the answer to the append would bring it back"
        rig.node.sweeper.watch(rig.stream("box/a"))
        rig.node.sweeper._sweep_watched(rig.node.sweeper._watched, rig.node.clock.lease_ms())
        files.let_go()
        await appending
        await rig.node.writer.drain()
        time.pass_s(1.999)
        assert is_there(rig)


async def test_a_renewal_that_was_answered_late_is_journaled_again(tmp_path, time):
    files = SlowFiles()
    async with Rig(tmp_path, TINY, files) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=10)
        files.hold()
        appending = asyncio.ensure_future(rig.append("box/a", b"y"))
        await until(lambda: rig.node.writer._flying)
        time.pass_s(8)
        files.let_go()
        await appending
        await rig.node.writer.drain()
        await rig.crash()
        time.pass_s(9.999)
        assert is_there(rig), "its writer was told 10 s ago that it lives for 10 s"
        time.pass_s(2)
        assert not is_there(rig)


async def test_what_was_over_is_over_after_a_crash_too(tmp_path, time):
    """A reload makes up for renewals that were not journaled; but somebody was told that it is gone."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=100)
        time.pass_s(100)
        assert not is_there(rig)
        await rig.node.writer.drain()
        await rig.crash()
        assert not is_there(rig)


async def test_unjournaled_renewals_behind_a_journaled_one_are_made_up_for(tmp_path, time):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=100)
        time.pass_s(50)
        await rig.append("box/a", b"y")
        time.pass_s(9)
        live(rig)
        await rig.crash()
        time.pass_s(99.9)
        assert is_there(rig)


# --- clocks that are set

STEPS = [YEAR_S, -YEAR_S, 30, -30]


async def again(rig, how):
    if how == "restart":
        await rig.restart()
    elif how == "crash":
        await rig.crash()
    elif how == "checkpoint":
        rig.checkpoint()
        await rig.crash()


HOWS = ["runs on", "restart", "crash", "checkpoint"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("step_s", STEPS)
async def test_a_ttl_outlives_every_setting_of_the_clock_and_ends_in_time(tmp_path, time, step_s, how):
    """Made before, during and after: each has its time, no less and hardly more."""
    async with Rig(tmp_path) as rig:
        for key in ("before", "during", "after"):
            await rig.create(f"box/{key}", BYTES, b"x", ttl_s=100)
            time.pass_s(10)
            time.set_ahead_s(step_s if key == "before" else -step_s if key == "during" else 0)
            rig.node.writer.look_at_clock()  # as the node does twice a second
            await rig.node.writer.drain()
            await again(rig, how)
            assert is_there(rig, f"box/{key}")
        for key in ("before", "during", "after"):
            assert is_there(rig, f"box/{key}"), key  # the oldest is 30 s old
        time.pass_s(69.9)
        assert is_there(rig, "box/before")
        time.pass_s(10.2)
        assert is_there(rig, "box/after")
        assert not is_there(rig, "box/before")
        time.pass_s(30)
        assert [key for key in ("before", "during", "after") if is_there(rig, f"box/{key}")] == []


@pytest.mark.parametrize("step_s", STEPS)
async def test_reads_and_writes_renew_whatever_the_clock_says(tmp_path, time, step_s):
    async with Rig(tmp_path) as rig:
        await rig.create("box/read", BYTES, b"x", ttl_s=10)
        await rig.create("box/written", BYTES, b"x", ttl_s=10)
        for turn in range(4):
            time.pass_s(8)
            time.set_ahead_s(step_s if turn % 2 == 0 else -step_s)
            live(rig, "box/read")
            await rig.append("box/written", b"y")
            await rig.node.writer.drain()
            if turn == 1:
                rig.checkpoint()
            await rig.crash()
        assert is_there(rig, "box/read")
        assert is_there(rig, "box/written")
        time.pass_s(11.1)
        assert not is_there(rig, "box/read")
        assert not is_there(rig, "box/written")


async def test_commit_times_only_grow_and_go_on_when_the_clock_is_set_back(tmp_path, time):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x")
        written = [rig.stream("box/a").written_ms]
        for step_s in (YEAR_S, -YEAR_S, -YEAR_S, 0, 0):
            time.set_ahead_s(step_s)
            time.pass_s(100)
            await rig.append("box/a", b"y")
            written.append(rig.stream("box/a").written_ms)
            await rig.crash()
            assert rig.stream("box/a").written_ms == written[-1]
        later = [after - before for before, after in pairwise(written[1:])]
        assert later == [50_000] * 4, "at half speed, until the wall clock has caught up"


async def test_a_clock_that_is_right_again_leads_the_commit_times_again(tmp_path, time):
    async with Rig(tmp_path) as rig:
        time.set_ahead_s(-60)
        time.pass_s(121)
        await rig.create("box/a", BYTES, b"x")
        assert rig.stream("box/a").written_ms == time.ms


async def test_no_fact_of_the_clock_is_written_while_nobody_sets_it(tmp_path, time):
    async with Rig(tmp_path) as rig:
        for _ in range(5):
            await rig.create("box/a", BYTES, ttl_s=5)
            time.pass_s(3600)
            rig.node.writer.look_at_clock()
            await rig.restart()
        assert rig.node.writer.committed_sequence == 1 + 5 + 4  # the bucket, the creations, the ends


async def test_a_set_clock_is_journaled_although_nobody_writes(tmp_path, time):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=100)
        time.set_ahead_s(YEAR_S)
        rig.node.writer.look_at_clock()
        await rig.node.writer.drain()
        sequence = rig.node.writer.committed_sequence
        rig.node.writer.look_at_clock()
        await rig.node.writer.drain()
        assert rig.node.writer.committed_sequence == sequence, "once is enough"
        await rig.crash()
        assert is_there(rig)


async def test_time_without_a_process_counts(tmp_path, time):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=100)
        await rig.node.close()
        time.pass_s(200)
        rig.open()
        assert not is_there(rig)


async def test_time_without_a_process_counts_over_a_reboot(tmp_path, time, monkeypatch):
    boot = tmp_path / "boot_id"
    monkeypatch.setattr("millstream.node.clock._BOOT_ID", boot)
    boot.write_text("one\n")
    async with Rig(tmp_path / "data") as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=100)
        await rig.node.close()
        time.pass_s(200)
        time.running_ms = 7
        boot.write_text("another\n")
        rig.open()
        assert not is_there(rig)


async def test_a_clock_set_just_before_a_crash_is_not_believed(tmp_path, time):
    """Nothing in the log knows of it yet; the machine's running clock does."""
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=100)
        time.set_ahead_s(YEAR_S)
        await rig.crash()
        assert is_there(rig)
        time.set_ahead_s(-YEAR_S)
        await rig.crash()
        assert is_there(rig)
        time.pass_s(111)
        assert not is_there(rig)


async def test_a_clock_set_back_while_nothing_runs_stops_no_deadline(tmp_path, time):
    async with Rig(tmp_path) as rig:
        await rig.create("box/a", BYTES, b"x", ttl_s=100)
        await rig.node.close()
        time.set_ahead_s(-YEAR_S)
        rig.open()
        assert is_there(rig)
        time.pass_s(111)
        assert not is_there(rig)


async def test_a_fixed_end_goes_by_the_wall_clock_and_is_final_once_told(tmp_path, time):
    async with Rig(tmp_path) as rig:
        for key in ("seen", "unseen"):
            await rig.create(f"box/{key}", BYTES, b"x", expires_at_ms=START + 100_000)
        time.set_ahead_s(3600)
        assert not is_there(rig, "box/seen")
        time.set_ahead_s(-3600)
        assert not is_there(rig, "box/seen"), "nothing comes back"
        assert is_there(rig, "box/unseen"), "nobody was told, and it is not time yet"
        await rig.node.writer.drain()
        await rig.crash()
        assert not is_there(rig, "box/seen")
        time.pass_s(100)
        assert not is_there(rig, "box/unseen")


async def test_the_sweeper_judges_each_by_its_own_clock(tmp_path, time):
    async with Rig(tmp_path) as rig:
        await rig.create("box/ttl", BYTES, b"x", ttl_s=1000)
        await rig.create("box/end", BYTES, b"x", expires_at_ms=START + 1_000_000)
        rig.checkpoint()
        rig.evict()
        time.set_ahead_s(YEAR_S)
        rig.node.sweeper._sweep_catalog()
        await rig.node.writer.drain()
        assert is_there(rig, "box/ttl")
        assert not is_there(rig, "box/end")
        time.set_ahead_s(-2 * YEAR_S)
        time.pass_s(1101)
        rig.node.sweeper._sweep_catalog()
        await rig.node.writer.drain()
        assert rig.node.machine.find("box/ttl").deleted


# --- what else lasts so and so long


@pytest.mark.parametrize("step_s", STEPS)
def test_read_leases_outlive_every_setting_of_the_clock_and_end_in_time(tmp_path, time, step_s):
    clock = Clock()
    helpers = HelpersClock(clock.base_ms)
    book = LeaseBook(tmp_path, lease_s=10, now_ms=clock.lease_ms)
    book.take("box")
    time.set_ahead_s(step_s)
    time.pass_s(9)
    assert held_now(tmp_path, helpers.lease_ms()).segments_below
    time.set_ahead_s(-step_s)
    time.pass_s(0.9)
    assert held_now(tmp_path, helpers.lease_ms()).segments_below
    time.pass_s(0.2)
    assert not held_now(tmp_path, helpers.lease_ms()).segments_below


@pytest.mark.parametrize("step_s", STEPS)
async def test_staged_parts_outlive_every_setting_of_the_clock_and_go_in_time(tmp_path, time, step_s):
    async with a_desk(tmp_path, replace(TINY, staged_ttl_s=100.0)) as desk:
        await desk.stage(1, "0", ("a", 1))
        time.set_ahead_s(step_s)
        await desk.rig.submit(ChangeBucket("shop", BucketSettings()))
        await desk.stage(1, "1", ("a", 2))
        await desk.rig.crash()
        time.pass_s(98)
        await desk.rig.node.transactions.sweep()
        assert len(objects_in(desk.rig, "staged")) == 2
        time.set_ahead_s(-step_s)
        time.pass_s(2)
        await desk.rig.node.transactions.sweep()
        assert objects_in(desk.rig, "staged") == []


@pytest.mark.parametrize("step_s", STEPS)
async def test_transactions_objects_are_kept_for_readers_and_go_in_time(tmp_path, time, step_s):
    async with a_desk(tmp_path, replace(TINY, lease_s=100.0)) as desk:
        time.set_ahead_s(step_s)
        await desk.stage(1, "0", ("a", 1))
        await desk.commit(1, "0")
        desk.rig.node.leases.take("shop")
        time.set_ahead_s(-step_s)
        through = desk.rig.checkpoint()
        desk.rig.node.transactions.cooled(through)
        time.pass_s(99)
        await desk.rig.node.transactions.sweep()
        assert len(objects_in(desk.rig, "transactions")) == 1
        time.pass_s(2)
        await desk.rig.node.transactions.sweep()
        assert objects_in(desk.rig, "transactions") == []


@pytest.mark.parametrize("step_s", STEPS)
async def test_the_archive_keeps_its_age_whatever_the_clock_says(tmp_path, time, step_s):
    async with FeedRig(tmp_path, ROOMY) as rig:
        await filled(rig, 3, "box/before")
        rig.checkpoint()
        time.set_ahead_s(step_s)
        await filled(rig, 3, "box/during")
        rig.checkpoint()
        time.pass_s(50)
        assert not rig.drop_archive(age_s=60)
        time.set_ahead_s(-step_s)
        await filled(rig, 3, "box/after")
        rig.checkpoint()
        assert not rig.drop_archive(age_s=60)
        time.pass_s(9)
        assert not rig.drop_archive(age_s=60)
        time.pass_s(27)  # a commit clock that waits for the wall clock has run at half speed for the first 50 s
        assert rig.drop_archive(age_s=60)
        assert len(rig.archives()) == 1
        time.pass_s(25)
        assert rig.drop_archive(age_s=60)
        assert rig.archives() == []


@pytest.mark.parametrize("step_s", STEPS)
async def test_retention_by_age_trims_in_time_whatever_the_clock_says(tmp_path, time, step_s):
    async with Rig(tmp_path) as rig:
        await rig.submit(CreateBucket("kept", BucketSettings(retention_s=60)))
        await rig.create("kept/a")
        await rig.append("kept/a", b"before")
        time.set_ahead_s(step_s)
        await rig.append("kept/a", b"during")
        time.pass_s(50)
        await rig.node.retention.sweep()
        assert rig.stream("kept/a").earliest == 0, "nothing is old enough"
        time.set_ahead_s(-step_s)
        await rig.append("kept/a", b"after")
        time.pass_s(9)
        await rig.node.retention.sweep()
        assert rig.stream("kept/a").earliest == 0, "nothing is old enough"
        time.pass_s(27)  # see above
        await rig.node.retention.sweep()
        await rig.node.writer.drain()
        assert await rig.content("kept/a", rig.stream("kept/a").earliest) == b"after"
        time.pass_s(60)
        await rig.node.retention.sweep()
        await rig.node.writer.drain()
        assert rig.stream("kept/a").earliest == rig.stream("kept/a").tail


def test_ages_count_what_has_passed_over_any_number_of_gaps():
    timeline = Timeline(at_ms=5_000, gaps=[Gap(1_000, 2_000), Gap(3_000, 4_500)])
    assert timeline.older_than(400, 5_000) == 4_600
    assert timeline.older_than(600, 5_000) == 2_900  # the second gap lies between
    assert timeline.older_than(1_600, 5_000) == 900  # both
    assert timeline.older_than(1_600, 6_000) == 2_900  # and a second has passed since the last batch


def test_of_many_gaps_the_oldest_become_one():
    timeline = Timeline()
    for step in range(1, 100):
        timeline.take(ClockRead(0, step), 1000 * step)
    assert len(timeline.gaps) == 16
    assert timeline.gaps[0] == Gap(1, 84_000)
    assert timeline.older_than(10, 99) == 89_000
