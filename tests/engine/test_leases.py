"""Time to live: sliding and fixed, renewals thinned, and streams whose time is up (protocol section 4)."""

from __future__ import annotations

import pytest
from tests.engine.world import (
    KEY,
    START_MS,
    World,
    append,
    by,
    close,
    create,
    delete,
    everything,
    expire,
    replayed,
    touch,
)

from millstream.engine.leasing import deadline_ms
from millstream.model import facts
from millstream.model.commands import Body
from millstream.model.errors import BadRequest, NotFound, PreconditionFailed
from millstream.model.replies import Outcome


@pytest.fixture
def world() -> World:
    return World()


def left_ms(world: World) -> int:
    stream = world.stream()
    return deadline_ms(stream, stream) - world.now_ms


# --- until when


def test_a_stream_with_a_ttl_lives_so_long(world):
    world.do(create(ttl_s=10))
    assert left_ms(world) == 10_000
    world.wait(9_999)
    assert world.exists()
    world.wait(1)
    assert not world.exists()


def test_a_stream_with_an_expiry_lives_until_then(world):
    world.do(create(expires_at_ms=START_MS + 5_000))
    world.wait(4_999)
    assert world.exists()
    world.wait(1)
    assert not world.exists()


def test_a_ttl_of_nothing_and_an_expiry_in_the_past_are_over_at_once(world):
    assert world.do(create("shop/a", ttl_s=0)).outcome is Outcome.CREATED
    assert world.do(create("shop/b", expires_at_ms=START_MS - 1)).outcome is Outcome.CREATED
    assert not world.exists("shop/a")
    assert not world.exists("shop/b")


def test_nothing_can_be_done_to_a_stream_whose_time_is_up(world):
    number = world.do(create(ttl_s=1)).number
    world.wait(1_000)
    for command in (append(), close(), delete()):
        assert isinstance(world.refusal(command), NotFound)
    assert world.do(touch(number)).outcome is Outcome.NOTHING


# --- renewal


@pytest.mark.parametrize("write", [append(), close(), append(closes=True), append(producer=by("p", 0, 0))])
def test_every_write_renews_a_sliding_ttl(world, write):
    world.do(create(ttl_s=10))
    world.wait(9_000)
    world.do(write)
    assert left_ms(world) == 10_000


def test_a_refused_write_does_not_renew(world):
    world.do(create(ttl_s=10))
    world.wait(9_000)
    world.refusal(append(if_match='"stale"'))
    assert left_ms(world) == 1_000


def test_a_duplicate_and_an_idempotent_create_do_not_renew(world):
    world.do(create(ttl_s=10, producer=by("p", 0, 0), payload=b"x"))
    world.wait(9_000)
    world.do(append(producer=by("p", 0, 0)))
    world.do(create(ttl_s=10))
    assert left_ms(world) == 1_000


def test_without_renewal_a_ttl_counts_from_creation():
    world = World(ttl_renewal=False)
    number = world.do(create(ttl_s=10)).number
    world.wait(9_000)
    world.do(append())
    assert world.do(touch(number)).outcome is Outcome.NOTHING
    assert left_ms(world) == 1_000
    world.wait(1_000)
    assert not world.exists()


def test_how_a_stream_renews_is_decided_at_its_birth():
    """Journals are replayed under other settings; the stream stays what it was."""
    world = World(ttl_renewal=False)
    world.do(create(ttl_s=10))
    world.machine.ttl_renewal = True
    world.wait(5_000)
    world.do(append())
    assert left_ms(world) == 5_000


def test_writes_never_move_a_fixed_expiry(world):
    world.do(create(expires_at_ms=START_MS + 5_000))
    world.wait(4_000)
    world.do(append())
    assert left_ms(world) == 1_000


def test_a_clock_that_steps_back_never_shortens_a_lease(world):
    world.do(create(ttl_s=10))
    world.wait(5_000)
    world.do(append())
    world.wait(-4_000)
    world.do(append())
    assert deadline_ms(world.stream(), world.stream()) == START_MS + 15_000
    assert world.seen().lease.renewed_ms == START_MS + 5_000


# --- touching


def test_reads_renew_in_the_journal_now_and_then(world):
    number = world.do(create(ttl_s=100)).number
    world.wait(9_999)
    assert world.do(touch(number)).outcome is Outcome.NOTHING
    world.wait(1)
    assert world.do(touch(number)).outcome is Outcome.TOUCHED
    assert world.last_fact() == facts.Touched(number)
    assert left_ms(world) == 100_000
    assert world.do(touch(number)).outcome is Outcome.NOTHING


