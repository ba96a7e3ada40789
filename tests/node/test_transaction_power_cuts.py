"""Transactions under power cuts: staging, merging, committing, checkpoints and sweeps, cut off at any call.

The helpers' work is done in this process, so that their files are on the disk that fails, too.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.node.rig import JSON, TINY, Rig
from tests.storage.faulty_files import FaultyFiles, ForgetfulFiles

from millstream.model.commands import CreateBucket
from millstream.model.errors import MillstreamError, NotFound
from millstream.node.staged_parts import BODIES
from millstream.node.staging_process import Job, JobReport, Worker
from millstream.node.staging_worker import StagingWorker
from millstream.node.transactions import PartName
from millstream.storage.files import Files

STREAMS = ("a", "b", "c")


class InlineWorker(StagingWorker):
    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.root, -1, 1 << 20)
        self._inline = Worker(rig.node.objects, rig.root / "objects", 1 << 20)

    async def _ask(self, job: Job) -> JobReport:
        return self._inline.run(job)


def messages(version: int) -> list[tuple[str, object]]:
    rng = random.Random(version)
    return [(rng.choice(STREAMS), [version, n, "x" * rng.choice((0, 30, 400))]) for n in range(rng.randint(1, 12))]


class Story:
    """One application, over several lives."""

    def __init__(self) -> None:
        self.answered = 0
        self.asked = 0

    async def run(self, rig: Rig, rng: random.Random) -> None:
        """Commit one version after the other, until the power is gone."""
        transactions = rig.node.transactions
        transactions._stager = transactions._merger = InlineWorker(rig)
        try:
            rig.node.bucket("shop")
        except NotFound:
            await rig.submit(CreateBucket("shop"))
        for body in range(1 << 30):
            version = self.answered + 1
            rows = messages(version)
            for part in range(2):
                name = f"{BODIES}/{body}-{part}"
                rig.node.objects.put(name, [lines(rows[part::2], part)])
                await transactions.stage("shop", "etl", version, str(part), name, False)
                rig.node.objects.remove([name])
            self.asked = version
            parts = [PartName("0"), PartName("1")]
            await transactions.commit("shop", "etl", version, parts, create=True, content_type=JSON)
            self.answered = version
            if rng.random() < 0.4:
                rig.checkpoint()
                transactions.cooled(rig.node.writer.committed_sequence)
            if rng.random() < 0.3:
                await transactions.sweep()
            if rng.random() < 0.2:
                rig.merge()

    async def check(self, rig: Rig) -> None:
        """What is committed is there as a whole; of anything else there is nothing."""
        try:
            known = rig.node.transactions.application("shop", "etl")
        except NotFound:
            assert self.answered == 0
            return
        version = 0 if known is None else known.version
        assert self.answered <= version <= self.asked
        self.answered = version
        for stream in STREAMS:
            wanted = [value for each in range(1, version + 1) for name, value in messages(each) if name == stream]
            try:
                found = [json.loads(message) for message in await rig.messages(f"shop/{stream}")]
            except NotFound:
                found = []
            assert found == wanted, stream


def lines(rows: list[tuple[str, object]], part: int) -> bytes:
    told = [{"stream": stream, "json": value, "order": 2 * n + part} for n, (stream, value) in enumerate(rows)]
    return "\n".join(map(json.dumps, told)).encode()


async def tell(folder: Path, seed: object, files_for: type[Files] = FaultyFiles, lives: int = 3) -> int:
    """How many transactions there were in the end."""
    story = Story()
    disk = folder / "0"
    disk.mkdir(parents=True)
    for life in range(lives):
        rng = random.Random(f"{seed}-{life}")
        files = files_for(disk)
        files.cut_power_after(rng.randint(1, 250))
        rig = Rig(disk, TINY, files)
        try:
            rig.open()
        except OSError:
            pass
        else:
            with pytest.raises((OSError, MillstreamError)):
                await story.run(rig, rng)
            rig.die()
        disk = folder / str(life + 1)
        files.materialise(disk, f"{seed}-{life}")
        async with Rig(disk, TINY) as after:
            await story.check(after)
    return story.answered


@pytest.mark.parametrize("seed", range(20))
async def test_a_transaction_survives_any_power_cut_or_never_was(tmp_path, seed):
    await tell(tmp_path, seed)


async def test_the_stories_are_not_empty(tmp_path):
    assert sum([await tell(tmp_path / str(seed), seed) for seed in range(5)]) > 10


@pytest.mark.parametrize("forgets", ["sync", "sync_directory"])
async def test_these_stories_find_a_sync_that_does_nothing(tmp_path, forgets):
    for seed in range(40):
        try:
            await tell(tmp_path / str(seed), seed, lambda disk: ForgetfulFiles(disk, forgets))
        except (AssertionError, MillstreamError, NotADirectoryError, FileNotFoundError):
            return
    pytest.fail(f"no story found that {forgets} does nothing")
