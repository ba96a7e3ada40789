"""The journal under power cuts, at any call: what was synced is there, in order, and at most one batch more.

Every story is told by a seed; a failure names it. The planted bugs show that these stories can fail.
"""

from __future__ import annotations

import errno
import os
import random

import pytest

from millstream.model.errors import CorruptData

from .faulty_files import FaultyFiles, ForgetfulFiles, PowerCut
from .journals import batch_after, commit, held, journal_files, open_journal, write

SEEDS = 250


class Machine:
    """A computer with a journal on its disk, from one power cut to the next."""

    def __init__(self, folder, seed, files_for=FaultyFiles):
        self.rng = random.Random(seed)
        self.seed = seed
        self.folder = folder
        self.files_for = files_for
        self.disks = 0
        self.batches = []  # durable, as far as anybody was told
        self.inflight = None  # handed over, not synced: it may be there or not
        self.trimmed = 0
        self.file_bytes = self.rng.choice((128, 300, 1000, 4096))
        self._turn_on()

    def _turn_on(self):
        self.disk = self.folder / str(self.disks)
        self.disk.mkdir(exist_ok=True)
        self.files = self.files_for(self.disk)
        self.files.step_bytes = self.rng.choice((None, 7, 100, 512))

    def live_until_the_power_goes(self):
        self.files.cut_power_after(self.rng.randint(1, 40))
        try:
            while True:
                self._serve()
        except PowerCut:
            pass
        target = self.folder / str(self.disks + 1)
        self.files.materialise(target, f"{self.seed}-{self.disks}")
        self.disks += 1
        self._turn_on()

    def _serve(self):
        """From one start of the process to its end, which may come between a write and its sync."""
        journal = open_journal(self.disk, self.files, self.file_bytes)
        try:
            self._check(list(journal.batches(0)))
            for _ in range(self.rng.randint(1, 12)):
                payloads = [self.rng.randbytes(self._size()) for _ in range(self.rng.randint(1, 3))]
                self.inflight = batch_after(journal, payloads)
                write(journal, *payloads)
                if self.rng.random() < 0.05:
                    return  # killed: the next process finds the batch, and then it has to stay
                journal.sync()
                self.batches.append(self.inflight)
                self.inflight = None
                if self.rng.random() < 0.1:
                    self.trimmed = journal.last_sequence
                    journal.trim(self.trimmed)
        finally:
            journal.close()

    def _size(self):
        return self.rng.choice((0, 1, 30, 100, 300, 1500))

    def check(self):
        self._check(held(self.disk))

    def _check(self, found):
        """What is found ends with everything that was promised, and perhaps the one batch in flight."""
        if self.inflight is not None and found and found[-1] == self.inflight:
            self.batches.append(self.inflight)
        self.inflight = None
        kept = [batch for batch in self.batches if batch.last_sequence > self.trimmed]
        assert found == self.batches[len(self.batches) - len(found) :], "not the batches that were written"
        assert len(found) >= len(kept), "a synced batch is lost"


def tell(folder, seed, files_for=FaultyFiles):
    machine = Machine(folder, seed, files_for)
    for _ in range(4):
        machine.live_until_the_power_goes()
    machine.check()


def test_what_was_synced_survives_any_power_cut(tmp_path):
    for seed in range(SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            tell(folder, seed)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.parametrize("forgets", ["sync", "sync_directory"])
def test_these_stories_find_a_sync_that_does_nothing(tmp_path, forgets):
    for seed in range(SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            tell(folder, seed, lambda disk: ForgetfulFiles(disk, forgets))
        except (AssertionError, CorruptData):
            return
    pytest.fail(f"{SEEDS} stories did not find that {forgets} does nothing")


def test_what_a_restarted_process_found_survives_the_next_power_cut(tmp_path):
    """A kill leaves a batch in the page cache that no sync has seen. The next process finds it, shows it to readers,
    and answers a producer's retry with "I have it already": from then on it has to be durable."""
    disk = tmp_path / "disk"
    disk.mkdir()
    files = FaultyFiles(disk)
    killed = open_journal(disk, files)
    commit(killed, b"synced")
    write(killed, b"killed before the sync")
    killed.close()

    restarted = open_journal(disk, files)
    found = list(restarted.batches(0))
    restarted.close()

    for seed in range(20):
        after = tmp_path / f"after-{seed}"
        files.materialise(after, seed)
        assert held(after) == found, f"seed {seed}"


# -- faults without a power cut ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", ["pwrite", "sync", "create", "allocate", "link", "unlink", "sync_directory"])
def test_a_failing_call_is_told_and_costs_nothing_that_was_synced(tmp_path, call, number):
    files = FaultyFiles(tmp_path)
    journal = open_journal(tmp_path, files, file_bytes=300)
    written = [commit(journal, b"x" * 40) for _ in range(3)]
    files.fail(call, number, after=2)
    with pytest.raises(OSError, match=rf"Errno {number}"):
        write_on(journal, written)
    journal.close()
    found = held(tmp_path)
    assert found[: len(written)] == written
    assert len(found) <= len(written) + 1


def write_on(journal, written):
    while len(written) < 30:
        written.append(commit(journal, b"x" * 40))


def test_a_write_that_the_kernel_cuts_short_is_finished(tmp_path, monkeypatch):
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, data[:5], at))
    journal = open_journal(tmp_path)
    written = [commit(journal, b"x" * 100) for _ in range(5)]
    journal.close()
    assert held(tmp_path) == written


def test_a_full_disk_during_a_write_leaves_a_torn_batch_that_is_cut(tmp_path):
    files = FaultyFiles(tmp_path)
    journal = open_journal(tmp_path, files)
    before = commit(journal, b"before")
    files.fail("pwrite", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        write(journal, b"x" * 100)
    journal.close()
    reopened = open_journal(tmp_path)
    assert reopened.torn_bytes > 0
    after = commit(reopened, b"after")
    reopened.close()
    assert held(tmp_path) == [before, after]
    assert len(journal_files(tmp_path)) == 1
