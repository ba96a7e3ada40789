"""Buckets: made by hand or with their first stream, changed, and deleted once they are empty (extension section 1)."""

from __future__ import annotations

import pytest
from tests.engine.world import (
    JSON,
    KEY,
    START_MS,
    TEXT,
    World,
    bucket_record,
    create,
    delete,
    everything,
    expire,
)

from millstream.model import facts
from millstream.model.commands import ChangeBucket, CreateBucket, DeleteBucket
from millstream.model.errors import Conflict, NotFound
from millstream.model.facts import BucketSettings
from millstream.model.records import BucketRecord
from millstream.model.replies import Outcome

SETTINGS = BucketSettings(content_type=TEXT, ttl_s=60, caching="private")


@pytest.fixture
def world() -> World:
    return World()


def bucket(world: World, name: str = "shop") -> BucketRecord:
    """As readers see it."""
    return bucket_record(world.machine.visible_bucket(name))


# --- creating


def test_a_bucket_is_made_by_hand(world):
    assert world.do(CreateBucket("shop", SETTINGS)).outcome is Outcome.CREATED
    expected = BucketRecord("shop", START_MS, implicit=False, deleted=False, streams=0, settings=SETTINGS, number=1)
    assert bucket(world) == expected


def test_a_bucket_exists_once(world):
    world.do(CreateBucket("shop", SETTINGS))
    error = world.refusal(CreateBucket("shop"))
    assert (type(error), error.code) == (Conflict, "bucket_exists")
    assert bucket(world).settings == SETTINGS


def test_a_bucket_made_with_its_first_stream_exists_too(world):
    world.do(create())
    assert world.refusal(CreateBucket("shop")).code == "bucket_exists"
    assert bucket(world).implicit


def test_some_buckets_belong_to_the_server(world):
    world.do(create("_default/orders"))
    for command in (CreateBucket("_s3p"), DeleteBucket("_default"), ChangeBucket("_default", SETTINGS)):
        assert world.refusal(command).code == "bucket_reserved"


def test_a_stream_can_ask_for_its_bucket_to_be_there(world):
    error = world.refusal(create(needs_bucket=True))
    assert (type(error), error.code) == (NotFound, "bucket_not_found")
    assert world.journal == []
    world.do(CreateBucket("shop"))
    assert world.do(create(needs_bucket=True)).outcome is Outcome.CREATED
    assert [type(entry.fact) for entry in world.journal] == [facts.BucketCreated, facts.StreamCreated]


# --- settings


def test_a_stream_takes_from_its_bucket_what_the_request_leaves_open(world):
    world.do(CreateBucket("shop", SETTINGS))
    world.do(create("shop/a", content_type=None))
    assert (world.seen("shop/a").content_type, world.seen("shop/a").lease.ttl_s) == (TEXT, 60)
    world.do(create("shop/b", content_type=JSON, ttl_s=5))
    assert (world.seen("shop/b").content_type, world.seen("shop/b").lease.ttl_s) == (JSON, 5)
    world.do(create("shop/c", expires_at_ms=START_MS + 1000))
    assert world.seen("shop/c").lease.ttl_s is None


def test_a_creation_that_leaves_the_same_open_is_the_same(world):
    world.do(CreateBucket("shop", SETTINGS))
    world.do(create(content_type=None))
    assert world.do(create(content_type=None)).outcome is Outcome.EXISTED
    assert world.do(create(content_type=TEXT, ttl_s=60)).outcome is Outcome.EXISTED


def test_settings_change_for_streams_to_come(world):
    world.do(CreateBucket("shop"))
    world.do(create("shop/a"))
    assert world.do(ChangeBucket("shop", SETTINGS)).outcome is Outcome.CHANGED
    world.do(create("shop/b"))
    assert (world.seen("shop/a").lease, world.seen("shop/b").lease.ttl_s) == (None, 60)
    assert bucket(world).settings == SETTINGS


def test_settings_of_a_missing_bucket_cannot_change(world):
    assert world.refusal(ChangeBucket("shop", SETTINGS)).code == "bucket_not_found"


# --- deleting


def test_an_empty_bucket_can_be_deleted_and_made_again(world):
    world.do(CreateBucket("shop", SETTINGS))
    assert world.do(DeleteBucket("shop")).outcome is Outcome.DELETED
    with pytest.raises(NotFound):
        world.machine.visible_bucket("shop")
    assert world.refusal(DeleteBucket("shop")).code == "bucket_not_found"
    world.wait(1000)
    world.do(CreateBucket("shop"))
    assert (bucket(world).created_ms, bucket(world).settings) == (START_MS + 1000, BucketSettings())


def test_a_bucket_with_streams_cannot_be_deleted(world):
    world.do(create())
    before = everything(world.machine)
    error = world.refusal(DeleteBucket("shop"))
    assert (type(error), error.code) == (Conflict, "bucket_not_empty")
    assert everything(world.machine) == before
    world.do(delete())
    assert world.do(DeleteBucket("shop")).outcome is Outcome.DELETED


def test_an_expired_stream_is_in_the_way_until_it_is_swept(world):
    number = world.do(create(ttl_s=1)).number
    world.wait(1000)
    assert world.refusal(DeleteBucket("shop")).code == "bucket_not_empty"
    world.do(expire(number))
    assert world.do(DeleteBucket("shop")).outcome is Outcome.DELETED


def test_a_bucket_of_the_flat_surface_comes_back_with_its_next_stream(world):
    world.do(CreateBucket("shop", SETTINGS))
    world.do(DeleteBucket("shop"))
    world.do(create())
    assert (bucket(world).implicit, bucket(world).streams, bucket(world).settings) == (True, 1, BucketSettings())


# --- in flight


def test_a_bucket_in_flight_is_there_for_decisions_only(world):
    world.decide(CreateBucket("shop"))
    with pytest.raises(NotFound):
        world.machine.visible_bucket("shop")
    with pytest.raises(Conflict):
        world.decide(CreateBucket("shop"))
    world.decide(create(needs_bucket=True))
    world.commit()
    assert bucket(world).streams == 1


def test_a_stream_in_flight_keeps_its_bucket(world):
    world.do(CreateBucket("shop"))
    world.decide(create())
    with pytest.raises(Conflict):
        world.decide(DeleteBucket("shop"))
    world.decide(delete())
    assert world.decide(DeleteBucket("shop")).outcome is Outcome.DELETED
    assert not world.exists(KEY)
    world.commit()
    with pytest.raises(NotFound):
        world.machine.visible_bucket("shop")


def test_a_deletion_in_flight_is_undone_by_a_failed_journal(world):
    world.do(CreateBucket("shop", SETTINGS))
    world.decide(DeleteBucket("shop"))
    world.decide(CreateBucket("shop"))
    world.lose()
    assert bucket(world).settings == SETTINGS
    assert world.machine.live_bucket("shop").settings == SETTINGS
