"""The machine is deterministic: what a journal holds is all there is to know, however it is read."""

from __future__ import annotations

from itertools import groupby
from typing import get_args

from hypothesis import given, settings
from tests.engine.scripts import Story, lengths, seeds
from tests.engine.world import (
    Entry,
    World,
    append,
    applied,
    batch,
    bucket_record,
    by,
    close,
    committed,
    create,
    delete,
    everything,
    replayed,
    snapshot,
    stream_record,
    touch,
    transaction,
    trim,
)

from millstream.engine.leasing import deadline_ms
from millstream.engine.state import Stream
from millstream.model import facts
from millstream.model.codec import decode_facts, encode_facts
from millstream.model.commands import Body, ChangeBucket, DeleteBucket, ForgetTransactions
from millstream.model.errors import Refused
from millstream.model.facts import BucketSettings
from millstream.model.names import split_key


def told(seed: int, length: int) -> World:
    """A world in which a random story has happened."""
    world = World(producers_max=2)
    Story(world, seed).play(length)
    return world


def a_long_day() -> World:
    """One story in which every kind of fact about a stream happens."""
    world = World()
    number = world.do(create("shop/a", ttl_s=60, payload=b"hello", producer=by("p", 0, 0), stream_seq="a")).number
    world.wait(7_000)
    world.set_clock_ahead(1_000_000)
    world.do(touch(number, "shop/a"))
    world.do(append(b"12", "shop/a", body=batch(b"1", b"2"), producer=by("p", 0, 1), stream_seq="b"))
    world.do(append(key="shop/a", body=large(world, b"large ", b"body")))
    world.do(snapshot(5, key="shop/a"))
    world.do(trim(6, key="shop/a"))
    world.do(snapshot(7, key="shop/a", trims=False))
    world.do(close("shop/a", producer=by("q", 3, 0)))
    world.do(create("shop/b", ttl_s=1))
    world.wait(1_000)
    world.do(create("shop/b", closed=True))
    world.do(create("other/c", content_type=None))
    world.do(append(key="other/c"))
    world.do(delete("other/c"))
    world.drop_upload(world.upload(b"never used"))
    world.do(transaction(7, {"b2": [b"one", b"two"], "c2": [b"three"]}))
    world.do(ForgetTransactions("shop", "etl"))
    world.do(ChangeBucket("other", BucketSettings(ttl_s=5)))
    world.do(DeleteBucket("other"))
    return world


def large(world: World, *parts: bytes):
    return Body(b"", [sum(map(len, parts))], None, world.upload(*parts))


def test_the_story_has_every_fact_there_is():
    assert {type(entry.fact) for entry in a_long_day().journal} == set(get_args(facts.Fact))


def test_replaying_the_story_gives_the_same_state():
    world = a_long_day()
    assert committed(replayed(world.journal)) == committed(world.machine)


# --- properties


@settings(max_examples=300)
@given(seeds, lengths)
def test_publishing_and_replaying_come_to_the_same(seed, length):
    world = told(seed, length)
    again = replayed(world.journal)
    assert committed(again) == committed(world.machine)
    for key, stream in world.machine.streams.items():
        if stream.lease is not None:  # as decided; an answer that comes much later is journaled by the node
            assert deadline_ms(again.streams[key], again.streams[key]) >= stream.lease.deadline_ms()


@settings(max_examples=150)
@given(seeds, lengths)
def test_the_rules_of_applying_alone_come_to_the_same(seed, length):
    """A checkpoint has no machine: it applies facts to records."""
    world = told(seed, length)
    streams, buckets = applied(world.journal)
    for stream in world.machine.streams.values():
        assert stream_record(stream) == streams[stream.number]
    live = {record.number for record in streams.values() if not record.deleted}
    assert live == {stream.number for stream in world.machine.streams.values() if not stream.deleted}
    assert {name: bucket_record(bucket) for name, bucket in world.machine.buckets.items()} == buckets


@settings(max_examples=100)
@given(seeds, lengths)
def test_facts_survive_their_bytes(seed, length):
    world = told(seed, length)
    read = []
    for at_ms, group in groupby(world.journal, key=lambda entry: entry.at_ms):
        entries = list(group)
        decoded = decode_facts(encode_facts([entry.fact for entry in entries]))
        read += [Entry(fact, entry.sequence, at_ms) for fact, entry in zip(decoded, entries, strict=True)]
    assert committed(replayed(read)) == committed(world.machine)


