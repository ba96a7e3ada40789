"""A stream that was created without a content type takes that of its first append."""

from __future__ import annotations

import pytest
from tests.engine.world import (
    JSON,
    KEY,
    TEXT,
    World,
    append,
    batch,
    by,
    close,
    committed,
    create,
    replayed,
    snapshot,
    stream_record,
    transaction,
)

from millstream.model import facts
from millstream.model.commands import Body, ChangeBucket, CreateBucket
from millstream.model.errors import BadRequest, Conflict, StreamClosed, TransactionRefused
from millstream.model.facts import BucketSettings
from millstream.model.replies import Outcome

BYTES = "application/octet-stream"


@pytest.fixture
def world() -> World:
    world = World()
    world.do(create(content_type=None))
    return world


def test_until_then_it_reports_bytes(world):
    assert world.seen().content_type == BYTES


@pytest.mark.parametrize("content_type", [TEXT, "Text/Plain; charset=utf-8", BYTES, f"{BYTES}; v=1"])
def test_the_first_append_says_what_it_holds_and_all_others_must_say_the_same(world, content_type):
    assert world.do(append(b"hello", content_type=content_type)).content_type == content_type
    assert world.seen().content_type == content_type
    assert world.refusal(append(b"1", content_type=JSON)).code == "content_type_mismatch"
    assert world.content() == b"hello"
    assert committed(replayed(world.journal)) == committed(world.machine)


def test_the_type_and_the_append_are_decided_together(world):
    world.do(append(b"12", content_type=JSON, body=batch(b"1", b"2")))
    number = world.stream().number
    assert [entry.fact for entry in world.journal[-2:]] == [facts.ContentTypeTaken(number, JSON), world.last_fact()]
    assert {entry.at_ms for entry in world.journal[-2:]} == {world.now_ms}


def test_an_append_in_flight_has_said_it_already(world):
    world.decide(append(content_type=JSON))
    assert world.seen().content_type == BYTES
    assert world.refusal(append(content_type=TEXT)).code == "content_type_mismatch"
    world.commit()
    assert world.seen().content_type == JSON


def test_what_the_journal_did_not_take_was_never_said(world):
    world.decide(append(content_type=JSON))
    world.lose()
    assert world.seen().content_type == BYTES


def test_a_refused_append_says_nothing(world):
    broken = Body(fault=BadRequest("broken", code="invalid_json"))
    for refused in (
        append(content_type=None),
        append(b"", content_type=JSON),
        append(body=broken, content_type=JSON),
        append(content_type=JSON, if_match='"stale"'),
        append(content_type=JSON, producer=by("p", 0, 3)),
    ):
        world.refusal(refused)
    assert world.seen().content_type == BYTES
    assert world.do(append(content_type=TEXT)).content_type == TEXT


def test_neither_closing_nor_a_snapshot_nor_a_writers_mark_is_an_append(world):
    world.do(create("shop/marked", content_type=None, producer=by("p", 0, 0), stream_seq="a"))
    for key in (KEY, "shop/marked"):
        world.do(snapshot(0, key=key))
        assert world.do(append(content_type=JSON, key=key)).content_type == JSON
    world.do(create("shop/closed", content_type=None))
    world.do(close("shop/closed"))
    assert type(world.refusal(append(key="shop/closed"))) is StreamClosed
    assert world.seen("shop/closed").content_type == BYTES


def test_it_is_remembered_over_a_checkpoint(world):
    world.checkpoint()
    world.forget_idle()
    assert world.machine.streams == {}
    world.do(append(content_type=JSON))
    world.checkpoint()
    world.forget_idle()
    assert stream_record(world.stream()).content_type == JSON
    assert world.refusal(append(content_type=TEXT)).code == "content_type_mismatch"


def test_a_body_without_a_type_is_the_first_append_and_is_bytes(world):
    world.do(create("shop/b", content_type=None, payload=b"hello"))
    assert world.refusal(append(key="shop/b")).code == "content_type_mismatch"
    assert world.do(append(key="shop/b", content_type=BYTES)).outcome is Outcome.APPENDED


def test_who_names_the_default_type_gets_just_that(world):
    world.do(create("shop/b", content_type=BYTES))
    assert world.refusal(append(key="shop/b")).code == "content_type_mismatch"


def test_the_same_creation_again_finds_it_before_and_after(world):
    again = create(content_type=None)
    assert world.do(again).outcome is Outcome.EXISTED
    assert world.do(create(content_type=BYTES)).outcome is Outcome.EXISTED
    assert type(world.refusal(create(content_type=TEXT))) is Conflict  # it is not text, yet
    world.do(append(content_type=TEXT))
    assert world.do(again).content_type == TEXT
    assert world.do(create(content_type=TEXT)).outcome is Outcome.EXISTED
    assert type(world.refusal(create(content_type=BYTES))) is Conflict


def test_the_default_of_a_bucket_is_a_type(world):
    world.do(CreateBucket("jsons", BucketSettings(content_type=JSON)))
    world.do(create("jsons/a", content_type=None))
    assert world.seen("jsons/a").content_type == JSON
    assert world.refusal(append(key="jsons/a")).code == "content_type_mismatch"
    world.do(ChangeBucket("shop", BucketSettings(content_type=JSON)))
    assert world.do(append(content_type=TEXT)).content_type == TEXT  # what was created before is not concerned


# --- transactions


def test_a_transaction_that_names_a_type_is_a_first_append_too(world):
    world.do(transaction(1, {"orders": [b"1", b"2"]}, content_type=JSON))
    assert world.seen().content_type == JSON
    assert world.content() == b"12"
    assert committed(replayed(world.journal)) == committed(world.machine)


def test_a_transaction_that_names_none_brings_bytes(world):
    world.do(transaction(1, {"orders": [b"1", b"2"]}))
    assert world.seen().content_type == BYTES
    assert world.refusal(append()).code == "content_type_mismatch"


def test_what_would_make_it_json_must_be_json(world):
    error = world.refusal(transaction(1, {"orders": [b"{"]}, content_type=JSON, faults={"orders": "row 1"}))
    assert type(error) is TransactionRefused
    assert error.reasons[0].code == "invalid_json"
    assert world.seen().content_type == BYTES
