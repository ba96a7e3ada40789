"""Idempotent producers: exactly once, fenced by epochs (protocol section 5.2.1)."""

from __future__ import annotations

import pytest
from tests.engine.world import JSON, KEY, World, append, by, close, create, everything

from millstream.model.commands import Body
from millstream.model.errors import BadRequest, Conflict, Fenced, PreconditionFailed, SequenceGap, TooMany
from millstream.model.replies import Outcome, Receipt


@pytest.fixture
def world() -> World:
    world = World(producers_max=3)
    world.do(create())
    return world


def echo(receipt: Receipt) -> tuple[Outcome, int | None, int | None]:
    return receipt.outcome, receipt.producer_epoch, receipt.producer_seq


def send(world: World, epoch: int, seq: int, payload: bytes = b"x", producer_id: str = "p") -> Receipt:
    return world.do(append(payload, producer=by(producer_id, epoch, seq)))


def refused(world: World, epoch: int, seq: int, producer_id: str = "p") -> Exception:
    return world.refusal(append(b"lost", producer=by(producer_id, epoch, seq)))


# --- sequences


def test_batches_in_order_are_new(world):
    assert echo(send(world, 0, 0)) == (Outcome.APPENDED, 0, 0)
    assert echo(send(world, 0, 1)) == (Outcome.APPENDED, 0, 1)
    assert echo(send(world, 0, 2)) == (Outcome.APPENDED, 0, 2)
    assert world.content() == b"xxx"


def test_a_batch_sent_again_is_known_and_stored_once(world):
    send(world, 0, 0, b"once")
    again = send(world, 0, 0, b"once")
    assert echo(again) == (Outcome.DUPLICATE, 0, 0)
    assert (again.tail, again.closed) == (4, False)
    assert world.content() == b"once"


def test_any_older_batch_is_a_duplicate_and_the_highest_accepted_seq_is_echoed(world):
    for seq in range(4):
        send(world, 7, seq)
    assert echo(send(world, 7, 1)) == (Outcome.DUPLICATE, 7, 3)
    assert world.content() == b"xxxx"


def test_a_gap_names_what_is_missing(world):
    send(world, 0, 0)
    error = refused(world, 0, 2)
    assert type(error) is SequenceGap
    assert (error.expected, error.received) == (1, 2)
    assert echo(send(world, 0, 1)) == (Outcome.APPENDED, 0, 1)
    assert echo(send(world, 0, 2)) == (Outcome.APPENDED, 0, 2)


def test_first_contact_must_be_seq_0(world):
    error = refused(world, 0, 1)
    assert type(error) is SequenceGap
    assert (error.expected, error.received) == (0, 1)


def test_first_contact_may_have_any_epoch(world):
    assert echo(send(world, 41, 0)) == (Outcome.APPENDED, 41, 0)


# --- epochs


def test_a_new_epoch_starts_again_at_0(world):
    send(world, 0, 0)
    send(world, 0, 1)
    assert echo(send(world, 1, 0)) == (Outcome.APPENDED, 1, 0)
    assert echo(send(world, 1, 1)) == (Outcome.APPENDED, 1, 1)


def test_a_new_epoch_must_start_at_0(world):
    send(world, 0, 0)
    error = refused(world, 1, 1)
    assert type(error) is BadRequest
    assert error.code == "bad_producer"
    assert echo(send(world, 0, 1)) == (Outcome.APPENDED, 0, 1)  # the old epoch is still the current one


def test_a_stale_epoch_is_fenced_and_told_the_current_one(world):
    send(world, 0, 0)
    send(world, 5, 0)
    for seq in (0, 1, 9):
        error = refused(world, 0, seq)
        assert type(error) is Fenced
        assert error.epoch == 5


def test_a_fenced_producer_claims_its_name_with_a_higher_epoch(world):
    send(world, 5, 0)
    error = refused(world, 0, 0)
    assert echo(send(world, error.epoch + 1, 0)) == (Outcome.APPENDED, 6, 0)


# --- several


def test_producers_do_not_know_each_other(world):
    send(world, 3, 0, b"p", "p")
    assert echo(send(world, 0, 0, b"q", "q")) == (Outcome.APPENDED, 0, 0)
    assert echo(send(world, 3, 1, b"p", "p")) == (Outcome.APPENDED, 3, 1)
    assert world.content() == b"pqp"


def test_producers_of_one_stream_are_unknown_to_another(world):
    send(world, 0, 0)
    send(world, 0, 1)
    world.do(create("shop/other"))
    assert echo(world.do(append(key="shop/other", producer=by("p", 0, 0)))) == (Outcome.APPENDED, 0, 0)


