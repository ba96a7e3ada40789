"""An event loop without a machine: its clock moves only when nothing else is to do, and chance comes from a seed.

`simulated` puts it in the place of the running loop, and lets the shipped writer, clock and journal find simulated
time, chance, queue and thread where they look for the real ones. Everything then happens in one order, given by the
seed, and a second run is the same to the last bit.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from .disk import SimulatedDisk

START_S = 1_700_000_000
LATENCY_MAX_S = 3.0
SLICE = 2  # of followers, so that a handful of them is a crowd
_STEPS_MAX = 100_000  # a run that takes more is going round in circles


class SimulatedLoop:
    """As much of an event loop as the node's writer and followers use."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_s = 0.0
        self.ahead_s = 0.0  # how far the wall clock was set ahead, or back: at any time
        self.slowness = 0.05  # how many syncs take very long
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._made = 0
        self._readers: dict[int, Callable[[], object]] = {}

    # -- what the shipped code calls -------------------------------------------------------------------

    def call_soon(self, call: Callable[..., object], *given: Any, context: object = None) -> None:
        self._ready.append((call, given))

    call_soon_threadsafe = call_soon

    def call_later(self, delay_s: float, call: Callable[..., object], *given: Any) -> None:
        self._made += 1
        heapq.heappush(self._timers, (self.now_s + delay_s, self._made, call, given))

    def add_reader(self, fd: int, call: Callable[..., object], *given: Any) -> None:
        self._readers[fd] = partial(call, *given)

    def remove_reader(self, fd: int) -> None:
        self._readers.pop(fd, None)

    def run_in_executor(self, executor: None, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """In a thread, that is some time later."""
        future = self.create_future()
        self.call_later(self.latency_s(), self._work, call, future)
        return future

    def _work(self, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def call_exception_handler(self, context: object) -> None:
        """Somebody died before he heard of an error, or in the middle of something: that happens here all the time."""

    def get_debug(self) -> bool:
        return False

    # -- what moves it -----------------------------------------------------------------------------------

    def readable(self, fd: int) -> None:
        if fd in self._readers:
            self._readers[fd]()

    def run(self, until_s: float = float("inf"), stop: Callable[[], bool] = lambda: False) -> None:
        """Until nothing is left to do, the time has come, or somebody says stop."""
        for _ in range(_STEPS_MAX):
            if stop():
                return
            if self._ready:
                call, given = self._ready.popleft()
            elif self._timers and self._timers[0][0] <= until_s:
                self.now_s, _, call, given = heapq.heappop(self._timers)
            else:
                self.now_s = max(self.now_s, until_s) if self._timers else self.now_s
                return
            call(*given)
        raise AssertionError("the simulation does not come to an end")

    def forget(self) -> None:
        """The process is gone, and with it all that it had planned."""
        self._ready.clear()
        self._timers.clear()
        self._readers.clear()

    def latency_s(self) -> float:
        """Of a sync: mostly short, now and then very long."""
        turn = self.rng.random()
        if turn < self.slowness:
            return self.rng.choice((0.5, 1.5, LATENCY_MAX_S))
        return 0.001 + 0.004 * self.rng.random()


class SimulatedTime:
    """In the place of the module `time`: a wall clock that can be set, and one that only runs."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    CLOCK_MONOTONIC = 1

    def time_ns(self) -> int:
        return int((START_S + self._loop.now_s + self._loop.ahead_s) * 1_000_000_000)

    def clock_gettime_ns(self, clock: int) -> int:
        return int(self._loop.now_s * 1_000_000_000)


class SimulatedChance:
    """In the place of the module `secrets`."""

    def __init__(self, rng: random.Random) -> None:
        self.randbits = rng.getrandbits


class SimulatedSyncThread:
    """In the place of the writer's queue and of the thread that works through it."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._jobs: deque[Any] = deque()
        self._work: Callable[[], object] = lambda: None

    # the queue

    def put(self, job: object) -> None:
        if job is not None:
            self._jobs.append(job)
            self._loop.call_later(self._loop.latency_s(), self._work)

    def get(self) -> object:
        return self._jobs.popleft() if self._jobs else None  # None ends the thread, until the next job

    # the thread

    def thread(self, target: Callable[[], object], name: str, daemon: bool) -> SimulatedSyncThread:
        self._work = target
        return self

    def start(self) -> None:
        """Work begins with the first job."""

    def join(self, timeout: float) -> None:
        """There is nothing to wait for."""


class SimulatedKernelSync:
    """The kernel's own workers, see `storage.kernel_sync`."""

    def __init__(self, loop: SimulatedLoop, disk: SimulatedDisk, works_elsewhere: bool) -> None:
        self.works_elsewhere = works_elsewhere
        self.fileno = 98 + works_elsewhere
        self._loop = loop
        self._disk = disk
        self._fd = -1

    def submit(self, fd: int) -> bool:
        if self._loop.rng.random() < 0.05:
            return False
        self._fd = fd
        self._loop.call_later(self._loop.latency_s(), self._loop.readable, self.fileno)
        return True

    def collect(self) -> OSError | None:
        try:
            self._disk.sync(self._fd)
        except OSError as error:
            return error
        return None

    def close(self) -> None:
        """It holds nothing."""


@contextmanager
def simulated(loop: SimulatedLoop) -> Iterator[None]:
    """Inside, the shipped modules run on this loop and its chance."""
    threads: list[SimulatedSyncThread] = []

    def make_queue() -> SimulatedSyncThread:
        threads.append(SimulatedSyncThread(loop))
        return threads[-1]

    def make_thread(**given: Any) -> SimulatedSyncThread:
        return threads[-1].thread(**given)

    class Threading:
        Thread = staticmethod(make_thread)

    asyncio._set_running_loop(loop)  # type: ignore[arg-type]
    try:
        with (
            patch("millstream.node.writer.SimpleQueue", make_queue),
            patch("millstream.node.writer.threading", Threading),
            patch("millstream.node.followers.SLICE", SLICE),
            patch("millstream.node.writer._CROWD", 2),  # there are only a few writers here
            patch("millstream.node.clock.time", SimulatedTime(loop)),
            patch("millstream.storage.journal.file.secrets", SimulatedChance(loop.rng)),
        ):
            yield
    finally:
        asyncio._set_running_loop(None)
