"""Transactions, with both clients against a real server."""

from __future__ import annotations

import uuid

import pyarrow
import pytest
from tests.client.proxy import Fault

from millstream.client import BadRequest, NotFound, TransactionRefused


@pytest.fixture
def bucket(client):
    made = client.bucket("b" + uuid.uuid4().hex[:12])
    made.create(content_type="application/json")
    return made


def rows(stream, values):
    return [{"stream": stream, "json": value} for value in values]


def test_parts_become_visible_together(bucket):
    transaction = bucket.transaction("job", 1)
    first = transaction.stage("0", [*rows("a", [1, [2]]), *rows("b", ["x"])])
    second = transaction.stage("1", rows("a", [3]))
    assert (first.messages, second.messages) == (3, 1)
    assert not bucket.stream("a").exists()
    state = transaction.state()
    assert (state.state, [part.part for part in state.parts]) == ("staged", ["0", "1"])
    done = transaction.commit([first, second], create=True)
    assert (done.messages, done.streams, done.created, done.duplicate) == (4, 2, 2, False)
    assert list(bucket.stream("a").read().json()) == [1, [2], 3]
    assert transaction.commit([first, second]).duplicate
    assert transaction.stage("2", rows("a", [4])).duplicate
    assert transaction.state().state == "committed"
    assert list(bucket.stream("a").read().json()) == [1, [2], 3]
    assert bucket.last_transaction("job").version == 1
    bucket.forget_transactions("job")
    assert bucket.last_transaction("job").version is None


def test_bytes_and_order(bucket):
    bucket.stream("raw").create("application/octet-stream")
    transaction = bucket.transaction("job", 1)
    values = [(3, b"\xff"), (1, "text"), (2, b"two")]
    part = transaction.stage("0", [{"stream": "raw", "value": value, "order": order} for order, value in values])
    transaction.commit([part])
    assert bucket.stream("raw").read().read_all() == b"texttwo\xff"


def test_from_arrow(bucket):
    table = pyarrow.table({"stream": ["a"] * 3, "value": [b"1", b"2", b"3"]})
    transaction = bucket.transaction("job", 7)
    parts = [
        transaction.stage_arrow("table", table),
        transaction.stage_arrow("batch", table.to_batches()[0]),
        transaction.stage_arrow("batches", table.to_batches()),
    ]
    assert transaction.commit(parts, create=True).messages == 9
    assert list(bucket.stream("a").read().json()) == [1, 2, 3] * 3


def test_a_refusal_says_why_and_changes_nothing(bucket):
    transaction = bucket.transaction("job", 5)
    part = transaction.stage("0", rows("missing", [1]))
    with pytest.raises(TransactionRefused) as caught:
        transaction.commit([part, "never-staged"])
    assert {reason["code"] for reason in caught.value.reasons} >= {"part_missing"}
    transaction.commit([part], create=True)
    with pytest.raises(TransactionRefused) as caught:
        bucket.transaction("job", 4).stage("0", rows("a", [1]))
    assert caught.value.code == "transaction_fenced"
    with pytest.raises(BadRequest):
        bucket.transaction("job", 6).stage("0", [{"stream": "a"}])


def test_dropping(bucket, client):
    transaction = bucket.transaction("job", 1)
    transaction.stage("0", rows("a", [1]))
    transaction.drop()
    assert transaction.state().parts == []
    with pytest.raises(NotFound):
        client.bucket("nosuchbucket").transaction("job", 1).stage("0", rows("a", [1]))


def test_lost_answers_commit_once(through_proxy, proxy):
    bucket = through_proxy.bucket("b" + uuid.uuid4().hex[:12])
    bucket.create(content_type="application/json")
    transaction = bucket.transaction("job", 1)
    proxy.add(Fault(lose_answer=True, matches=lambda seen: seen.method == "PUT"))
    part = transaction.stage("0", rows("a", [1, 2]))
    proxy.add(Fault(lose_answer=True, matches=lambda seen: seen.method == "POST"))
    assert transaction.commit([part], create=True).duplicate
    assert list(bucket.stream("a").read().json()) == [1, 2]
