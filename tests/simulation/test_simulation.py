"""Ten thousand short lives of a node on a simulated clock and disk, each given by its seed.

What runs is the shipped engine, journal, writer, followers, object store and transactions. A failure names its seed;
the same seed brings back the same run to the last bit:

    MILLSTREAM_SIMULATION_SEED=4711 make test ARGS="-k test_one_seed"
"""

from __future__ import annotations

import logging
import os
import secrets
from collections import Counter
from collections.abc import Coroutine
from unittest.mock import patch

import msgspec
import pytest

from millstream.engine.machine import Change, Machine
from millstream.engine.state import Stream
from millstream.model.commands import Command, PublishSnapshot
from millstream.model.errors import MillstreamError
from millstream.model.replies import Outcome, Receipt
from millstream.node.clock import Clock
from millstream.node.followers import Followers
from millstream.node.transactions import Transactions
from millstream.node.writer import Answer, Batch, Done, Writer
from millstream.storage.journal import LocalJournal

from .disk import NeverSyncs, NeverSyncsNames, NeverSyncsObjects, SimulatedDisk, TrustsWhatItFinds
from .loop import SLICE
from .node import DIRECTORY, OBJECTS
from .run import DEALING, SLOW, Run

RUNS = 10_000
CHUNK = 1_000
PLANTED_RUNS = 2_000


