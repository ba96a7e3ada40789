"""Producers of both clients against a real server, through whatever breaks on the way."""

from __future__ import annotations

import threading
import time

import pytest
from tests.client.proxy import Fault

from millstream.client import Client, Fenced, NotFound, OutcomeUnknown, Retry, StreamClosed

COUNT = 5000


def is_post(seen):
    return seen.method == "POST"


@pytest.fixture
def stream(client, name):
    made = client.stream(name)
    made.create("application/json")
    return made


def test_messages_arrive_in_order(stream):
    with stream.producer() as producer:
        for number in range(COUNT):
            producer.append({"n": number})
    assert [message["n"] for message in stream.read().json()] == list(range(COUNT))


def test_a_receipt_tells_when_its_message_is_durable(stream):
    with stream.producer() as producer:
        receipt = producer.append([1, 2])
        done = receipt.result(10)
        assert done.offset == stream.head().offset
        assert not done.duplicate
    assert list(stream.read().json()) == [[1, 2]]


def test_flush_leaves_nothing_behind(stream):
    with stream.producer(linger_s=60) as producer:
        for round_ in range(3):
            producer.append(round_)
            producer.flush()
            assert len(list(stream.read().json())) == round_ + 1


def test_back_pressure(stream):
    with stream.producer(buffer_bytes_max=2000, batch_bytes_max=500) as producer:
        for number in range(500):
            producer.append("x" * 50 + str(number))
    assert [int(message[50:]) for message in stream.read().json()] == list(range(500))


def test_closing_with_a_last_message(stream):
    producer = stream.producer()
    for number in range(10):
        producer.append(number)
    done = producer.close_stream("last")
    assert done.closed
    assert list(stream.tail().json()) == [*range(10), "last"]
    with pytest.raises(ValueError, match="closed"):
        producer.append("late")


def test_closing_without_one(stream):
    with stream.producer() as producer:
        producer.append(1)
        producer.close_stream()
    assert stream.head().closed
    assert list(stream.read().json()) == [1]


def test_byte_streams_keep_messages_apart_unless_told_otherwise(client, name):
    stream = client.stream(name)
    stream.create("text/plain")
    with stream.producer(linger_s=1) as producer:
        receipts = [producer.append(text) for text in ("one", "two")]
        producer.flush()
        first, second = (receipt.result(10).offset for receipt in receipts)
    assert first < second
    with stream.producer(linger_s=1, merge=True) as producer:
        receipts = [producer.append(text) for text in ("three", "four")]
        producer.flush()
        assert len({receipt.result(10).offset for receipt in receipts}) == 1
    assert stream.read().read_all() == b"onetwothreefour"


def test_a_successor_fences_its_predecessor(stream):
    first = stream.producer("worker", epoch=1)
    first.append("first")
    first.flush()
    with stream.producer("worker", epoch=2) as second:
        second.append("second")
    first.append("too late")
    with pytest.raises(Fenced) as caught:
        first.flush()
    assert caught.value.epoch == 2
    first.close()
    with stream.producer("worker", claim=True) as third:
        third.append("third")
        third.flush()
        assert third.epoch == 3
    assert list(stream.read().json()) == ["first", "second", "third"]


def test_a_name_used_twice_is_noticed(stream):
    with stream.producer("twin") as first:
        first.append("first")
    second = stream.producer("twin")
    second.append("second")
    with pytest.raises(Fenced, match="Another producer"):
        second.flush()
    second.close()
    assert list(stream.read().json()) == ["first"]


def test_leaving_with_an_error_raises_that_error(client, name):
    stream = client.stream(name)
    with pytest.raises(NotFound), stream.producer(content_type="application/json") as producer:
        producer.append(1)
    producer = stream.producer(content_type="application/json")
    with pytest.raises(RuntimeError, match="mine") as caught, producer:  # noqa: PT012 - the block is what is tested
        producer.append(1)
        raise RuntimeError("mine")
    assert "could not deliver" in caught.value.__notes__[0]


def test_a_stream_closed_by_another(stream):
    producer = stream.producer()
    producer.append(1)
    producer.flush()
    stream.close()
    producer.append(2)
    with pytest.raises(StreamClosed):
        producer.flush()
    producer.close()


