"""Kill a server again and again under load, and hold it to every word it said."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.conftest import ServerProcess, clean_environment

from .ledger import Ledger
from .messages import Mint
from .verifier import Verifier
from .writers import (
    Author,
    Closer,
    Committer,
    Folder,
    Follower,
    LargeWriter,
    Lessee,
    PlainWriter,
    ProducerWriter,
    Recreator,
    Run,
    Sprinkler,
    Watcher,
)

# Everything that a server usually does now and then, all the time.
BUSY: dict[str, object] = {
    "journal_file_bytes": "64KiB",
    "batch_bytes_max": "64KiB",
    "part_bytes": "16KiB",
    "checkpoint_bytes": "32KiB",
    "checkpoint_records": 200,
    "checkpoint_age_s": 0.2,
    "hot_streams_max": 5,
    "merge_segments_min": 2,
    "block_bytes": "4KiB",
    "read_bytes_max": "64KiB",
    "low_space_bytes": 0,
}
CHANGE_TIMEOUT_S = 10.0
DESCRIPTORS = 256
FIRST_LIFE_S_MAX = 30.0


class Victim(ServerProcess):
    """A server that can also be hurt while it starts, and whose helper can be hurt alone."""

    def kill_while_starting(self, after_s: float) -> None:
        assert not self.is_running
        with self.log_path.open("ab") as log:
            process = subprocess.Popen(self._command(), stdout=log, stderr=log, env=clean_environment())
        time.sleep(after_s)
        process.kill()
        process.wait()

    def start_in_vain(self) -> tuple[int, str]:
        """Start where that must fail; the exit code, and what the log says about it."""
        self.log_path.unlink()
        with self.log_path.open("ab") as log:
            done = subprocess.run(
                self._command(), stdout=log, stderr=log, env=clean_environment(), timeout=20, check=False
            )
        return done.returncode, self.log()

    def kill_helper(self) -> None:
        """The process that checkpoints and merges; the server starts another."""
        self.signal_helpers(signal.SIGKILL)

    def signal_helpers(self, number: signal.Signals) -> list[int]:
        helpers = children(self.pid)
        send(helpers, number)
        return helpers

    def _command(self) -> list[str]:
        """With few descriptors, so that a crowd can try to take them all."""
        return ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh", *super()._command()]

    @property
    def journal_files(self) -> list[Path]:
        return sorted((self.data_dir / "journal").glob("*.log"))

    def disk_bytes(self) -> int:
        """Everything: journal, catalog, objects and archive."""
        total = 0
        for path in self.data_dir.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                total += 512 * path.lstat().st_blocks
        return total

    def object_bytes(self) -> int:
        """All but the archive, which keeps what happened for its own time."""
        objects = self.data_dir / "objects"
        folders = [folder for folder in objects.iterdir() if folder.name != "journal"]
        return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += map(int, (task / "children").read_text().split())
    return found


def metric(port: int, name: str) -> float:
    """One of the server's own figures."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=CHANGE_TIMEOUT_S) as answer:
        matched = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert matched, f"no metric {name}"
    return float(matched[1])


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = CHANGE_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout_s} s still not: {what}"
        time.sleep(0.02)


def make_authors(run: Run) -> list[Author]:
    """Some of every kind. A new kind of client joins here; what it is told goes into the ledger."""
    return [
        *(PlainWriter(run, f"plain{index}", "shared") for index in range(3)),
        *(LargeWriter(run, f"large{index}", "large") for index in range(3)),
        *(ProducerWriter(run, f"producer{index}", "produced", json=False) for index in range(3)),
        *(ProducerWriter(run, f"batches{index}", "batches", json=True) for index in range(2)),
        *(Sprinkler(run, f"sprinkler{index}", 20) for index in range(2)),
        *(Recreator(run, f"recreator{index}", 3) for index in range(2)),
        *(Closer(run, f"closer{index}") for index in range(2)),
        *(Lessee(run, f"lessee{index}") for index in range(2)),
        *(Folder(run, f"folder{index}") for index in range(2)),
        *(Committer(run, f"committer{index}") for index in range(2)),
        Watcher(run, "watcher0", "shared", json=False),
        Watcher(run, "watcher1", "batches", json=True),
        Follower(run, "follower0", "produced", json=False),
        Follower(run, "follower1", "batches", json=True),
    ]


