"""The producer's rules alone, against a model of the server that loses, delays and reorders whatever it can."""

from __future__ import annotations

import json
from concurrent.futures import Future
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.client import (
    ClientError,
    ConnectionLost,
    Fenced,
    OutcomeUnknown,
    ProducerOptions,
    Retry,
    SequenceGap,
    StreamClosed,
    Unavailable,
)
from millstream.client.producing import Job, Producing, Receipt
from millstream.client.values import encode_json
from millstream.client.wire import Answer, Request

URL = "http://server/stream"


def producing(retry: Retry | None = None, **options) -> Producing:
    return Producing(
        URL,
        "application/json",
        ProducerOptions(options.pop("producer_id", "p"), **options),
        retry or Retry(retries_max=None, delay_s=0.1, delay_max_s=1),
        encode=encode_json,
        is_json=True,
        new_receipt=Future,
        headers={},
    )


class ModelServer:
    """One stream of the protocol, as far as producers go."""

    def __init__(self) -> None:
        self.messages: list[object] = []
        self.epoch: int | None = None
        self.highest = -1
        self.closed_by: tuple[int, int] | None = None

    def handle(self, request: Request) -> Answer:
        epoch, seq = int(request.headers["producer-epoch"]), int(request.headers["producer-seq"])
        if self.closed_by is not None:
            return self.answer(204) if self.closed_by == (epoch, seq) else self.answer(409, **{"stream-closed": "true"})
        if self.epoch is not None and epoch < self.epoch:
            return self.answer(403)
        if self.epoch is None or epoch > self.epoch:
            if seq != 0:
                expected = {"producer-expected-seq": "0", "producer-received-seq": str(seq)}
                return self.answer(409, **expected) if self.epoch is None else self.answer(400)
        elif seq <= self.highest:
            return self.answer(204)
        elif seq != self.highest + 1:
            expected = {"producer-expected-seq": str(self.highest + 1), "producer-received-seq": str(seq)}
            return self.answer(409, **expected)
        self.epoch, self.highest = epoch, seq
        self.messages += json.loads(request.body) if request.body else []
        if "stream-closed" in request.headers:
            self.closed_by = (epoch, seq)
        return self.answer(200)

    def answer(self, status: int, **headers: str) -> Answer:
        said = {"stream-next-offset": str(len(self.messages)), **headers}
        if self.epoch is not None:
            said["producer-epoch"] = str(self.epoch)
        return Answer(status, said, b"", URL)


class World:
    """A clock, a network and a server; `random` decides what happens to each request."""

    def __init__(self, rules: Producing, random: Random, *, trouble: float) -> None:
        self.rules = rules
        self.random = random
        self.trouble = trouble
        self.server = ModelServer()
        self.now = 0.0
        self.flying: list[Job] = []

    def add(self, value: object) -> Receipt:
        return self.rules.add(self.rules.encode(value), self.now)[0]

    def launch(self) -> None:
        while isinstance(job := self.rules.next_job(self.now), Job):
            job.sent = self.random.random() < 0.7
            self.flying.append(job)

    def step(self) -> None:
        """One thing happens: something is sent, something arrives, or time passes."""
        self.launch()
        for job in self.flying:
            job.sent = True
        if not self.flying:
            self.now += 0.5
            return
        job = self.flying.pop(self.random.randrange(len(self.flying)))
        chance = self.random.random()
        if chance < self.trouble / 3:
            self.rules.lost(job, ConnectionLost("lost before it arrived", sent=self.random.random() < 0.5), self.now)
        elif chance < self.trouble * 2 / 3:
            self.server.handle(job.request)
            self.rules.lost(job, ConnectionLost("lost after it arrived"), self.now)
        elif chance < self.trouble:
            self.rules.answered(job, Answer(503, {"retry-after": "1"}, b"", URL), self.now)
        else:
            self.rules.answered(job, self.server.handle(job.request), self.now)

    def finish(self) -> None:
        for _ in range(10_000):
            self.rules.hurry()
            if self.rules.idle and not self.flying:
                return
            self.step()
        pytest.fail("it never ends")


@given(
    st.integers(0, 2**32),
    st.integers(1, 60),
    st.integers(1, 6),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.2, 0.6]),
)
@settings(deadline=None, max_examples=200)
def test_every_message_once_and_in_order_whatever_happens(seed, count, batch, in_flight, trouble):
    random = Random(seed)
    rules = producing(batch_messages_max=batch, in_flight_max=in_flight, linger_s=0.01)
    world = World(rules, random, trouble=trouble)
    receipts = []
    for number in range(count):
        receipts.append(world.add(number))
        while random.random() < 0.5:
            world.step()
    world.finish()
    assert world.server.messages == list(range(count))
    assert all(receipt.exception() is None for receipt in receipts)
    assert rules.buffered_bytes == 0


@given(st.integers(0, 2**32), st.booleans())
@settings(deadline=None)
def test_closing_comes_last_and_once(seed, with_message):
    world = World(producing(batch_messages_max=2), Random(seed), trouble=0.5)
    for number in range(7):
        world.add(number)
    receipt = world.rules.add_closing(b'"end"' if with_message else None, world.now)
    world.finish()
    assert world.server.messages == [*range(7), *(["end"] if with_message else [])]
    assert world.server.closed_by is not None
    assert receipt.done()
    with pytest.raises(ValueError, match="closed"):
        world.add("late")


