"""Appending: what is stored, who may append, and in which order the reasons against it are looked at."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.engine.world import JSON, KEY, START_MS, TEXT, World, append, batch, by, close, create, delete

from millstream.model import facts
from millstream.model.commands import Append, Body
from millstream.model.errors import (
    BadRequest,
    Conflict,
    Fenced,
    NotFound,
    PreconditionFailed,
    SequenceGap,
    StreamClosed,
)
from millstream.model.etags import range_etag, state_etag
from millstream.model.replies import Outcome

NOT_JSON = Body(fault=BadRequest("not JSON", code="invalid_json"))


@pytest.fixture
def world() -> World:
    """With one open text stream, empty."""
    world = World()
    world.do(create())
    return world


# --- what is stored


def test_appends_lie_one_after_the_other(world):
    assert world.do(append(b"hello ")).tail == 6
    receipt = world.do(append(b"world"))
    assert (receipt.outcome, receipt.tail, receipt.closed) == (Outcome.APPENDED, 11, False)
    assert world.content() == b"hello world"
    assert [fact.offset for fact in world.appends()] == [0, 6]


def test_an_append_is_one_fact_that_names_its_place(world):
    world.do(append(b"hello"))
    number = world.stream().number
    assert world.last_fact() == facts.Appended(number, 0, START_MS, 0, b"hello")


def test_a_stream_remembers_when_it_was_last_written(world):
    world.wait(500)
    world.do(append())
    assert (world.seen().created_ms, world.seen().written_ms) == (START_MS, START_MS + 500)


def test_a_large_body_is_taken_from_its_parts(world):
    number = world.upload(b"hello ", b"large ", b"world")
    receipt = world.do(append(body=Body(b"", [17], None, number)))
    assert receipt.tail == 17
    assert world.content() == b"hello large world"
    assert world.machine.uploads == {}
    assert world.last_fact().payload == b""


def test_parts_of_a_refused_body_are_dropped(world):
    number = world.upload(b"hello ", b"world")
    assert isinstance(world.refusal(append(content_type=JSON, body=Body(b"", [11], None, number))), Conflict)
    world.drop_upload(number)
    assert world.machine.uploads == {}
    assert world.seen().tail == 0


def test_a_stream_that_is_not_there_takes_nothing():
    world = World()
    assert isinstance(world.refusal(append()), NotFound)
    world.do(create())
    world.do(delete())
    assert isinstance(world.refusal(append()), NotFound)
    assert isinstance(world.refusal(append(key="shop/other")), NotFound)


# --- content types


def test_case_and_parameters_of_the_content_type_do_not_count():
    world = World()
    world.do(create(content_type="Text/Plain; charset=UTF-8"))
    assert world.do(append(content_type="text/plain")).content_type == "Text/Plain; charset=UTF-8"
    assert world.do(append(content_type="TEXT/PLAIN;x=y")).tail == 2


def test_another_content_type_is_a_conflict(world):
    error = world.refusal(append(content_type=JSON))
    assert type(error) is Conflict
    assert error.code == "content_type_mismatch"
    assert TEXT in error.message
    assert JSON in error.message


def test_an_append_must_say_what_it_is(world):
    error = world.refusal(append(content_type=None))
    assert type(error) is BadRequest
    assert error.code == "content_type_missing"


# --- ids


def test_each_append_of_a_millisecond_gets_the_next_number(world):
    for _ in range(3):
        world.do(append())
    world.wait(1)
    world.do(append())
    ids = [(fact.id_ms - START_MS, fact.id_seq) for fact in world.appends()]
    assert ids == [(0, 0), (0, 1), (0, 2), (1, 0)]


def test_a_clock_that_steps_back_keeps_the_last_millisecond(world):
    world.do(append())
    world.wait(-60_000)
    world.do(append())
    world.wait(60_001)
    world.do(append())
    ids = [(fact.id_ms - START_MS, fact.id_seq) for fact in world.appends()]
    assert ids == [(0, 0), (0, 1), (1, 0)]


def test_the_messages_of_a_batch_have_consecutive_ids():
    world = World()
    world.do(create(content_type=JSON))
    world.do(append(content_type=JSON, body=batch(b"1", b"22", b"333")))
    assert (world.seen().id_ms, world.seen().id_seq) == (START_MS, 2)
    world.do(append(b"4", content_type=JSON))
    assert world.appends()[-1].id_seq == 3


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 4), st.booleans()), max_size=12))
def test_ids_grow_whatever_the_clock_does(steps):
    world = World()
    world.do(create(content_type=JSON))
    for step_ms, messages, in_flight in steps:
        world.wait(step_ms)
        command = append(content_type=JSON, body=batch(*[b"0"] * messages))
        world.decide(command) if in_flight else world.do(command)
    world.commit()
    ids = [(fact.id_ms, fact.id_seq + index) for fact in world.appends() for index in range(facts.message_count(fact))]
    assert all(one < other for one, other in pairwise(ids))
    assert (0, 0) not in ids


# --- If-Match


def test_if_match_lets_an_append_through_that_knows_the_state(world):
    world.do(append(b"hello"))
    assert world.do(append(if_match=state_etag(world.stream_id(), 5, False))).tail == 6
    assert world.do(append(if_match=range_etag(world.stream_id(), 2, 6, False))).tail == 7
    assert world.do(append(if_match="*")).tail == 8


def test_if_match_stops_an_append_that_knows_an_older_state(world):
    world.do(append(b"hello"))
    stale = state_etag(world.stream_id(), 5, False)
    world.do(append(b"!"))
    assert isinstance(world.refusal(append(if_match=stale)), PreconditionFailed)
    assert isinstance(world.refusal(append(if_match=range_etag(world.stream_id(), 0, 5, False))), PreconditionFailed)
    assert isinstance(world.refusal(append(if_match='"nonsense"')), PreconditionFailed)
    assert world.content() == b"hello!"


def test_if_match_of_an_earlier_incarnation_never_matches(world):
    world.do(append(b"hello"))
    old = state_etag(world.stream_id(), 5, False)
    world.do(delete())
    world.do(create(payload=b"other"))
    assert isinstance(world.refusal(append(if_match=old)), PreconditionFailed)


# --- Stream-Seq


def test_stream_seq_must_grow_in_byte_order(world):
    world.do(append(stream_seq="2"))
    assert world.refusal(append(stream_seq="2")).code == "stream_seq_regression"
    assert world.refusal(append(stream_seq="10")).code == "stream_seq_regression"  # "1" sorts before "2"
    assert world.do(append(stream_seq="20")).tail == 2
    assert world.do(append(stream_seq="a")).tail == 3


def test_stream_seq_compares_bytes_not_letters(world):
    world.do(append(stream_seq="z"))
    assert world.do(append(stream_seq="\u00e9")).tail == 2  # 0xE9 in Latin-1: after every ASCII letter
    assert type(world.refusal(append(stream_seq="zz"))) is Conflict


def test_a_stream_seq_is_shown_as_the_bytes_it_is(world):
    """Clients of upstream look for the word; and what is no ASCII has no encoding that we know."""
    world.do(append(stream_seq="\xc3\xa9"))
    message = world.refusal(append(stream_seq="\xc3\xa8")).message
    assert "sequence" in message
    assert r"'\xc3\xa8' is not after '\xc3\xa9'" in message


def test_stream_seq_is_remembered_over_appends_without_one(world):
    world.do(append(stream_seq="b"))
    world.do(append())
    assert type(world.refusal(append(stream_seq="a"))) is Conflict


def test_stream_seq_belongs_to_the_stream_whoever_writes(world):
    world.do(append(stream_seq="b", producer=by("p", 0, 0)))
    assert type(world.refusal(append(stream_seq="a", producer=by("q", 0, 0)))) is Conflict


def test_stream_seq_of_the_initial_content_counts():
    world = World()
    world.do(create(payload=b"x", stream_seq="b"))
    world.do(create("shop/empty", stream_seq="b"))
    for key in (KEY, "shop/empty"):
        assert type(world.refusal(append(key=key, stream_seq="a"))) is Conflict
        world.do(append(key=key, stream_seq="c"))


# --- the order of checks


def test_a_reason_hides_every_later_one(world):
    """empty -> closed -> content type -> producer -> If-Match -> Stream-Seq -> body: cure one, and see the next."""
    world.do(append(b"x", stream_seq="m", producer=by("p", 1, 0)))
    wrong = Append(KEY, JSON, NOT_JSON, False, by("p", 0, 0), "a", '"stale"')
    closed = World()
    closed.do(create(closed=True))
    for anything in (closed, world):
        assert anything.refusal(replace(wrong, body=Body())).code == "empty_body"
    assert type(closed.refusal(wrong)) is StreamClosed

    assert world.refusal(wrong).code == "content_type_mismatch"
    assert world.refusal(replace(wrong, content_type=None)).code == "content_type_missing"
    wrong = replace(wrong, content_type=TEXT)
    assert type(world.refusal(wrong)) is Fenced
    wrong = replace(wrong, producer=by("p", 1, 9))
    assert type(world.refusal(wrong)) is SequenceGap
    wrong = replace(wrong, producer=by("p", 2, 1))
    assert world.refusal(wrong).code == "bad_producer"
    wrong = replace(wrong, producer=by("p", 1, 1))
    assert type(world.refusal(wrong)) is PreconditionFailed
    wrong = replace(wrong, if_match="*")
    assert world.refusal(wrong).code == "stream_seq_regression"
    wrong = replace(wrong, stream_seq="n")
    assert world.refusal(wrong).code == "invalid_json"
    assert world.do(replace(wrong, body=Body(b"y"))).outcome is Outcome.APPENDED


def test_a_duplicate_ends_at_the_producer_whatever_comes_after(world):
    world.do(append(b"x", stream_seq="m", producer=by("p", 0, 0)))
    again = Append(KEY, TEXT, NOT_JSON, False, by("p", 0, 0), "a", '"stale"')
    assert world.do(again).outcome is Outcome.DUPLICATE
    assert world.refusal(replace(again, content_type=JSON)).code == "content_type_mismatch"


@pytest.mark.parametrize("content_type", [TEXT, JSON, None])
def test_an_empty_body_is_refused_whatever_it_is_said_to_be(world, content_type):
    empty = append(b"", content_type=content_type)
    assert world.refusal(empty).code == "empty_body"
    assert isinstance(world.refusal(replace(empty, key="shop/none")), NotFound)
    world.do(close())
    assert world.refusal(empty).code == "empty_body"
