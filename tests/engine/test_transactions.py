"""Transactions: many streams at once, all or nothing, exactly once."""

from __future__ import annotations

import pytest
from tests.engine.world import (
    JSON,
    World,
    append,
    close,
    committed,
    create,
    delete,
    everything,
    replayed,
    transaction,
)

from millstream.engine.transactions import REASONS_MAX
from millstream.model import facts
from millstream.model.commands import CreateBucket, DeleteBucket, ForgetTransactions
from millstream.model.errors import Conflict, NotFound, TooMany, TransactionRefused
from millstream.model.facts import BucketSettings
from millstream.model.records import Application
from millstream.model.replies import Outcome


@pytest.fixture
def world() -> World:
    world = World()
    world.do(CreateBucket("shop"))
    world.do(create("shop/a", payload=b"first "))
    return world


def app(world: World, name: str = "etl", bucket: str = "shop") -> Application | None:
    return (world.machine.visible_bucket(bucket).apps or {}).get(name)


def reasons(world: World, command) -> list[tuple[str, str | None]]:
    refusal = world.refusal(command)
    assert isinstance(refusal, TransactionRefused)
    return [(reason.code, reason.stream) for reason in refusal.reasons]


# --- what it does


def test_it_appends_to_every_stream_in_one_batch(world):
    before = world.machine.next_sequence
    receipt = world.do(transaction(1, {"a": [b"one ", b"two"], "b": [b"three"]}))
    assert receipt.outcome is Outcome.COMMITTED
    assert world.content("shop/a") == b"first one two"
    assert world.content("shop/b") == b"three"
    batch = [entry.fact for entry in world.journal if entry.sequence >= before]
    assert [type(fact).__name__ for fact in batch] == [
        "Appended",
        "StreamCreated",
        "Appended",
        "TransactionCommitted",
    ]
    assert len({entry.at_ms for entry in world.journal if entry.sequence >= before}) == 1


def test_the_bucket_remembers_what_was_committed(world):
    world.do(transaction(1, {"a": [b"one"], "b": [b"three"]}))
    assert app(world) == Application(1, 2, 8, 2, 1, world.now_ms)


def test_messages_get_ids_that_follow_each_other(world):
    world.do(transaction(1, {"a": [b"one", b"two", b"three"]}))
    world.do(append(b"four", "shop/a"))
    last = world.appends()[-1]
    assert (last.id_ms, last.id_seq) == (world.now_ms, 4)


def test_a_new_stream_takes_after_its_bucket(world):
    world.do(CreateBucket("other", BucketSettings(content_type="text/css", ttl_s=60)))
    world.do(transaction(1, {"a": [b"one"]}, bucket="other"))
    world.do(transaction(2, {"b": [b"one"]}, bucket="other", content_type="a/b"))
    assert [world.seen(key).content_type for key in ("other/a", "other/b")] == ["text/css", "a/b"]
    assert world.seen("other/a").lease.ttl_s == 60


def test_an_empty_one_counts_as_well(world):
    assert world.do(transaction(4, {})).outcome is Outcome.COMMITTED
    assert app(world).version == 4
    assert world.machine.objects == {}


def test_a_stream_whose_time_is_up_is_made_anew(world):
    world.do(create("shop/old", ttl_s=1, payload=b"gone"))
    number = world.seen("shop/old").number
    world.wait(1_000)
    world.do(transaction(1, {"old": [b"new"]}))
    assert world.content("shop/old") == b"new"
    assert world.seen("shop/old").number != number


# --- exactly once


def test_the_same_version_again_changes_nothing(world):
    world.do(transaction(1, {"a": [b"one"]}))
    before = committed(world.machine)
    assert world.do(transaction(1, {"a": [b"other"]})).outcome is Outcome.DUPLICATE
    assert committed(world.machine) == before


def test_the_same_version_in_flight_is_a_duplicate_too(world):
    world.decide(transaction(1, {"a": [b"one"]}))
    assert world.decide(transaction(1, {"a": [b"one"]})).outcome is Outcome.DUPLICATE
    world.commit()
    assert world.content("shop/a") == b"first one"


def test_a_lower_version_is_fenced(world):
    world.do(transaction(5, {"a": [b"one"]}))
    refusal = world.refusal(transaction(4, {"a": [b"zombie"]}))
    assert type(refusal) is Conflict
    assert refusal.code == "transaction_fenced"
    assert world.content("shop/a") == b"first one"


def test_versions_may_skip_and_applications_are_strangers(world):
    for version, name in ((5, "etl"), (900, "etl"), (5, "load"), (0, "zero")):
        assert world.do(transaction(version, {"a": [b"."]}, app=name)).outcome is Outcome.COMMITTED


def test_a_failed_journal_forgets_it_as_a_whole(world):
    before = committed(world.machine)
    world.decide(transaction(1, {"a": [b"one"], "b": [b"two"]}))
    world.lose()
    after = committed(world.machine)
    assert after | {"next": 0} == before | {"next": 0}
    assert world.machine.find("shop/b") is None


# --- beside others