def test_a_touch_in_flight_thins_the_next(world):
    number = world.do(create(ttl_s=100)).number
    world.wait(20_000)
    assert world.decide(touch(number)).outcome is Outcome.TOUCHED
    assert world.decide(touch(number)).outcome is Outcome.NOTHING


def test_a_touch_is_no_write(world):
    number = world.do(create(ttl_s=100)).number
    world.wait(20_000)
    world.do(touch(number))
    assert world.seen().written_ms == START_MS


def test_touching_what_has_no_lease_is_nothing(world):
    number = world.do(create()).number
    world.wait(1_000_000)
    assert world.do(touch(number)).outcome is Outcome.NOTHING
    assert world.do(touch(7, "shop/none")).outcome is Outcome.NOTHING


def test_touching_an_earlier_incarnation_is_nothing(world):
    number = world.do(create(ttl_s=100)).number
    world.do(delete())
    world.do(create(ttl_s=100))
    world.wait(20_000)
    assert world.do(touch(number)).outcome is Outcome.NOTHING


def test_a_read_that_was_not_journaled_counts_all_the_same(world):
    world.do(create(ttl_s=10))
    world.wait(900)
    world.stream().seen_ms = world.now_ms  # what the node notes for every read
    world.wait(9_999)
    assert world.exists()
    assert world.do(append()).outcome is Outcome.APPENDED


def test_a_reloaded_stream_lives_no_shorter_than_its_readers_were_promised(world):
    """Renewals up to one thinning are only in memory, so a reload adds as much."""
    world.do(create(ttl_s=100))
    world.wait(9_999)
    world.stream().seen_ms = world.now_ms
    promised = deadline_ms(world.stream(), world.stream())
    again = replayed(world.journal).streams[KEY]
    assert deadline_ms(again, again) >= promised
    world.checkpoint()
    world.forget_idle()
    assert deadline_ms(world.stream(), world.stream()) >= promised


# --- expiring


def test_the_sweeper_records_what_is_over(world):
    number = world.do(create(ttl_s=1, payload=b"hello")).number
    assert world.do(expire(number)).outcome is Outcome.NOTHING
    world.wait(1_000)
    receipt = world.do(expire(number))
    assert (receipt.outcome, receipt.number, receipt.tail) == (Outcome.EXPIRED, number, 5)
    assert world.last_fact() == facts.StreamExpired(number)
    assert world.machine.hot_bytes == 0
    assert world.machine.find_bucket("shop").streams == 0


def test_the_sweeper_comes_late_and_does_nothing(world):
    number = world.do(create(ttl_s=1)).number
    world.wait(1_000)
    world.decide(expire(number))
    assert world.decide(expire(number)).outcome is Outcome.NOTHING
    world.commit()
    assert world.do(expire(number)).outcome is Outcome.NOTHING
    second = world.do(create(ttl_s=1)).number
    world.wait(1_000)
    assert world.do(expire(number)).outcome is Outcome.NOTHING
    assert world.do(expire(second)).outcome is Outcome.EXPIRED


def test_a_renewal_in_flight_saves_a_stream_from_the_sweeper(world):
    number = world.do(create(ttl_s=1)).number
    world.wait(999)
    world.decide(append())
    world.wait(1)
    assert world.decide(expire(number)).outcome is Outcome.NOTHING
    world.commit()
    assert world.exists()


def test_streams_without_a_lease_never_expire(world):
    number = world.do(create()).number
    world.wait(10**12)
    assert world.do(expire(number)).outcome is Outcome.NOTHING
    assert world.exists()


# --- creating what has expired


def test_an_expired_stream_is_ended_and_created_anew_in_one_step(world):
    first = world.do(create(ttl_s=1, payload=b"old"))
    world.wait(1_000)
    second = world.do(create(content_type=None, payload=b"new"))
    assert second.outcome is Outcome.CREATED
    assert second.number > first.number
    assert [type(entry.fact) for entry in world.journal[-3:]] == [
        facts.StreamExpired,
        facts.StreamCreated,
        facts.Appended,
    ]
    assert world.content() == b"new"
    assert world.machine.hot_bytes == 3


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (create(if_match="*"), PreconditionFailed),
        (create(body=Body(fault=BadRequest("bad"))), BadRequest),
    ],
)
def test_a_refused_creation_does_not_even_end_the_expired_stream(world, command, kind):
    world.do(create(ttl_s=1, payload=b"old"))
    world.wait(1_000)
    before = everything(world.machine)
    assert isinstance(world.refusal(command), kind)
    assert everything(world.machine) == before
