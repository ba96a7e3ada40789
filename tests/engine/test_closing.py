"""Closing: the end of a stream, once and for all (protocol sections 4.1, 5.2 and 5.3)."""

from __future__ import annotations

import pytest
from tests.engine.world import JSON, World, append, by, close, committed, create, replayed

from millstream.model import facts
from millstream.model.commands import Body
from millstream.model.errors import BadRequest, Conflict, Fenced, PreconditionFailed, SequenceGap, StreamClosed
from millstream.model.etags import state_etag
from millstream.model.replies import Outcome


@pytest.fixture
def world() -> World:
    world = World()
    world.do(create(payload=b"hello"))
    return world


def test_closing_without_data(world):
    receipt = world.do(close())
    assert (receipt.outcome, receipt.tail, receipt.closed) == (Outcome.CLOSED, 5, True)
    assert world.seen().closed
    assert world.last_fact() == facts.Closed(world.stream().number)


def test_closing_with_the_last_data_is_one_fact(world):
    receipt = world.do(append(b"!", closes=True))
    assert (receipt.outcome, receipt.tail, receipt.closed) == (Outcome.APPENDED, 6, True)
    assert world.content() == b"hello!"
    assert world.last_fact().closes


def test_a_closed_stream_takes_nothing_more_and_says_where_it_ended(world):
    world.do(close())
    error = world.refusal(append())
    assert type(error) is StreamClosed
    assert error.tail == 5
    assert type(world.refusal(append(closes=True))) is StreamClosed
    assert world.content() == b"hello"


def test_closing_again_is_fine_and_changes_nothing(world):
    world.do(close())
    written = len(world.journal)
    receipt = world.do(close())
    assert (receipt.outcome, receipt.tail, receipt.closed) == (Outcome.CLOSED, 5, True)
    assert len(world.journal) == written


def test_closing_without_data_needs_no_content_type_and_accepts_any(world):
    assert world.do(append(b"", content_type=JSON, closes=True)).outcome is Outcome.CLOSED


def test_closing_with_a_broken_body_closes_nothing(world):
    broken = Body(fault=BadRequest("not JSON", code="invalid_json"))
    assert world.refusal(append(body=broken, closes=True)).code == "invalid_json"
    assert not world.seen().closed


def test_closing_again_ignores_every_other_precondition(world):
    world.do(append(b"!", closes=True, stream_seq="m"))
    assert world.do(close(if_match='"stale"', stream_seq="a")).outcome is Outcome.CLOSED


def test_closing_checks_if_match_and_stream_seq(world):
    world.do(append(stream_seq="m"))
    assert isinstance(world.refusal(close(if_match='"stale"')), PreconditionFailed)
    assert isinstance(world.refusal(close(stream_seq="a")), Conflict)
    assert world.do(close(if_match=state_etag(world.stream_id(), 6, False), stream_seq="n")).closed


def test_a_large_last_body_is_no_close_without_data(world):
    number = world.upload(b" wor", b"ld")
    receipt = world.do(append(body=Body(b"", [6], None, number), closes=True))
    assert (receipt.outcome, receipt.tail) == (Outcome.APPENDED, 11)
    assert world.content() == b"hello world"
    assert world.seen().closed


# --- with producers


def test_the_closing_batch_sent_again_is_a_duplicate(world):
    world.do(append(b"!", closes=True, producer=by("p", 1, 0)))
    again = world.do(append(b"!", closes=True, producer=by("p", 1, 0)))
    assert (again.outcome, again.tail, again.closed) == (Outcome.DUPLICATE, 6, True)
    assert (again.producer_epoch, again.producer_seq) == (1, 0)
    assert world.content() == b"hello!"


def test_the_closing_batch_is_known_even_if_it_does_not_say_close_again(world):
    world.do(append(b"!", closes=True, producer=by("p", 1, 0)))
    assert world.do(append(b"!", producer=by("p", 1, 0))).outcome is Outcome.DUPLICATE


@pytest.mark.parametrize("other", [by("p", 1, 1), by("p", 2, 0), by("p", 0, 0), by("q", 1, 0)])
def test_any_other_batch_finds_the_stream_closed(world, other):
    world.do(append(b"!", closes=True, producer=by("p", 1, 0)))
    error = world.refusal(append(b"?", producer=other))
    assert type(error) is StreamClosed
    assert error.tail == 6


def test_an_earlier_batch_of_the_closer_finds_the_stream_closed(world):
    """Its data is there, but the protocol asks for 409 for everything but the closing tuple."""
    world.do(append(b"1", producer=by("p", 0, 0)))
    world.do(append(b"2", producer=by("p", 0, 1), closes=True))
    assert type(world.refusal(append(b"1", producer=by("p", 0, 0)))) is StreamClosed