@settings(max_examples=100)
@given(seeds, lengths)
def test_the_same_story_has_the_same_answers_and_the_same_journal(seed, length):
    one, other = World(producers_max=2), World(producers_max=2)
    assert Story(one, seed).play(length) == Story(other, seed).play(length)
    assert one.journal == other.journal


@settings(max_examples=150)
@given(seeds, lengths)
def test_a_refused_command_changes_nothing(seed, length):
    world = World(producers_max=2)
    story = Story(world, seed)
    decide = world.decide

    def watched(command):
        before = everything(world.machine)
        try:
            return decide(command)
        except Refused:
            assert everything(world.machine) == before
            raise

    world.decide = watched
    story.play(length)


@settings(max_examples=100)
@given(seeds, lengths)
def test_decisions_in_flight_leave_readers_what_they_had(seed, length):
    world = World(producers_max=2)
    story = Story(world, seed)
    decide = world.decide

    def watched(command):
        before = committed(world.machine)
        try:
            return decide(command)
        finally:
            assert {**committed(world.machine), "next": None} == {**before, "next": None}

    world.decide = watched
    story.play(length)


@settings(max_examples=150)
@given(seeds, lengths)
def test_once_all_is_durable_nothing_lies_over_the_state(seed, length):
    world = told(seed, length)
    for subject in (*world.machine.streams.values(), *world.machine.buckets.values()):
        assert (subject.pending, subject.inflight) == (None, 0)
    assert world.machine._arriving == {}
    assert world.machine.uploads == {}


@settings(max_examples=150)
@given(seeds, lengths)
def test_buckets_count_their_streams_and_memory_its_bytes(seed, length):
    world = told(seed, length)
    streams = [stream for stream in world.machine.streams.values() if not stream.deleted]
    for name, bucket in world.machine.buckets.items():
        assert bucket.streams == sum(1 for stream in streams if split_key(stream.key)[0] == name)
    hot_bytes = 0
    for stream in streams:
        messages = sum(len(record.payload) for record in stream.hot or ())
        assert messages == stream.tail - stream.hot_from
        assert stream.hot_from <= stream.earliest or stream.hot is None
        hot_bytes += sum(record.weight for record in stream.hot or ())
        hot_bytes += len(stream.snapshot_hot[1]) if stream.snapshot_hot else 0
    assert world.machine.hot_bytes == hot_bytes


@settings(max_examples=150)
@given(seeds, lengths)
def test_a_machine_that_forgets_answers_as_one_that_remembers(seed, length):
    """Checkpoint and eviction after every step. Leases are left out: a reload may prolong them, see test_leases."""
    remembers, forgets = World(producers_max=2), World(producers_max=2)
    stories = [Story(world, seed, leases=False).steps(length) for world in (remembers, forgets)]
    for expected, answered in zip(*stories, strict=True):
        assert answered == expected
        remembers.commit()
        forgets.commit()
        forgets.checkpoint()
        forgets.forget_idle()
    assert forgets.machine.streams == {}
    assert forgets.machine.hot_bytes == 0
    assert forgets.journal == remembers.journal


@settings(max_examples=100)
@given(seeds, lengths, lengths)
def test_a_machine_started_on_a_checkpoint_goes_on_where_the_journal_ends(seed, before, after):
    """The catalog has the first part of the journal, the rest is replayed."""
    world = World(producers_max=2)
    story = Story(world, seed)
    story.play(before)
    world.checkpoint()
    shelved = len(world.journal)
    story.play(after)

    restarted = World(world.shelf)
    restarted.machine.next_sequence = shelved + 1
    known: dict[int, Stream] = {}
    for fact, sequence, at_ms in world.journal[shelved:]:
        restarted.machine.replay(fact, sequence, at_ms, known)

    whole = replayed(world.journal)
    for key, stream in whole.streams.items():
        found = restarted.machine.find(key)
        if stream.deleted:
            assert found is None or found.deleted
        else:
            assert stream_record(found) == stream_record(stream)
            for name in "pqr":
                state = whole.producer_state(stream, name)
                assert restarted.machine.producer_state(found, name) == state
    for name, bucket in whole.buckets.items():
        found = restarted.machine.find_bucket(name)
        if bucket.deleted:
            assert found is None or found.deleted
        else:
            assert bucket_record(found) == bucket_record(bucket)