class Campaign:
    """One run: writers that go on over any number of deaths, and the check after each.

    The seed fixes who writes what and when the server dies. The rest is up to the machine, so a failure comes
    back from its seed often, though not always.
    """

    def __init__(self, server: Victim, seed: int) -> None:
        self.server = server
        self.seed = seed
        self.random = random.Random(seed)
        self.ledger = Ledger()
        mint = Mint(seed)
        self.authors = make_authors(Run(seed, server.port, self.ledger, mint))
        self.verifier = Verifier(self.ledger, mint, server.port)
        self.deaths: list[str] = []

    async def run(self, kills: int) -> None:
        self.server.start()
        for _ in range(kills):
            await self._one_life()
            self._come_back()
            await self.verifier.check_all()
            self.server.check_log()
        await self._end_politely()
        self._check_worked(kills)

    async def _one_life(self) -> None:
        """Everybody writes, until the server dies of one thing or another."""
        async with asyncio.TaskGroup() as group:
            for author in self.authors:
                group.create_task(author.run(), name=author.name)
            crowd = group.create_task(self._crowd(), name="crowd") if self.random.random() < 0.25 else None
            await self._murder()
            if crowd is not None:
                crowd.cancel()

    async def _crowd(self) -> None:
        """More connections than there can be, that say nothing until the server is gone."""
        self.deaths.append("crowded")
        await asyncio.sleep(self.random.uniform(0.0, 0.3))
        with contextlib.ExitStack() as crowd:
            for _ in range(DESCRIPTORS):
                with contextlib.suppress(OSError):
                    sock = crowd.enter_context(socket.create_connection(("127.0.0.1", self.server.port), timeout=1))
                    sock.setblocking(False)
                await asyncio.sleep(0)
            await asyncio.sleep(self.random.uniform(0.0, 0.5))

    async def _murder(self) -> None:
        stopped: list[int] = []
        if not self.deaths:
            await self._everybody_got_somewhere()
        if self.random.random() < 0.25:
            await asyncio.sleep(self.random.uniform(0.0, 0.5))
            self.server.kill_helper()
            self.deaths.append("helper")
        if self.random.random() < 0.25:
            await asyncio.sleep(self.random.uniform(0.0, 0.3))
            stopped = self.server.signal_helpers(signal.SIGSTOP)
            self.deaths.append("stopped")
            await asyncio.sleep(self.random.uniform(0.0, 0.5))
            if self.random.random() < 0.7:  # or the server dies beside them
                send(stopped, signal.SIGCONT)
        # Often early, when the first checkpoints and merges after the restart are under way.
        await asyncio.sleep(1.5 * self.random.random() ** 2)
        self.server.kill()
        self.deaths.append("server")
        send(stopped, signal.SIGCONT)  # one that had just been started has not asked yet to die with the server

    async def _everybody_got_somewhere(self) -> None:
        """The first life lasts until the slowest authors have done something: staging needs a process of its own."""
        for _ in range(int(FIRST_LIFE_S_MAX / 0.05)):
            if self.snapshots() and self.transactions():
                return
            await asyncio.sleep(0.05)

    def _come_back(self) -> None:
        while self.random.random() < 0.25:
            self.server.kill_while_starting(self.random.uniform(0.1, 0.6))
            self.deaths.append("starting")
        self.server.start()

    async def _end_politely(self) -> None:
        """A clean stop after all that, and one more start."""
        self.server.stop()
        self.server.start()
        await self.verifier.check_all()

    def _check_worked(self, kills: int) -> None:
        """Where nobody dies or nobody gets anywhere, nothing is shown."""
        deaths = Counter(self.deaths)
        assert deaths["server"] == kills > 0, self.story()
        assert min(deaths["helper"], deaths["starting"]) >= kills // 20, self.story()
        idle = {author.name: author.done for author in self.authors if author.done < max(1, kills // 10)}
        assert not idle, f"these did next to nothing: {idle}; {self.story()}"
        assert self.snapshots() > kills // 10, self.story()

    def snapshots(self) -> int:
        return sum(author.published for author in self.authors if isinstance(author, Folder))

    def transactions(self) -> int:
        return sum(author.done for author in self.authors if isinstance(author, Committer))

    def story(self) -> str:
        """What to read when it failed, and what to be proud of when not."""
        told = self.ledger.acknowledged()
        done = f"{told} appends of what is still there, {self.snapshots()} snapshots and "
        done += f"{self.transactions()} transactions"
        return f"seed {self.seed}: {done} were acknowledged; deaths: {dict(Counter(self.deaths))}"
