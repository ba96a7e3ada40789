"""Snapshots and trimming: what may be published, what is no longer kept, what leaves memory."""

from __future__ import annotations

import pytest
from tests.engine.world import World, append, batch, create, delete, everything, snapshot, trim

from millstream.engine.reading import cut_messages, resolve_offset
from millstream.model import facts
from millstream.model.errors import BadRequest, Conflict, Gone, PreconditionFailed
from millstream.model.etags import snapshot_etag
from millstream.model.offsets import BEGINNING
from millstream.model.replies import Outcome


@pytest.fixture
def world() -> World:
    """A stream of `hello`, `wonder`, `ful` and `world`."""
    world = World()
    world.do(create(payload=b"hello"))
    world.do(append(b"", body=batch(b"wonder", b"ful")))
    world.do(append(b"world"))
    return world


def refused(world: World, command: object) -> tuple[type, str]:
    before = everything(world.machine)
    error = world.refusal(command)
    assert everything(world.machine) == before
    return type(error), error.code


# --- publishing


def test_a_snapshot_moves_what_is_kept(world):
    assert world.do(snapshot(5)).outcome is Outcome.PUBLISHED
    stream = world.stream()
    assert (stream.earliest, stream.snapshot.offset, stream.snapshot.size) == (5, 5, 5)
    with pytest.raises(Gone):
        resolve_offset(stream, 0)
    with pytest.raises(Gone):
        resolve_offset(stream, BEGINNING)
    assert resolve_offset(stream, 5) == 5


def test_a_snapshot_may_leave_what_is_kept_alone(world):
    world.do(snapshot(5, trims=False))
    assert (world.stream().earliest, world.stream().snapshot.offset) == (0, 5)
    assert resolve_offset(world.stream(), BEGINNING) == 0


@pytest.mark.parametrize("trims", [True, False])
def test_the_same_snapshot_again_changes_nothing(world, trims):
    world.do(snapshot(5, trims=trims))
    before = everything(world.machine)
    assert world.do(snapshot(5, trims=trims)).outcome is Outcome.DUPLICATE
    assert everything(world.machine) == before


def test_the_same_snapshot_may_be_asked_to_trim_later(world):
    world.do(snapshot(5, trims=False))
    assert world.do(snapshot(5)).outcome is Outcome.PUBLISHED
    assert world.stream().earliest == 5


def test_if_match_is_about_the_snapshot_at_this_very_offset(world):
    for tags in ("*", '"any"'):
        assert isinstance(world.refusal(snapshot(3, if_match=tags)), PreconditionFailed)
    world.do(snapshot(3))
    known = snapshot_etag(world.stream_id(), world.seen().snapshot)
    for tags in ("*", known):
        assert world.do(snapshot(3, if_match=tags)).outcome is Outcome.DUPLICATE
    assert isinstance(world.refusal(snapshot(3, if_match='"another"')), PreconditionFailed)
    assert isinstance(world.refusal(snapshot(6, if_match=known)), PreconditionFailed)
    assert world.seen().snapshot.offset == 3


def test_other_bytes_at_the_same_offset_are_refused(world):
    world.do(snapshot(5))
    assert refused(world, snapshot(5, b"other")) == (Conflict, "snapshot_exists")


def test_older_than_the_latest_is_refused_even_where_history_is_kept(world):
    world.do(snapshot(14, trims=False))
    assert refused(world, snapshot(5)) == (Conflict, "snapshot_superseded")


def test_older_than_what_is_kept_comes_before_every_other_check(world):
    world.do(snapshot(14))
    assert refused(world, snapshot(5, is_boundary=False)) == (Gone, "snapshot_too_old")


def test_beyond_the_tail_and_inside_a_message(world):
    assert refused(world, snapshot(20)) == (Conflict, "snapshot_beyond_tail")
    assert refused(world, snapshot(7, is_boundary=False)) == (BadRequest, "offset_not_a_boundary")


def test_a_newer_snapshot_replaces_the_older_one(world):
    world.do(snapshot(5))
    world.do(snapshot(14, b"newer"))
    assert (world.stream().snapshot.offset, world.stream().snapshot_hot[1]) == (14, b"newer")


def test_a_closed_stream_takes_a_snapshot(world):
    world.do(append(b"", content_type=None, closes=True))
    assert world.do(snapshot(19)).outcome is Outcome.PUBLISHED


# --- memory


def test_trimmed_messages_leave_memory(world):
    world.do(snapshot(14, b"12345"))
    assert world.machine.hot_bytes == 5 + 5
    assert cut_messages(world.stream(), 14, 100).pieces == [b"world"]


def test_an_append_of_which_a_part_is_kept_stays_whole(world):
    world.do(trim(11))
    assert world.machine.hot_bytes == 9 + 5
    assert cut_messages(world.stream(), 11, 100).pieces == [b"ful", b"world"]


def test_a_checkpoint_frees_the_snapshot_also_of_a_busy_stream(world):
    world.do(snapshot(19))
    sequence = world.machine.next_sequence - 1
    streams, _ = world.machine.cut(sequence)
    world.do(append(b"more"))
    for stream in streams:
        world.machine.checkpointed(stream, sequence)
    assert (world.stream().snapshot_hot, world.machine.hot_bytes) == (None, 4)
    assert world.stream().snapshot.offset == 19


def test_a_snapshot_in_memory_is_counted_once_and_freed_with_its_stream(world):
    world.do(snapshot(5, b"1" * 100))
    world.do(snapshot(14, b"2" * 50))
    assert world.machine.hot_bytes == 5 + 50
    world.do(delete())
    assert world.machine.hot_bytes == 0


# --- trimming


def test_trimming_without_a_snapshot_lets_readers_start_at_what_is_kept(world):
    assert world.do(trim(5)).outcome is Outcome.TRIMMED
    assert resolve_offset(world.stream(), BEGINNING) == 5
    assert world.do(trim(5)).outcome is Outcome.NOTHING
    assert world.do(trim(3)).outcome is Outcome.NOTHING


def test_trimming_past_a_snapshot_drops_it(world):
    world.do(snapshot(5))
    world.do(trim(14))
    assert (world.stream().snapshot, world.stream().snapshot_hot, world.stream().earliest) == (None, None, 14)


def test_retention_stops_at_the_latest_snapshot(world):
    world.do(snapshot(5, trims=False))
    assert world.do(trim(14, keeps_snapshot=True)).outcome is Outcome.TRIMMED
    assert (world.stream().earliest, world.stream().snapshot.offset) == (5, 5)


def test_trimming_beyond_the_tail_is_refused(world):
    assert refused(world, trim(20)) == (Conflict, "trim_beyond_tail")


def test_trimming_is_for_the_stream_that_was_meant(world):
    number = world.stream().number
    world.do(delete())
    world.do(create(payload=b"another"))
    assert world.do(trim(7, number=number)).outcome is Outcome.NOTHING
    assert not any(isinstance(entry.fact, facts.Trimmed) for entry in world.journal)
