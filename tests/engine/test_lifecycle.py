"""Creating and deleting streams, and the buckets that come into being with them (protocol sections 5.1 and 5.4)."""

from __future__ import annotations

import pytest
from tests.engine.world import (
    JSON,
    KEY,
    START_MS,
    TEXT,
    World,
    append,
    batch,
    bucket_record,
    by,
    close,
    create,
    delete,
    everything,
)

from millstream.model import facts
from millstream.model.commands import Body
from millstream.model.errors import BadRequest, Conflict, NotFound, PreconditionFailed
from millstream.model.etags import range_etag, state_etag
from millstream.model.replies import Outcome


@pytest.fixture
def world() -> World:
    return World()


# --- creating


def test_a_new_stream_is_open_and_empty(world):
    receipt = world.do(create())
    assert (receipt.outcome, receipt.tail, receipt.closed) == (Outcome.CREATED, 0, False)
    record = world.seen()
    assert (record.key, record.content_type, record.created_ms) == (KEY, TEXT, START_MS)
    assert (record.lease, record.writers, record.earliest) == (None, None, 0)


def test_the_number_of_a_stream_is_the_sequence_of_its_creation(world):
    receipt = world.do(create())
    created = next(entry for entry in world.journal if isinstance(entry.fact, facts.StreamCreated))
    assert receipt.number == created.sequence == world.stream().number


def test_a_stream_may_be_created_with_content(world):
    assert world.do(create(payload=b"hello")).tail == 5
    assert world.content() == b"hello"


def test_a_stream_may_be_created_with_a_batch(world):
    world.do(create(content_type=JSON, body=batch(b"1", b"22")))
    assert world.seen().tail == 3
    assert world.appends()[0].lengths == [1, 2]


def test_a_stream_may_be_created_from_parts(world):
    number = world.upload(b"hello ", b"world")
    assert world.do(create(body=Body(b"", [11], None, number))).tail == 11
    assert world.content() == b"hello world"


def test_without_a_content_type_a_stream_holds_bytes(world):
    assert world.do(create(content_type=None)).content_type == "application/octet-stream"


def test_the_content_type_is_kept_as_it_was_given(world):
    world.do(create(content_type="Text/Plain;charset=Latin1"))
    assert world.seen().content_type == "Text/Plain;charset=Latin1"


def test_broken_content_creates_nothing(world):
    error = world.refusal(create(body=Body(fault=BadRequest("bad", code="invalid_json"))))
    assert error.code == "invalid_json"
    assert not world.exists()
    assert world.machine.buckets == {}


# --- creating again


def test_creating_again_with_the_same_configuration_finds_the_stream(world):
    world.do(create(payload=b"hello"))
    written = len(world.journal)
    receipt = world.do(create(payload=b"ignored"))
    assert (receipt.outcome, receipt.tail, receipt.content_type) == (Outcome.EXISTED, 5, TEXT)
    assert world.content() == b"hello"
    assert len(world.journal) == written


def test_creating_again_ignores_a_broken_body_producers_and_stream_seq(world):
    world.do(create())
    again = create(body=Body(fault=BadRequest("bad")), producer=by("p", 0, 5), stream_seq="a")
    assert world.do(again).outcome is Outcome.EXISTED


def test_the_same_content_type_may_be_written_differently(world):
    world.do(create(content_type="application/json"))
    receipt = world.do(create(content_type="Application/JSON; charset=utf-8"))
    assert (receipt.outcome, receipt.content_type) == (Outcome.EXISTED, "application/json")


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        (create(), create(content_type=JSON), "content type"),
        (create(), create(content_type=None), "content type"),
        (create(), create(ttl_s=60), "TTL"),
        (create(ttl_s=60), create(), "TTL"),
        (create(ttl_s=60), create(ttl_s=61), "TTL"),
        (create(), create(expires_at_ms=START_MS + 9000), "expiry"),
        (create(expires_at_ms=START_MS + 9000), create(), "expiry"),
        (create(expires_at_ms=START_MS + 9000), create(expires_at_ms=START_MS + 9001), "expiry"),
        (create(expires_at_ms=START_MS + 9000), create(ttl_s=9), "TTL"),
        (create(), create(closed=True), "it is open"),
        (create(closed=True), create(), "it is closed"),
    ],
)
def test_creating_again_with_another_configuration_is_a_conflict(world, first, second, difference):
    world.do(first)
    before = everything(world.machine)
    error = world.refusal(second)
    assert type(error) is Conflict
    assert error.code == "stream_exists"
    assert difference in error.message
    assert everything(world.machine) == before


@pytest.mark.parametrize(
    "command", [create(ttl_s=60), create(expires_at_ms=START_MS + 9000), create(closed=True), create(content_type=None)]
)
def test_every_configuration_equals_itself(world, command):
    world.do(command)
    assert world.do(command).outcome is Outcome.EXISTED


def test_the_present_closure_counts_not_that_at_birth(world):
    world.do(create())
    world.do(close())
    assert type(world.refusal(create())) is Conflict
    assert world.do(create(closed=True)).outcome is Outcome.EXISTED


