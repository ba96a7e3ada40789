"""One simulated run, given by its seed: a few lives of a node, and how each of them ended."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from millstream.model.commands import Command
from millstream.node.writer import Answer, Done
from millstream.storage.kernel_sync import KernelSync

from .clients import Client, Producing, SimulatedFollower
from .committing import Committing
from .disk import SimulatedDisk
from .loop import SLICE, SimulatedKernelSync, SimulatedLoop, simulated
from .node import SimulatedNode
from .oracle import DEALS, KEYS, PRODUCED, Oracle, Told
from .renaming import Renaming

_FAULTS = (
    ("sync", errno.EIO),
    ("sync", errno.ENOSPC),
    ("pwrite", errno.EIO),
    ("pwrite", errno.ENOSPC),
    ("create", errno.ENOSPC),
    ("allocate", errno.ENOSPC),
    ("link", errno.EIO),
    ("sync_directory", errno.EIO),
)
_FOLLOWERS_MAX = 20
_AHEAD_S = (0.0, 0.0, 0.7, -0.7, 3600.0, -3600.0, 3e7, -3e7)  # how far the wall clock may be set
SLOW = 0.1  # of the runs have a disk that takes seconds
DEALING = 0.25  # of the runs have transactions, which take longer


class Run:
    """The seed decides everything: who asks for what and when, how long a sync takes, and what goes wrong."""

    node: SimulatedNode

    def __init__(
        self,
        seed: int,
        disk_kind: type[SimulatedDisk] = SimulatedDisk,
        dealing: float = DEALING,
        slow: float = SLOW,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.loop = SimulatedLoop(self.rng)
        self.is_slow = self.rng.random() < slow
        if self.is_slow:
            self.loop.slowness = 0.7
        self.oracle = Oracle(self.loop)
        self._lease_ms: float | None = None  # what it should be now, if nothing but time had passed
        self.following: set[SimulatedFollower] = set()
        self._working: dict[Coroutine[None, None, Any], asyncio.Task[Any]] = {}
        self.renamed = 0  # messages found in the bucket that is deleted and made again
        self.produced: list[bytes] = []  # acknowledged messages of the producers
        self.is_ending = False
        self.endings: list[str] = []
        self.asked = self.answered = 0
        self.trouble: Exception | None = None
        self._elsewhere = self.rng.sample((False, True), self.rng.choice((0, 1, 2)))
        self.disk = disk_kind(self._kernel_syncs)
        self.sizes = {
            "file_bytes": self.rng.choice((300, 1000, 4096)),
            "batch_bytes_max": self.rng.choice((100, 1000, 100_000)),
            "part_bytes": self.rng.choice((16, 64)),
        }
        self.clients = [Client(self) for _ in range(self.rng.randint(1, 3))]
        self.clients += [Producing(self, f"p{index}") for index in range(self.rng.randint(1, 2))]
        self.keys, self.shared = dict(KEYS), [key for key in KEYS if key != PRODUCED]
        if self.is_slow:  # then streams end that nobody waits for, and some must be left who see it
            self.clients += [Client(self) for _ in range(6)]
        self.has_deals = self.rng.random() < dealing
        if self.has_deals:
            self.clients += [Committing(self, f"app{index}") for index in range(self.rng.randint(1, 2))]
            self.clients += [Renaming(self, f"name{index}") for index in range(self.rng.randint(0, 2))]
            self.keys |= DEALS
            self.shared += DEALS

    def _kernel_syncs(self, disk: SimulatedDisk) -> list[KernelSync]:
        return [SimulatedKernelSync(self.loop, disk, elsewhere) for elsewhere in self._elsewhere]

    def play(self) -> Run:
        with simulated(self.loop):
            for _ in range(self.rng.randint(1, 3)):
                self._live()
            self._open()
            self.oracle.check(self.node, self.loop.now_s)
            self._check_produced()
        return self

    # -- lives ---------------------------------------------------------------------------------------------

    def _live(self) -> None:
        ending = self.rng.choice(("kill", "cut", "cut", "fault", "quiet"))
        self.endings.append(ending)
        if ending == "cut":
            self.disk.cut_power_after(self.rng.randint(1, 60))
        try:
            self._open()
        except OSError:
            assert self.disk.is_off, "a start fails only when the power goes"
        else:
            self._work(ending)
        self._die(with_power=ending == "cut")

    def _open(self) -> None:
        self.node = SimulatedNode(self.disk, **self.sizes)
        ahead_ms = 0.0 if self._lease_ms is None else self.node.clock.lease_ms() - self._lease_ms
        self.oracle.restarted(ahead_ms / 1000)
        if self.has_deals:
            self.node.open_transactions()
        self.node.start()

    def _work(self, ending: str) -> None:
        self.oracle.check(self.node, self.loop.now_s)
        self.is_ending = False
        if ending == "fault":
            call, number = self.rng.choice(_FAULTS)
            self.disk.fail_once(call, self.rng.randint(0, 15), number)
        for client in self.clients:
            client.begin()
        until_s = self.loop.now_s + self.rng.uniform(0.01, 10.0 if self.is_slow else 0.8)
        if self.rng.random() < 0.3:
            self.loop.call_later(self.rng.uniform(0, until_s - self.loop.now_s), self._set_clock)
        self._turn(until_s)
        if ending in ("quiet", "fault"):
            self._settle()

    def _set_clock(self) -> None:
        """Somebody sets the machine's clock; the node looks at it now and then."""
        self.loop.ahead_s = self.rng.choice(_AHEAD_S)
        self.node.writer.look_at_clock()

    def _turn(self, until_s: float = float("inf")) -> None:
        self.loop.run(until_s, lambda: self.disk.is_off or self.trouble is not None)
        if self.trouble is not None:
            raise self.trouble

    def _settle(self) -> None:
        """Nobody asks for more: everybody gets an answer, and every follower gets to the end of its stream."""
        self.is_ending = True
        self.clients[0].say_last_words()
        self._turn()
        assert self.asked == self.answered, f"{self.asked - self.answered} questions were never answered"
        for follower in self.following:
            stream = follower.stream
            assert follower.offset == stream.tail, f"{stream.key}: a follower at {follower.offset} of {stream.tail}"
        if self.node.writer.refusal is None:
            self.oracle.check(self.node, self.loop.now_s)

    def _die(self, with_power: bool) -> None:
        if "node" in self.__dict__:
            self._lease_ms = self.node.clock.lease_ms()
        for work in self._working:
            work.close()  # now, as later would be whenever it is found to be garbage
        self._working.clear()
        self.loop.forget()
        self.following.clear()
        self.asked = self.answered = 0
        self.disk = self.disk.after_a_power_cut(self.rng) if with_power else self.disk.after_a_kill()
        down_s = self.rng.choice((0.0, 0.1, 5.0))
        self.loop.now_s += down_s
        if self._lease_ms is not None:
            self._lease_ms += down_s * 1000
        if self.rng.random() < 0.1:
            self.loop.ahead_s = self.rng.choice(_AHEAD_S)

    def _check_produced(self) -> None:
        stored = b"".join(told.seen for told in self.oracle.streams.values() if told.key == PRODUCED)
        for message in set(self.produced):
            assert stored.count(message) == 1, f"{message!r} is there {stored.count(message)} times"

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """The shipped code lets no client's trouble get to others; here it is what we look for."""
        try:
            yield
        except Exception as error:
            self.trouble = self.trouble or error
            raise

    # -- for clients -----------------------------------------------------------------------------------------

    def submit(self, command: Command, done: Done) -> None:
        def answered(answer: Answer) -> None:
            self.answered += 1
            self.oracle.used(getattr(command, "key", ""))
            with self.noticing():
                done(answer)

        self.asked += 1
        self.oracle.used(getattr(command, "key", ""))
        self.node.submit(command, answered)

    def perform(self, work: Coroutine[None, None, Any], done: Callable[[Any], None]) -> None:
        def ended(task: asyncio.Task[Any]) -> None:
            del self._working[work]
            self.answered += 1
            with self.noticing():
                done(task.exception() or task.result())

        self.asked += 1
        task = self._working[work] = asyncio.Task(work, loop=self.loop)  # type: ignore[arg-type]
        task.add_done_callback(ended)

    def known(self, key: str) -> Told | None:
        """The newest stream of this key that anybody was told of, unless it is deleted."""
        newest = max((number for number, told in self.oracle.streams.items() if told.key == key), default=None)
        return None if newest is None or self.oracle.streams[newest].deleted else self.oracle.streams[newest]

    def number(self, known: Told) -> int:
        return next(number for number, told in self.oracle.streams.items() if told is known)

    def follow(self, key: str) -> None:
        """One comes to follow a stream, or a small crowd."""
        stream = self.node.visible(key)
        if stream is None:
            return
        for _ in range(min(self.rng.choice((1, 1, 2 * SLICE + 1)), _FOLLOWERS_MAX - len(self.following))):
            follower = SimulatedFollower(self, stream, self.oracle.found(stream))
            self.following.add(follower)
            self.node.followers.follow(stream, follower)
            follower.stream_changed()

    def story(self) -> str:
        return f"seed {self.seed}: {self.oracle.acknowledgements} acknowledged, lives ended by {self.endings}"