def test_appends_before_and_behind_it_get_their_places(world):
    world.decide(append(b"before ", "shop/a"))
    world.decide(transaction(1, {"a": [b"mine "]}))
    world.decide(append(b"behind", "shop/a"))
    world.commit()
    assert world.content("shop/a") == b"first before mine behind"


def test_it_sees_what_is_in_flight(world):
    world.decide(close("shop/a"))
    assert reasons(world, transaction(1, {"a": [b"late"]})) == [("stream_closed", "a")]


# --- refusals: all reasons, and nothing changed


def test_every_reason_is_told_and_nothing_changes(world):
    world.do(create("shop/closed", closed=True))
    world.do(create("shop/json", content_type=JSON))
    before = everything(world.machine)
    command = transaction(
        1,
        {"a": [b"x"], "closed": [b"x"], "json": [b"x"], "missing": [b"x"]},
        faults={"json": "row 3: it is none", "a": "row 1: it is none"},
        create=False,
    )
    assert reasons(world, command) == [
        ("stream_closed", "closed"),
        ("invalid_json", "json"),
        ("stream_not_found", "missing"),
    ]
    assert everything(world.machine) == before


def test_a_stream_whose_writers_bring_the_ids_takes_none(world):
    world.do(create("shop/ids", client_ids=True))
    assert reasons(world, transaction(1, {"ids": [b"x"]})) == [("ids_are_the_clients", "ids")]


def test_a_stream_that_was_deleted_is_missing(world):
    world.do(delete("shop/a"))
    assert reasons(world, transaction(1, {"a": [b"x"]}, create=False)) == [("stream_not_found", "a")]


@pytest.mark.parametrize("name", ["", "a/b", "a..b", "a\0b", "streams", "x" * 118])
def test_names_that_cannot_be_created(world, name):
    assert reasons(world, transaction(1, {name: [b"x"]})) == [("bad_name", name)]


def test_a_new_json_stream_wants_json(world):
    command = transaction(1, {"new": [b"x"]}, faults={"new": "row 1: no"}, content_type=JSON)
    assert reasons(world, command) == [("invalid_json", "new")]
    assert world.do(transaction(1, {"new": [b"x"]}, faults={"new": "row 1: no"})).outcome is Outcome.COMMITTED


def test_the_list_of_reasons_is_bounded_and_counted(world):
    refusal = world.refusal(transaction(1, {f"s{n}": [b"x"] for n in range(250)}, create=False))
    assert (len(refusal.reasons), refusal.count) == (REASONS_MAX, 250)


def test_a_missing_bucket(world):
    assert isinstance(world.refusal(transaction(1, {"a": [b"x"]}, bucket="nowhere")), NotFound)
    assert isinstance(world.refusal(ForgetTransactions("nowhere", "etl")), NotFound)


def test_a_bucket_remembers_so_many_applications():
    world = World(apps_max=2)
    world.do(CreateBucket("shop"))
    for name in ("one", "two"):
        world.do(transaction(1, {}, app=name))
    refusal = world.refusal(transaction(1, {}, app="three"))
    assert isinstance(refusal, TooMany)
    assert refusal.code == "too_many_apps"
    assert world.do(transaction(2, {}, app="two")).outcome is Outcome.COMMITTED
    world.do(ForgetTransactions("shop", "one"))
    assert world.do(transaction(1, {}, app="three")).outcome is Outcome.COMMITTED


# --- forgetting, and being remembered


def test_a_forgotten_application_starts_again(world):
    world.do(transaction(5, {"a": [b"one"]}))
    assert world.do(ForgetTransactions("shop", "etl")).outcome is Outcome.CHANGED
    assert world.do(ForgetTransactions("shop", "etl")).outcome is Outcome.NOTHING
    assert world.do(transaction(1, {"a": [b" again"]})).outcome is Outcome.COMMITTED


def test_a_deleted_bucket_takes_its_applications_with_it(world):
    world.do(transaction(5, {}))
    world.do(delete("shop/a"))
    world.do(DeleteBucket("shop"))
    world.do(CreateBucket("shop"))
    assert app(world) is None


def test_replay_and_shelf_know_it_too(world):
    world.do(transaction(5, {"a": [b"one"], "b": [b"two"]}))
    again = replayed(world.journal)
    assert committed(again) == committed(world.machine)
    assert again.objects == world.machine.objects == {1: world.machine.next_sequence - 1}
    world.checkpoint()
    later = World(world.shelf)
    assert app(later).version == 5


# --- memory


def test_payloads_stay_where_they_are_and_weigh_little(world):
    before = world.machine.hot_bytes
    world.do(transaction(1, {"a": [b"x" * 100_000]}))
    assert world.machine.hot_bytes - before < 1_000
    assert world.content("shop/a") == b"first " + b"x" * 100_000
    world.checkpoint()
    assert world.machine.hot_bytes == 0
    assert world.stream("shop/a").hot is None


def test_facts_name_the_object(world):
    world.do(transaction(1, {"a": [b"one", b"two"]}))
    fact = world.appends()[-1]
    assert (fact.payload, fact.lengths, facts.size_of(fact)) == (b"", [3, 3], 6)
    assert fact.stored is not None
