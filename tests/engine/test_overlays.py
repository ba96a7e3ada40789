"""What is in flight: decisions see it, readers do not, and a failed journal makes it never have been."""

from __future__ import annotations

import pytest
from tests.engine.world import JSON, KEY, World, append, by, close, create, delete, everything

from millstream.model import facts
from millstream.model.errors import Conflict, NotFound, SequenceGap
from millstream.model.etags import state_etag
from millstream.model.replies import Outcome


@pytest.fixture
def world() -> World:
    world = World()
    world.do(create(payload=b"hello"))
    return world


# --- who sees what


def test_an_append_in_flight_moves_the_tail_for_the_next_decision_only(world):
    assert world.decide(append(b" wor")).tail == 9
    assert world.decide(append(b"ld")).tail == 11
    assert (world.seen().tail, world.content()) == (5, b"hello")
    world.commit()
    assert (world.seen().tail, world.content()) == (11, b"hello world")


def test_if_match_looks_at_what_is_in_flight(world):
    world.decide(append(b"!"))
    assert world.decide(append(if_match=state_etag(world.stream_id(), 6, False))).tail == 7


def test_stream_seq_looks_at_what_is_in_flight(world):
    world.decide(append(stream_seq="m"))
    with pytest.raises(Conflict):
        world.decide(append(stream_seq="m"))


def test_a_stream_in_flight_takes_appends_and_is_not_there_for_readers(world):
    world.decide(create("shop/new"))
    assert world.decide(append(b"x", "shop/new")).tail == 1
    assert world.decide(create("shop/new")).outcome is Outcome.EXISTED
    assert not world.exists("shop/new")
    world.commit()
    assert world.content("shop/new") == b"x"


def test_a_deletion_in_flight_ends_the_stream_for_decisions_only(world):
    world.decide(delete())
    with pytest.raises(NotFound):
        world.decide(append())
    with pytest.raises(NotFound):
        world.decide(delete())
    assert world.content() == b"hello"
    world.commit()
    assert not world.exists()


# --- several batches


def test_a_batch_becomes_visible_when_it_is_durable_not_earlier(world):
    world.decide(append(b"1"))
    world.seal()
    world.decide(append(b"2"))
    world.decide(close())
    world.commit_one()
    assert (world.content(), world.seen().closed) == (b"hello1", False)
    assert world.stream().view().tail == 7
    world.commit_one()
    assert (world.content(), world.seen().closed) == (b"hello12", True)


def test_nothing_is_left_over_once_everything_is_durable(world):
    world.decide(append(b"1", producer=by("p", 0, 0)))
    world.seal()
    world.decide(append(b"2", producer=by("p", 0, 1)))
    world.decide(create("shop/new", payload=b"x"))
    world.commit()
    for key in (KEY, "shop/new"):
        stream = world.stream(key)
        assert (stream.pending, stream.inflight, stream.pending_producers) == (None, 0, None)
    bucket = world.machine.find_bucket("shop")
    assert (bucket.pending, bucket.inflight) == (None, 0)
    assert world.machine._arriving == {}


# --- deleted and created again while in flight


def test_delete_and_create_in_one_batch(world):
    old = world.stream()
    world.decide(append(b"!"))
    world.decide(delete())
    receipt = world.decide(create(content_type=JSON))
    assert receipt.outcome is Outcome.CREATED
    assert world.decide(append(b"1", content_type=JSON)).tail == 1
    assert (world.stream().number, world.content()) == (old.number, b"hello")
    world.commit()
    assert old.deleted
    assert (world.stream().number, world.content()) == (receipt.number, b"1")
    assert world.machine.hot_bytes == 1
    assert world.machine.find_bucket("shop").streams == 1


def test_delete_and_create_in_two_batches(world):
    world.decide(delete())
    world.seal()
    receipt = world.decide(create(payload=b"new"))
    world.commit_one()
    assert not world.exists()
    assert world.decide(append(b"!")).tail == 4
    world.commit()
    assert (world.stream().number, world.content()) == (receipt.number, b"new!")


def test_a_stream_that_lives_and_dies_in_flight_twice(world):
    numbers = [world.stream().number]
    for payload in (b"one", b"two", b"three"):
        world.decide(delete())
        numbers.append(world.decide(create(payload=payload)).number)
        world.seal()
    assert numbers == sorted(set(numbers))
    world.commit_one()
    assert world.content() == b"one"
    world.commit()
    assert (world.stream().number, world.content()) == (numbers[-1], b"three")
    assert world.machine.hot_bytes == 5
    assert world.machine.find_bucket("shop").streams == 1


def test_producers_of_the_deleted_stream_mean_nothing_to_the_new_one(world):
    world.do(append(producer=by("p", 5, 0)))
    world.decide(delete())
    world.decide(create())
    assert world.decide(append(producer=by("p", 0, 0))).outcome is Outcome.APPENDED
    with pytest.raises(SequenceGap):
        world.decide(append(producer=by("p", 0, 2)))


# --- the journal fails


def test_what_the_journal_did_not_take_is_forgotten(world):
    world.do(append(b"!", producer=by("p", 0, 0), stream_seq="a"))
    before = everything(world.machine)
    world.decide(append(b"?", producer=by("p", 0, 1), stream_seq="b"))
    world.seal()
    world.decide(close())
    world.decide(create("shop/new"))
    world.lose()
    after = everything(world.machine)
    assert after.pop("next") > before.pop("next")  # sequences are not used twice
    assert after == before
    assert world.content() == b"hello!"


def test_a_deletion_that_failed_leaves_the_stream(world):
    world.decide(delete())
    world.decide(create())
    world.lose()
    assert world.machine.find(KEY) is world.stream()
    assert world.content() == b"hello"
    assert world.machine.find_bucket("shop").view().streams == 1


def test_a_creation_that_failed_leaves_no_stream_and_no_bucket(world):
    world.decide(create("fresh/new"))
    world.lose()
    assert world.machine.find("fresh/new") is None
    assert world.machine.find_bucket("fresh").view().deleted


# --- facts


def test_facts_come_in_the_order_of_decisions(world):
    first = world.machine.next_sequence
    world.decide(append())
    world.decide(create("other/a", payload=b"x"))
    world.decide(delete())
    kinds = [type(fact) for fact in world.in_flight()]
    assert kinds == [
        facts.Appended,
        facts.BucketCreated,
        facts.StreamCreated,
        facts.Appended,
        facts.StreamDeleted,
    ]
    assert world.machine.next_sequence == first + len(kinds)