def test_closing_tells_what_nobody_has_asked_about(stream):
    producer = stream.producer(linger_s=0)
    stream.close()
    receipt = producer.append(1)
    with pytest.raises(StreamClosed):
        receipt.result(10)
    with pytest.raises(StreamClosed):
        producer.close()
    producer.close()  # it has said so


def test_an_error_is_not_noted_beside_itself(stream):
    stream.close()
    with pytest.raises(StreamClosed) as caught, stream.producer() as producer:  # noqa: PT012
        producer.append(1)
        producer.flush()
    assert not getattr(caught.value, "__notes__", [])


def test_lost_answers_lead_to_no_duplicates(through_proxy, proxy, name):
    stream = through_proxy.stream(name)
    stream.create("application/json")
    for fault in (Fault(lose_answer=True), Fault(refuse=True), Fault(status=503), Fault(status=500)) * 6:
        fault = Fault(**{**vars(fault), "matches": is_post})
        proxy.add(fault)
        proxy.add(Fault(count=2, hold_s=0.01, matches=is_post))
    with stream.producer(batch_messages_max=20, linger_s=0) as producer:
        for number in range(1000):
            producer.append(number)
    assert list(stream.read().json()) == list(range(1000))


def test_requests_that_overtake_each_other_do_not_reorder(through_proxy, proxy, name):
    stream = through_proxy.stream(name)
    stream.create("application/json")
    for _ in range(10):
        proxy.add(Fault(hold_s=0.05, matches=is_post))
        proxy.add(Fault(count=3, matches=is_post))
    with stream.producer(batch_messages_max=5, linger_s=0, in_flight_max=4) as producer:
        for number in range(300):
            producer.append(number)
    assert list(stream.read().json()) == list(range(300))


def test_rate_limits_are_waited_out(through_proxy, proxy, name):
    stream = through_proxy.stream(name)
    stream.create("application/json")
    proxy.add(Fault(status=429, headers={"Retry-After": "1"}, matches=is_post))
    with stream.producer() as producer:
        producer.append(1)
    assert list(stream.read().json()) == [1]
    assert sum(map(is_post, proxy.requests)) == 2


def test_a_server_that_is_killed_loses_and_repeats_nothing(server, make_client):
    running = server()
    client = make_client(running.url, retry=Retry(retries_max=None, delay_s=0.05, delay_max_s=0.2))
    stream = client.stream("kept")
    stream.create("application/json")
    with stream.producer(batch_messages_max=50, linger_s=0) as producer:
        for number in range(3000):
            producer.append(number)
            if number == 1500:
                running.kill()
                running.start()
    assert list(stream.read().json()) == list(range(3000))


def test_interrupting_leaves_nothing_waiting(through_proxy, proxy, name):
    stream = through_proxy.stream(name)
    stream.create("application/json")
    proxy.add(Fault(count=99, hold_s=3, matches=is_post))
    producer = stream.producer()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), producer:  # noqa: PT012 - the block is what is tested
        receipt = producer.append(1)
        time.sleep(0.1)
        raise KeyboardInterrupt
    assert time.monotonic() - started < 2
    with pytest.raises(OutcomeUnknown, match="stopped"):
        receipt.result(5)


def test_an_append_that_waits_for_room_ends_with_the_producer(through_proxy, proxy, name):
    stream = through_proxy.stream(name)
    stream.create("application/json")
    proxy.add(Fault(count=99, status=404, hold_s=0.3, matches=is_post))
    producer = stream.producer(buffer_bytes_max=1)
    producer.append(1)
    with pytest.raises(NotFound):
        producer.append(2)
    producer.close()


def test_many_threads_share_one_producer(shared, name):
    with Client(shared.url) as client:
        stream = client.stream(name)
        stream.create("application/json")
        with stream.producer() as producer:
            threads = [
                threading.Thread(target=lambda who=who: [producer.append([who, n]) for n in range(500)])
                for who in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        got = list(stream.read().json())
    assert all([n for who, n in got if who == each] == list(range(500)) for each in range(4))