def test_a_producer_closes_without_data(world):
    world.do(append(producer=by("p", 0, 0)))
    receipt = world.do(close(producer=by("p", 0, 1)))
    assert (receipt.outcome, receipt.producer_epoch, receipt.producer_seq) == (Outcome.CLOSED, 0, 1)
    again = world.do(close(producer=by("p", 0, 1)))
    assert (again.outcome, again.producer_epoch, again.producer_seq) == (Outcome.DUPLICATE, 0, 1)


def test_closing_without_data_checks_the_producer(world):
    world.do(append(producer=by("p", 1, 0)))
    assert isinstance(world.refusal(close(producer=by("p", 0, 1))), Fenced)
    assert isinstance(world.refusal(close(producer=by("p", 1, 2))), SequenceGap)
    assert isinstance(world.refusal(close(producer=by("p", 2, 1))), BadRequest)
    assert not world.seen().closed


@pytest.mark.parametrize("payload", [b"a", b""])
@pytest.mark.parametrize("seq", [0, 1])
def test_a_known_batch_that_now_asks_to_close_closes(world, payload, seq):
    """Its data is there and is not added again; that the stream shall end is new."""
    world.do(append(b"a", producer=by("p", 2, 0)))
    world.do(append(b"b", producer=by("p", 2, 1)))
    late = append(payload, producer=by("p", 2, seq), closes=True)
    receipt = world.do(late)
    assert (receipt.outcome, receipt.tail, receipt.closed) == (Outcome.DUPLICATE, 7, True)
    assert (receipt.producer_epoch, receipt.producer_seq) == (2, 1)
    assert world.seen().closed
    assert world.content() == b"helloab"
    assert world.do(late) == receipt  # it is the closing tuple now, and its producer stands where it stood
    assert committed(replayed(world.journal)) == committed(world.machine)


def test_a_known_batch_closes_only_what_it_may(world):
    world.do(append(producer=by("p", 1, 0)))
    assert isinstance(world.refusal(append(producer=by("p", 0, 0), closes=True)), Fenced)
    late = append(producer=by("p", 1, 0), closes=True, if_match='"stale"', stream_seq="a")
    assert isinstance(world.refusal(late), PreconditionFailed)
    assert not world.seen().closed


def test_a_closing_that_is_in_flight_is_known(world):
    world.do(append(producer=by("p", 0, 0)))
    first = world.decide(append(producer=by("p", 0, 0), closes=True))
    assert world.decide(append(producer=by("p", 0, 0), closes=True)) == first
    assert len(world.in_flight()) == 1


def test_a_new_producer_that_closes_counts(world):
    world.do(close(producer=by("p", 0, 0)))
    assert world.seen().writers.producer_count == 1
    assert world.seen().writers.closed_by == facts.Producer("p", 0, 0, True)


def test_closing_a_closed_stream_never_echoes_a_seq_that_was_not_accepted(world):
    """`Producer-Seq` is the highest accepted seq (protocol section 5.2.1); 9 was never accepted."""
    world.do(append(producer=by("p", 0, 0)))
    world.do(close())
    receipt = world.do(close(producer=by("p", 0, 9)))
    assert (receipt.outcome, receipt.closed) == (Outcome.CLOSED, True)
    assert (receipt.producer_epoch, receipt.producer_seq) == (0, 0)
    for stranger in (by("q", 3, 0), by("p", 3, 0)):
        receipt = world.do(close(producer=stranger))
        assert (receipt.producer_epoch, receipt.producer_seq) == (3, None)


# --- at birth


def test_a_stream_may_be_born_closed():
    world = World()
    receipt = world.do(create(closed=True))
    assert (receipt.outcome, receipt.tail, receipt.closed) == (Outcome.CREATED, 0, True)
    assert type(world.refusal(append())) is StreamClosed


def test_a_stream_may_be_born_with_its_whole_content():
    world = World()
    receipt = world.do(create(payload=b"all there is", closed=True))
    assert (receipt.tail, receipt.closed) == (12, True)
    assert world.content() == b"all there is"
    assert len(world.appends()) == 1


def test_a_producer_may_create_and_close_in_one():
    world = World()
    for key, payload in (("shop/full", b"x"), ("shop/empty", b"")):
        world.do(create(key, payload=payload, closed=True, producer=by("p", 0, 0)))
        assert world.seen(key).closed
        assert world.do(append(b"x", key, producer=by("p", 0, 0), closes=True)).outcome is Outcome.DUPLICATE
        assert type(world.refusal(append(b"x", key, producer=by("p", 0, 1)))) is StreamClosed


def test_a_close_in_flight_already_refuses_appends(world):
    world.decide(close())
    with pytest.raises(StreamClosed):
        world.decide(append())
    assert not world.seen().closed
    world.commit()
    assert world.seen().closed