def test_a_stream_remembers_only_so_many_producers(world):
    for name in ("a", "b", "c"):
        send(world, 0, 0, producer_id=name)
    error = refused(world, 0, 0, "d")
    assert type(error) is TooMany
    assert error.code == "too_many_producers"
    assert echo(send(world, 0, 1, producer_id="a")) == (Outcome.APPENDED, 0, 1)  # nobody was evicted
    assert echo(send(world, 1, 0, producer_id="b")) == (Outcome.APPENDED, 1, 0)
    assert world.do(append()).outcome is Outcome.APPENDED


def test_the_cap_counts_producers_in_flight(world):
    for name in ("a", "b", "c"):
        world.decide(append(producer=by(name, 0, 0)))
    with pytest.raises(TooMany):
        world.decide(append(producer=by("d", 0, 0)))


def test_the_cap_counts_a_producer_once_however_often_it_writes(world):
    for seq in range(5):
        send(world, 0, seq)
    for epoch in range(1, 5):
        send(world, epoch, 0)
    assert world.seen().writers.producer_count == 1


def test_a_producer_of_the_initial_content_is_known():
    world = World()
    receipt = world.do(create(payload=b"x", producer=by("p", 2, 0)))
    assert echo(receipt) == (Outcome.CREATED, 2, 0)
    assert echo(world.do(append(producer=by("p", 2, 1)))) == (Outcome.APPENDED, 2, 1)
    assert world.seen().writers.producer_count == 1


def test_a_producer_that_creates_without_content_is_known_too():
    world = World()
    world.do(create(producer=by("p", 2, 0)))
    assert world.seen().tail == 0
    assert echo(world.do(append(producer=by("p", 2, 0)))) == (Outcome.DUPLICATE, 2, 0)
    assert echo(world.do(append(b"x", producer=by("p", 2, 1)))) == (Outcome.APPENDED, 2, 1)
    assert world.content() == b"x"


def test_a_producer_cannot_create_in_the_middle_of_its_sequence():
    world = World()
    error = world.refusal(create(producer=by("p", 0, 3)))
    assert type(error) is SequenceGap
    assert (error.expected, error.received) == (0, 3)
    assert not world.exists()


# --- pipelines


def test_batches_in_flight_count(world):
    assert echo(world.decide(append(producer=by("p", 0, 0)))) == (Outcome.APPENDED, 0, 0)
    assert echo(world.decide(append(producer=by("p", 0, 0)))) == (Outcome.DUPLICATE, 0, 0)
    assert echo(world.decide(append(producer=by("p", 0, 1)))) == (Outcome.APPENDED, 0, 1)
    with pytest.raises(SequenceGap):
        world.decide(append(producer=by("p", 0, 3)))
    world.commit()
    assert world.content() == b"xx"
    assert echo(send(world, 0, 2)) == (Outcome.APPENDED, 0, 2)


def test_batches_whose_journal_failed_never_happened(world):
    send(world, 0, 0)
    world.decide(append(producer=by("p", 0, 1)))
    world.lose()
    assert world.machine.producer_state(world.stream(), "p") == (0, 0)


# --- refusals


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (append(producer=by("p", 0, 1), content_type=JSON), Conflict),
        (append(producer=by("p", 0, 1), if_match='"stale"'), PreconditionFailed),
        (append(producer=by("p", 0, 1), stream_seq="a"), Conflict),
        (append(producer=by("p", 0, 1), body=Body(fault=BadRequest("bad"))), BadRequest),
        (append(producer=by("p", 0, 5)), SequenceGap),
        (append(producer=by("p", 4, 5)), BadRequest),
        (append(producer=by("new", 0, 0), content_type=JSON), Conflict),
        (append(producer=by("new", 0, 0), if_match='"stale"'), PreconditionFailed),
        (append(producer=by("new", 0, 0), stream_seq="a"), Conflict),
        (append(producer=by("new", 0, 0), body=Body(fault=BadRequest("bad"))), BadRequest),
        (close(producer=by("new", 0, 0), if_match='"stale"'), PreconditionFailed),
    ],
)
def test_a_refused_batch_changes_nothing_and_may_be_sent_again(world, command, kind):
    world.do(append(stream_seq="m", producer=by("p", 0, 0)))
    before = everything(world.machine)
    assert isinstance(world.refusal(command), kind)
    assert everything(world.machine) == before
    assert echo(send(world, 0, 1)) == (Outcome.APPENDED, 0, 1)


def test_producers_survive_leaving_memory(world):
    send(world, 2, 0)
    send(world, 2, 1)
    send(world, 0, 0, producer_id="q")
    world.checkpoint()
    world.forget_idle()
    assert KEY not in world.machine.streams
    assert echo(send(world, 2, 1)) == (Outcome.DUPLICATE, 2, 1)
    assert echo(send(world, 2, 2)) == (Outcome.APPENDED, 2, 2)
    assert echo(send(world, 0, 0, producer_id="q")) == (Outcome.DUPLICATE, 0, 0)
    assert echo(send(world, 0, 0, producer_id="r")) == (Outcome.APPENDED, 0, 0)
    assert type(refused(world, 0, 0, "s")) is TooMany
