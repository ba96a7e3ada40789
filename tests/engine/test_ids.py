"""Ids of messages: they only grow, whoever gives them, and survive all that removes messages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.world import (
    KEY,
    START_MS,
    World,
    append,
    batch,
    close,
    committed,
    create,
    delete,
    replayed,
    transaction,
    trim,
)

from millstream.engine.reading import hot_offset_after, records_hot
from millstream.model.errors import BadRequest, Conflict, StreamClosed
from millstream.model.ids import U64_MAX, ZERO_ID, MessageId, parse_id
from millstream.model.replies import Outcome


@pytest.fixture
def world() -> World:
    """With one stream whose clients give the ids."""
    world = World()
    world.do(create(client_ids=True))
    return world


def ids(world: World) -> list[MessageId]:
    records = records_hot(world.stream(), 0, 10_000, 1 << 30)
    return [MessageId(*id_) for id_ in zip(records.ids_ms, records.id_seqs, strict=True)]


# --- text


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        (b"0-0", ZERO_ID),
        (b"1700000001234-5", MessageId(1700000001234, 5)),
        (b"007-0010", MessageId(7, 10)),
        (b"18446744073709551615-18446744073709551615", MessageId(U64_MAX, U64_MAX)),
    ],
)
def test_ids_are_two_numbers(text, id_):
    assert parse_id(text) == id_
    assert parse_id(str(id_).encode()) == id_


@pytest.mark.parametrize(
    "text", [b"", b"1", b"-1", b"1-", b"1-2-3", b"1_0-2", b" 1-2", b"1-2\n", b"+1-2", b"1-" + b"9" * 21]
)
def test_what_is_no_id_is_refused(text):
    with pytest.raises(BadRequest):
        parse_id(text)


def test_the_id_before_another():
    assert MessageId(5, 3).before() == MessageId(5, 2)
    assert MessageId(5, 0).before() == MessageId(4, U64_MAX)
    assert ZERO_ID.before() is None


# --- given by the server


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 4)), max_size=30))
def test_the_server_s_ids_grow_whatever_the_clock_does(steps):
    world = World()
    world.do(create())
    told = []
    for step_ms, messages in steps:
        world.wait(step_ms)
        told.append(world.do(append(body=batch(*[b"x"] * messages))).last_id)
    found = ids(world)
    assert all(one < other for one, other in pairwise(found))
    assert set(told) <= set(found)


def test_the_ids_of_a_batch_are_consecutive_and_the_last_is_told():
    world = World()
    world.do(create())
    assert world.do(append(b"a")).last_id == (START_MS, 0)
    assert world.do(append(body=batch(b"b", b"c", b"d"))).last_id == (START_MS, 3)
    world.wait(1)
    assert world.do(append(b"e")).last_id == (START_MS + 1, 0)
    world.wait(-1000)
    assert world.do(append(b"f")).last_id == (START_MS + 1, 1)


# --- given by clients


def test_a_client_s_id_is_that_of_the_first_message(world):
    receipt = world.do(append(body=batch(b"a", b"b"), first_id=MessageId(7, 5)))
    assert (receipt.outcome, receipt.last_id) == (Outcome.APPENDED, MessageId(7, 6))
    assert ids(world) == [(7, 5), (7, 6)]
    assert (world.seen().id_ms, world.seen().id_seq) == (7, 6)


@pytest.mark.parametrize("first_id", [(7, 6), (7, 5), (6, 999), (1, 1)])
def test_it_must_be_above_the_last(world, first_id):
    world.do(append(body=batch(b"a", b"b"), first_id=MessageId(7, 5)))
    error = world.refusal(append(b"c", first_id=MessageId(*first_id)))
    assert isinstance(error, Conflict)
    assert error.code == "id_regression"
    assert ids(world) == [(7, 5), (7, 6)]


def test_it_must_be_above_the_last_that_is_in_flight(world):
    world.decide(append(b"a", first_id=MessageId(7, 5)))
    with pytest.raises(Conflict):
        world.decide(append(b"b", first_id=MessageId(7, 5)))
    world.decide(append(b"c", first_id=MessageId(7, 6)))
    world.commit()
    assert ids(world) == [(7, 5), (7, 6)]


def test_ids_that_would_not_fit_are_refused(world):
    last = MessageId(U64_MAX, U64_MAX)
    assert world.refusal(append(body=batch(b"a", b"b"), first_id=last)).code == "id_overflow"
    assert world.do(append(b"a", first_id=last)).last_id == last
    assert world.refusal(append(b"b", first_id=last)).code == "id_regression"


def test_who_gives_the_ids_is_decided_at_creation(world):
    world.do(create("shop/other"))
    assert world.refusal(append(b"a")).code == "ids_are_the_clients"
    assert world.refusal(append(b"a", "shop/other", first_id=MessageId(1, 1))).code == "ids_are_the_servers"
    assert world.do(close()).outcome is Outcome.CLOSED
    assert isinstance(world.refusal(append(b"a", first_id=MessageId(1, 1))), StreamClosed)


def test_a_new_stream_of_the_name_decides_anew(world):
    assert world.refusal(create(must_be_new=True)).code == "stream_exists"
    world.decide(delete())
    world.decide(create(must_be_new=True))
    assert world.do(append(b"a")).last_id == (START_MS, 0)


def test_one_of_two_creations_in_flight_wins():
    world = World()
    world.decide(create(must_be_new=True, client_ids=True))
    with pytest.raises(Conflict) as caught:
        world.decide(create(must_be_new=True))
    assert caught.value.code == "stream_exists"
    world.commit()
    assert world.seen().client_ids


def test_transactions_leave_streams_alone_whose_clients_give_the_ids(world):
    world.do(create("shop/b"))
    refusal = world.refusal(transaction(1, {"orders": [b"x"], "b": [b"y"]}))
    assert [reason.code for reason in refusal.reasons] == ["ids_are_the_clients"]
    assert world.content() == world.content("shop/b") == b""


def test_messages_of_transactions_have_ids_like_any_other():
    world = World()
    world.do(create())
    world.do(append(b"before"))
    world.do(transaction(1, {"orders": [b"one", b"two"]}))
    world.do(append(b"after"))
    found = ids(world)
    assert len(found) == 4
    assert all(one < other for one, other in pairwise(found))
    stream = world.stream()
    for at, id_ in enumerate(found):
        place = hot_offset_after(stream.hot, id_)
        assert records_hot(stream, place, 10, 1 << 20).payloads == [b"before", b"one", b"two", b"after"][at + 1 :]


# --- and what they survive


@pytest.mark.parametrize("client_ids", [False, True])
def test_the_last_id_survives_trimming_shelving_and_replay(client_ids):
    world = World()
    world.do(create(client_ids=client_ids))
    first_id = MessageId(START_MS + 1000, 4) if client_ids else None
    world.wait(500)
    last = MessageId(*world.do(append(body=batch(b"a", b"b"), first_id=first_id)).last_id)
    world.do(trim(2))
    assert ids(world) == []
    assert committed(replayed(world.journal)) == committed(world.machine)
    world.checkpoint()
    world.forget_idle()
    assert KEY not in world.machine.streams
    world.wait(-100)
    if client_ids:
        assert world.refusal(append(b"c", first_id=last)).code == "id_regression"
        assert world.do(append(b"c", first_id=MessageId(last.ms, last.seq + 1))).last_id > last
    else:
        assert world.do(append(b"c")).last_id == (last.ms, last.seq + 1)


# --- looking for them


@settings(max_examples=50)
@given(st.lists(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=4), max_size=12), st.data())
def test_every_id_leads_to_the_message_behind_it(batches, data):
    world = World()
    world.do(create(client_ids=True))
    last = MessageId(0, 0)
    expected: list[tuple[MessageId, bytes]] = []
    for messages in batches:
        gap = data.draw(st.sampled_from([(0, 1), (0, 3), (1, 0), (5, 2)]))
        first = MessageId(last.ms + gap[0], gap[1] + (last.seq if gap[0] == 0 else 0))
        last = MessageId(*world.do(append(body=batch(*messages), first_id=first)).last_id)
        expected += [(MessageId(first.ms, first.seq + at), message) for at, message in enumerate(messages)]
    stream = world.stream()
    for id_ in {ZERO_ID, *(MessageId(id_.ms + 1, 0) for id_, _ in expected), *(id_ for id_, _ in expected)}:
        place = hot_offset_after(stream.hot or [], id_) if stream.hot else 0
        records = records_hot(stream, place or 0, 10_000, 1 << 30)
        found = list(zip(zip(records.ids_ms, records.id_seqs, strict=True), records.payloads, strict=True))
        assert found == [(tuple(one), message) for one, message in expected if one > id_]
        count = data.draw(st.integers(1, 5))
        few = records_hot(stream, place or 0, count, 1 << 30)
        assert few.payloads == records.payloads[:count]
        budget = records_hot(stream, place or 0, 10_000, 10)
        assert budget.payloads == records.payloads[: len(budget.payloads)]
        assert bool(budget.payloads) == bool(records.payloads)
        assert sum(map(len, budget.payloads)) <= 10 or len(budget.payloads) == 1
        assert budget.end == (place or 0) + sum(map(len, budget.payloads))