def quiet_world(**options) -> World:
    return World(producing(**options), Random(1), trouble=0.0)


def test_the_first_batch_of_an_epoch_travels_alone():
    world = quiet_world(batch_messages_max=1, in_flight_max=4)
    for number in range(6):
        world.add(number)
    world.launch()
    assert len(world.flying) == 1
    world.step()
    for job in world.flying:
        job.sent = True
    for _ in range(5):
        world.launch()
        for job in world.flying:
            job.sent = True
    assert len(world.flying) == 4


def test_a_message_lingers_for_company_and_a_full_batch_does_not():
    world = quiet_world(linger_s=5, batch_messages_max=3)
    world.add(1)
    assert world.rules.next_job(0.0) == 5
    world.add(2)
    world.add(3)
    assert isinstance(world.rules.next_job(0.0), Job)


def test_batches_are_bounded_by_bytes_too():
    world = quiet_world(batch_bytes_max=10)
    for _ in range(4):
        world.add("abcd")
    world.finish()
    assert world.server.highest == 3  # four batches of one message


def test_a_fenced_producer_stops_and_says_why():
    world = quiet_world()
    world.server.epoch = 7
    receipt = world.add(1)
    with pytest.raises(Fenced) as caught:
        world.finish()
    assert caught.value.epoch == 7
    assert isinstance(receipt.exception(), Fenced)
    with pytest.raises(Fenced):
        world.add(2)


def test_a_claim_takes_the_next_epoch():
    world = quiet_world(claim=True)
    world.server.epoch = 7
    world.server.highest = 3
    world.add(1)
    world.finish()
    assert (world.rules.epoch, world.server.epoch, world.server.messages) == (8, 8, [1])


def test_a_name_that_is_in_use_is_noticed():
    world = quiet_world()
    world.server.epoch, world.server.highest = 0, 5  # someone else's
    world.add("mine")
    with pytest.raises(Fenced, match="Another producer"):
        world.finish()
    assert world.server.messages == []


def test_a_name_that_is_in_use_can_be_claimed_or_resumed():
    claiming = quiet_world(claim=True)
    claiming.server.epoch, claiming.server.highest = 0, 5
    claiming.add("mine")
    claiming.finish()
    assert (claiming.server.messages, claiming.rules.epoch) == (["mine"], 1)

    resuming = quiet_world(resume=True, first_seq=5, batch_messages_max=1)
    resuming.server.epoch, resuming.server.highest = 0, 5
    resuming.add("was there")
    resuming.add("is new")
    resuming.finish()
    assert resuming.server.messages == ["is new"]


def test_no_claim_over_a_batch_that_may_have_arrived():
    world = quiet_world(claim=True, linger_s=0)
    world.add("perhaps")
    world.launch()
    job = world.flying.pop()
    world.server.handle(job.request)
    world.rules.lost(job, ConnectionLost("no answer"), world.now)
    world.server.epoch = 9
    with pytest.raises(OutcomeUnknown, match="Read the end"):
        world.finish()


def test_a_server_that_forgot_is_an_error_not_a_loop():
    world = quiet_world(first_seq=4, resume=True)
    world.add(1)
    with pytest.raises(SequenceGap) as caught:
        world.finish()
    assert (caught.value.expected, caught.value.received) == (0, 4)


def test_a_closed_stream_fails_everything_behind_it():
    world = quiet_world(batch_messages_max=1)
    world.server.closed_by = (5, 5)
    receipts = [world.add(number) for number in range(3)]
    with pytest.raises(StreamClosed):
        world.finish()
    assert all(isinstance(receipt.exception(), StreamClosed) for receipt in receipts)


def test_retries_end():
    rules = producing(Retry(retries_max=2, delay_s=0.1))
    rules.add(b"1", 0.0)
    now = 0.0
    for _ in range(3):
        now += 10
        job = rules.next_job(now)
        assert isinstance(job, Job)
        rules.answered(job, Answer(503, {}, b"", URL), now)
    assert isinstance(rules.failure, Unavailable)


def test_retry_after_is_honoured():
    rules = producing()
    rules.add(b"1", 0.0)
    job = rules.next_job(1.0)
    rules.answered(job, Answer(429, {"retry-after": "30"}, b"", URL), 1.0)
    assert rules.next_job(2.0) == pytest.approx(29)


@pytest.mark.parametrize(
    "options",
    [
        {"producer_id": ""},
        {"epoch": -1},
        {"epoch": 2**53},
        {"first_seq": -1},
        {"linger_s": -1},
        {"batch_bytes_max": 0},
        {"batch_messages_max": 0},
        {"in_flight_max": 0},
        {"buffer_bytes_max": 0},
    ],
)
def test_options_are_checked(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ProducerOptions(**{"producer_id": "p", **options})


def test_errors_are_one_tree():
    assert all(issubclass(kind, ClientError) for kind in (Fenced, OutcomeUnknown, SequenceGap, StreamClosed))