@pytest.fixture(autouse=True)
def _quiet():
    """Simulated disks fail all the time; the log would be long."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def play(seed: int, disk_kind: type[SimulatedDisk] = SimulatedDisk) -> Run:
    run = Run(seed, disk_kind)
    try:
        return run.play()
    except BaseException as error:
        error.add_note(f"{run.story()}\nMILLSTREAM_SIMULATION_SEED={seed} make test ARGS='-k test_one_seed'")
        raise


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_whatever_happens_every_word_is_kept(first: int) -> None:
    play_all(first, CHUNK)


def play_all(first: int, runs: int) -> int:
    """Play so many; what was acknowledged in all of them, which must have done something."""
    acknowledged, transactions, renamed, endings = 0, 0, 0, Counter[str]()
    for seed in range(first, first + runs):
        run = play(seed)
        acknowledged += run.oracle.acknowledgements
        transactions += sum(deal.is_known for deal in run.oracle.deals.values())
        renamed += run.renamed
        endings.update(run.endings)
    assert acknowledged > 5 * runs > 0, "the clients of these runs hardly got to do anything"
    assert transactions > runs / 5, "hardly any transaction was committed"
    assert renamed > runs / 20, "hardly any was found in a bucket that comes and goes"
    assert min(endings[kind] for kind in ("kill", "cut", "fault", "quiet")) > runs / 10, endings
    return acknowledged


def test_one_seed() -> None:
    seed = int(os.environ.get("MILLSTREAM_SIMULATION_SEED") or 0)
    print(play(seed).story())


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_whatever_happens_every_word_is_kept_for_long(capsys: pytest.CaptureFixture[str]) -> None:
    runs = int(os.environ.get("MILLSTREAM_TORTURE_SIMULATIONS") or 100_000)
    first = int(os.environ.get("MILLSTREAM_TORTURE_SEED") or secrets.randbelow(10**9))
    with capsys.disabled():
        print(f"\nMILLSTREAM_TORTURE_SEED={first} MILLSTREAM_TORTURE_SIMULATIONS={runs}", flush=True)
    acknowledged = play_all(first, runs)
    with capsys.disabled():
        print(f"{runs} simulations, {acknowledged} acknowledgements, all kept")


def test_a_run_is_its_seed() -> None:
    """Down to the bytes on the disk, or a failure could not be brought back."""
    for seed in range(20):
        once, again = play(seed), play(seed)
        assert once.story() == again.story()
        for folder in (DIRECTORY, OBJECTS / "staged", OBJECTS / "transactions"):
            names = once.disk.list_directory(folder)
            assert names == again.disk.list_directory(folder)
            for name in names:
                assert once.disk.read(folder / name) == again.disk.read(folder / name)


# --- planted bugs: a simulation that finds nothing shows nothing


def assert_found(
    disk_kind: type[SimulatedDisk] = SimulatedDisk, saying: str = "", dealing: float = DEALING, slow: float = SLOW
) -> None:
    for seed in range(PLANTED_RUNS):
        try:
            Run(seed, disk_kind, dealing, slow).play()
        except (AssertionError, MillstreamError) as error:
            if saying in str(error):
                return
    pytest.fail(f"{PLANTED_RUNS} runs did not find it")


@pytest.mark.parametrize("disk_kind", [NeverSyncs, NeverSyncsNames, NeverSyncsObjects, TrustsWhatItFinds])
def test_a_missing_sync_is_found(disk_kind: type[SimulatedDisk]) -> None:
    assert_found(disk_kind)


def test_an_answer_before_the_sync_is_found() -> None:
    queued = Writer._queued

    def answer_at_once(writer: Writer, batch: Batch) -> None:
        if batch.waiters:
            done, answer = batch.waiters.pop()
            batch.waiters.append((lambda _: None, answer))
            done(answer)
        queued(writer, batch)

    with patch.object(Writer, "_queued", answer_at_once):
        assert_found()


def test_a_duplicate_answered_before_what_it_repeats_is_durable_is_found() -> None:
    def answer_at_once(writer: Writer, batch: Batch, done: Done, answer: Answer) -> None:
        if not batch.changes:
            writer._open = None
        done(answer)

    with patch.object(Writer, "_answer_undecided", answer_at_once):
        assert_found()


def test_a_transaction_that_is_not_one_batch_is_found() -> None:
    write = LocalJournal.write

    def write_one_by_one(journal: LocalJournal, first_sequence: int, at_ms: int, facts: bytes) -> None:
        for sequence, fact in enumerate(msgspec.msgpack.decode(facts, type=list[msgspec.Raw]), first_sequence):
            write(journal, sequence, at_ms, b"\xdd\0\0\0\1" + bytes(fact))

    with patch.object(LocalJournal, "write", write_one_by_one):
        assert_found(saying="a half of transaction", dealing=1.0)


def test_a_transaction_committed_twice_is_found() -> None:
    with (
        patch("millstream.engine.transactions.is_duplicate", lambda *_: False),
        patch("millstream.node.transactions.is_duplicate", lambda *_: False),
        patch.object(Transactions, "_is_outdated", lambda *_: False),
    ):
        assert_found(saying="is there twice", dealing=1.0)


def without_number(command: Command) -> Command:
    return msgspec.structs.replace(command, number=None) if getattr(command, "number", None) else command


def test_parts_that_commit_into_another_bucket_are_found() -> None:
    submit = Transactions._submit

    def by_name(transactions: Transactions, command: Command) -> Coroutine[None, None, Outcome]:
        return submit(transactions, without_number(command))

    with patch.object(Transactions, "_submit", by_name):
        assert_found(saying="holds what was staged in", dealing=1.0)


def test_a_snapshot_that_lands_on_another_stream_is_found() -> None:
    decide = Machine.decide

    def by_name(machine: Machine, command: Command, now_ms: int, changes: list[Change]) -> Receipt:
        kept = command if type(command) is not PublishSnapshot else without_number(command)
        return decide(machine, kept, now_ms, changes)

    with patch.object(Machine, "decide", by_name):
        assert_found(saying="landed on")


def test_one_clock_for_everything_is_found() -> None:
    """Deadlines by a clock that never goes back: late for as long as it was ahead."""
    with patch.object(Clock, "lease_ms", Clock.commit_ms):
        assert_found()


def test_a_batch_that_decides_by_the_time_of_its_opening_is_found() -> None:
    """Readers say 404, and then an append is taken."""
    decide = Machine.decide

    class Stopped:
        def __init__(self, machine: Machine, now_ms: int) -> None:
            self._time, self._now_ms = machine._time, now_ms + machine.shift_ms

        def lease_ms(self) -> int:
            return self._now_ms

        def wall_ms(self) -> int:
            return self._time.wall_ms()

    def at_opening(machine: Machine, command: Command, now_ms: int, changes: list[Change]) -> Receipt:
        time, machine._time = machine._time, Stopped(machine, now_ms)
        try:
            return decide(machine, command, now_ms, changes)
        finally:
            machine._time = time

    with patch.object(Machine, "decide", at_opening):
        assert_found(saying="was over, and", slow=1.0)


def test_a_ttl_that_counts_from_the_decision_is_found() -> None:
    with patch("millstream.engine.machine.begin", lambda stream, lease_ms: setattr(stream, "seen_ms", 0)):
        assert_found()


def test_a_lost_wake_up_is_found() -> None:
    wake = Followers.wake

    def wake_the_first_only(followers: Followers, streams: list[Stream]) -> None:
        wake(followers, streams[:1])

    with patch.object(Followers, "wake", wake_the_first_only):
        assert_found()


def test_followers_who_are_not_all_told_are_found() -> None:
    def turn(followers: Followers) -> None:
        told = [follower for stream in followers._woken for follower in stream.followers or ()][:SLICE]
        followers._woken.clear()
        followers._scheduled = False
        for follower in told:
            follower.stream_changed()

    with patch.object(Followers, "_turn", turn):
        assert_found()