def test_if_match_on_an_existing_stream(world):
    world.do(create(payload=b"hello"))
    assert world.do(create(if_match=state_etag(world.stream_id(), 5, False))).outcome is Outcome.EXISTED
    assert isinstance(world.refusal(create(if_match=state_etag(world.stream_id(), 4, False))), PreconditionFailed)


@pytest.mark.parametrize("if_match", ["*", '"0000abcd-2:0"'])
def test_if_match_on_a_missing_stream_creates_nothing(world, if_match):
    assert isinstance(world.refusal(create(if_match=if_match)), PreconditionFailed)
    assert not world.exists()


def test_if_none_match_creates_and_never_finds(world):
    assert world.do(create(payload=b"hello", if_none_match="*")).outcome is Outcome.CREATED
    for tags in ("*", state_etag(world.stream_id(), 5, False), range_etag(world.stream_id(), 2, 5, False)):
        assert isinstance(world.refusal(create(if_none_match=tags)), PreconditionFailed)
    assert world.do(create(if_none_match=state_etag(world.stream_id(), 4, False))).outcome is Outcome.EXISTED


# --- deleting


def test_deleting_takes_everything_with_it(world):
    world.do(create(payload=b"hello"))
    receipt = world.do(delete())
    assert (receipt.outcome, receipt.tail) == (Outcome.DELETED, 5)
    assert not world.exists()
    assert world.machine.hot_bytes == 0
    assert isinstance(world.refusal(delete()), NotFound)


def test_if_match_keeps_a_stream_that_has_changed_from_being_deleted(world):
    world.do(create(payload=b"hello"))
    seen = world.stream_id()
    world.decide(append(b"!"))  # still in flight: the decision sees it all the same
    for stale in (state_etag(seen, 5, False), range_etag(seen, 0, 5, False), state_etag(seen, 6, True), '"other:6"'):
        with pytest.raises(PreconditionFailed):
            world.decide(delete(if_match=stale))
    world.commit()
    assert world.content() == b"hello!"


@pytest.mark.parametrize("tag", ["*", '"0000abcd-2:6"', '"0000abcd-2:1:6"', 'W/"0000abcd-2:0:6"'])
def test_if_match_deletes_what_is_as_it_was_seen(world, tag):
    world.do(create(payload=b"hello!"))
    assert world.do(delete(if_match=tag)).outcome is Outcome.DELETED
    assert isinstance(world.refusal(delete(if_match="*")), NotFound)


def test_what_never_was_cannot_be_deleted(world):
    assert isinstance(world.refusal(delete()), NotFound)
    assert world.journal == []


def test_a_deleted_stream_can_be_created_anew_and_is_another(world):
    first = world.do(create(payload=b"old", producer=by("p", 3, 0), stream_seq="z"))
    world.do(delete())
    second = world.do(create(content_type=JSON))
    assert (second.outcome, second.tail) == (Outcome.CREATED, 0)
    assert second.number > first.number
    assert world.seen().writers is None
    world.do(append(b"1", content_type=JSON, producer=by("p", 0, 0), stream_seq="a"))


def test_a_closed_stream_can_be_deleted(world):
    world.do(create(closed=True))
    assert world.do(delete()).closed
    assert world.do(create()).outcome is Outcome.CREATED


# --- buckets


def bucket(world: World, name: str):
    return bucket_record(world.machine.find_bucket(name))


def test_a_bucket_is_recorded_with_its_first_stream(world):
    world.do(create())
    assert [type(entry.fact) for entry in world.journal] == [facts.BucketCreated, facts.StreamCreated]
    assert bucket(world, "shop").implicit
    world.do(create("shop/more"))
    assert [type(entry.fact) for entry in world.journal[2:]] == [facts.StreamCreated]


def test_a_bucket_counts_its_streams(world):
    for key in ("shop/a", "shop/b", "other/a"):
        world.do(create(key))
    assert (bucket(world, "shop").streams, bucket(world, "other").streams) == (2, 1)
    world.do(create("shop/a"))
    assert bucket(world, "shop").streams == 2
    world.do(delete("shop/a"))
    assert bucket(world, "shop").streams == 1
    world.do(create("shop/a"))
    assert bucket(world, "shop").streams == 2


def test_a_bucket_stays_when_its_last_stream_goes(world):
    world.do(create())
    world.do(delete())
    assert (bucket(world, "shop").streams, bucket(world, "shop").deleted) == (0, False)


def test_an_expired_stream_is_counted_until_it_is_swept_or_replaced(world):
    world.do(create(ttl_s=1))
    world.wait(1000)
    assert bucket(world, "shop").streams == 1
    world.do(create(ttl_s=1))
    assert bucket(world, "shop").streams == 1


def test_counts_in_flight_are_seen_by_decisions_only(world):
    world.do(create())
    world.decide(create("shop/more"))
    world.decide(delete())
    held = world.machine.find_bucket("shop")
    assert (held.streams, held.view().streams) == (1, 1)
    world.decide(create("shop/third"))
    assert (held.streams, held.view().streams) == (1, 2)
    world.commit()
    assert (held.streams, held.pending) == (2, None)
