"""What stays in memory: the hot tail until a checkpoint has it, streams until nobody asks for them."""

from __future__ import annotations

import pytest
from tests.engine.world import KEY, World, append, close, create, delete, snapshot, stream_record

from millstream.engine.reading import cut_hot
from millstream.model.commands import Body, DeleteBucket


@pytest.fixture
def world() -> World:
    world = World()
    world.do(create(payload=b"hello"))
    return world


def sequence(world: World) -> int:
    return world.machine.next_sequence - 1


# --- the hot tail


def test_payload_in_memory_is_counted(world):
    assert world.machine.hot_bytes == 5
    world.do(append(b" world"))
    assert world.machine.hot_bytes == 11
    world.do(delete())
    assert world.machine.hot_bytes == 0


def test_a_checkpoint_frees_the_hot_tail(world):
    world.checkpoint()
    stream = world.stream()
    assert (stream.hot, stream.hot_from, world.machine.hot_bytes) == (None, 5, 0)
    world.do(append(b"!"))
    assert (stream.hot_from, world.machine.hot_bytes) == (5, 1)
    assert cut_hot(stream, 5, 100).pieces == [b"!"]


def test_what_came_after_the_cut_stays_hot(world):
    cut_at = sequence(world)
    streams, _ = world.machine.cut(cut_at)
    world.do(append(b" wor"))
    world.do(append(b"ld"))
    for stream in streams:
        world.machine.checkpointed(stream, cut_at)
    assert (world.stream().hot_from, world.machine.hot_bytes) == (5, 6)
    assert world.content() == b" world"


def test_nothing_is_freed_before_its_checkpoint(world):
    cut_at = sequence(world)
    world.do(append(b"!"))
    world.machine.cut(sequence(world))
    world.machine.checkpointed(world.stream(), cut_at - 1)
    assert world.content() == b"hello!"
    assert world.machine.hot_bytes == 6


def test_a_long_tail_is_freed_in_parts(world):
    world.do(append(b" wor"))
    world.do(append(b"ld"))
    cut_at = sequence(world)
    world.machine.cut(cut_at)
    assert world.machine.checkpointed(world.stream(), cut_at, 2) == 2
    assert (world.stream().hot_from, world.machine.hot_bytes) == (9, 2)
    assert world.machine.checkpointed(world.stream(), cut_at, 2) == 1
    assert (world.stream().hot, world.machine.hot_bytes) == (None, 0)


def test_a_change_without_payload_keeps_no_payload_hot(world):
    cut_at = sequence(world)
    streams, _ = world.machine.cut(cut_at)
    world.do(close())
    world.machine.checkpointed(streams[0], cut_at)
    assert (world.stream().hot, world.machine.hot_bytes) == (None, 0)


# --- what a checkpoint has to look at


def test_a_cut_names_what_has_changed_since_the_last_each_once(world):
    world.do(append())
    world.do(create("other/a"))
    streams, buckets = world.machine.cut(sequence(world))
    assert sorted(stream.key for stream in streams) == ["other/a", KEY]
    assert sorted(bucket.name for bucket in buckets) == ["other", "shop"]
    assert world.machine.cut(sequence(world)) == ([], [])
    world.do(append())
    world.do(append())
    streams, buckets = world.machine.cut(sequence(world))
    assert ([stream.key for stream in streams], buckets) == ([KEY], [])


def test_a_deleted_stream_and_its_successor_are_both_named(world):
    world.machine.cut(sequence(world))
    world.do(delete())
    world.do(create())
    streams, buckets = world.machine.cut(sequence(world))
    assert [(stream.key, stream.deleted) for stream in streams] == [(KEY, True), (KEY, False)]
    assert len(buckets) == 1


def test_a_deleted_stream_leaves_once_the_catalog_knows(world):
    world.do(delete())
    assert KEY in world.machine.streams
    world.checkpoint()
    assert KEY not in world.machine.streams
    assert world.machine.find(KEY) is None


def test_a_late_checkpoint_of_a_deleted_stream_spares_its_successor(world):
    old = world.stream()
    world.do(delete())
    cut_at = sequence(world)
    world.machine.cut(cut_at)
    world.do(create())
    world.machine.checkpointed(old, cut_at)
    assert world.exists()


# --- leaving


def test_an_idle_stream_leaves_and_comes_back_as_it_was(world):
    before = world.seen()
    world.checkpoint()
    world.forget_idle()
    assert KEY not in world.machine.streams
    assert world.seen() == before
    assert world.do(append(b"!")).tail == 6


def test_a_stream_that_was_asked_for_lately_stays(world):
    world.checkpoint()
    world.machine.coarse_s = 10
    world.stream()
    assert not world.machine.evict_idle(world.machine.streams[KEY], sequence(world), 10)
    assert world.machine.evict_idle(world.machine.streams[KEY], sequence(world), 11)


def test_a_stream_the_catalog_does_not_have_stays(world):
    stream = world.stream()
    assert not world.machine.evict_idle(stream, sequence(world) - 1, 1)


def test_a_stream_with_hot_payload_stays(world):
    assert not world.machine.evict_idle(world.stream(), sequence(world), 1)


def test_a_stream_with_something_in_flight_stays(world):
    world.checkpoint()
    world.decide(append())
    assert not world.machine.evict_idle(world.machine.streams[KEY], sequence(world), 1)


def test_a_stream_with_followers_stays(world):
    world.checkpoint()
    world.stream().followers = [object()]
    assert not world.machine.evict_idle(world.machine.streams[KEY], sequence(world), 1)


def test_a_deleted_stream_is_not_evicted_but_checkpointed_away(world):
    world.do(delete())
    assert not world.machine.evict_idle(world.machine.streams[KEY], sequence(world), 1)


def test_a_deleted_bucket_leaves_with_its_checkpoint(world):
    world.do(delete())
    world.do(DeleteBucket("shop"))
    assert world.machine.find_bucket("shop").deleted
    world.checkpoint()
    assert world.machine.find_bucket("shop") is None


def test_a_bucket_comes_back_from_the_catalog_as_it_was(world):
    world.checkpoint()
    again = World(world.shelf)
    again.machine.next_sequence = world.machine.next_sequence
    again.do(create("shop/more"))
    assert again.machine.find_bucket("shop").streams == 2


def test_a_bucket_with_something_in_flight_stays(world):
    _, [bucket] = world.machine.cut(sequence(world))
    cut_at = sequence(world)
    world.decide(create("shop/more"))
    world.machine.bucket_checkpointed(bucket, cut_at)
    world.commit()
    assert world.machine.find_bucket("shop").streams == 2


def test_asking_for_what_is_nowhere_keeps_nothing(world):
    assert world.machine.find("shop/none") is None
    assert not world.exists("shop/none")
    assert list(world.machine.streams) == [KEY]


def test_a_reloaded_stream_has_every_field_of_its_record(world):
    world.do(append(b"!", stream_seq="m"))
    world.do(close())
    record = stream_record(world.stream())
    world.checkpoint()
    world.forget_idle()
    assert stream_record(world.stream()) == record


# --- what streams have lost, and memory has not


def test_what_a_stream_loses_counts_until_a_checkpoint(world):
    """The recent facts have it until then."""
    world.do(snapshot(5, b"1" * 100))
    world.do(append(b" world"))
    world.do(snapshot(11, b"2" * 50))
    world.do(delete())
    assert (world.machine.hot_bytes, world.machine.held_bytes) == (0, 5 + 6 + 100 + 50)
    world.checkpoint()
    assert (world.machine.hot_bytes, world.machine.held_bytes) == (0, 0)


def test_each_loss_is_freed_with_its_own_checkpoint(world):
    cut_at = sequence(world)
    streams, _ = world.machine.cut(cut_at)
    world.do(append(b" wor"))
    world.do(delete())
    assert world.machine.held_bytes == 9
    world.machine.cut_is_saved()
    assert world.machine.held_bytes == 4, "it came after the cut"
    for stream in streams:
        world.machine.checkpointed(stream, cut_at)
    assert world.machine.held_bytes == 4
    world.checkpoint()
    assert world.machine.held_bytes == 0


def test_what_is_lost_between_saving_and_cooling_is_not_counted_twice(world):
    cut_at = sequence(world)
    streams, _ = world.machine.cut(cut_at)
    world.machine.cut_is_saved()
    world.do(delete())
    world.machine.checkpointed(streams[0], cut_at)
    assert world.machine.held_bytes == 0


def test_bodies_on_their_way_count(world):
    kept, dropped = world.upload(b"four", b"more"), world.upload(b"never")
    assert world.machine.held_bytes == 5 + 8 + 5
    world.drop_upload(dropped)
    world.do(append(body=Body(b"", [8], None, kept)))
    assert world.machine.held_bytes == 5 + 8
    assert world.content() == b"hellofourmore"
