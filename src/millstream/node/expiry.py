"""The sweeper: ends streams whose time is up, so that their space is freed and their live readers are told.

Access never depends on it: a stream past its deadline reads as absent at once. Streams in memory are watched by a heap
of deadlines, the others by the catalog's index.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from functools import partial
from itertools import islice

from ..engine.leasing import deadline_ms
from ..engine.machine import Machine
from ..engine.state import Stream
from ..model.commands import Expire
from ..model.replies import Outcome, Receipt
from ..storage.catalog import CatalogReader
from .clock import Clock
from .vital import end_task, vital_task
from .writer import Answer, Writer

_TICK_S = 0.25
_PER_TICK = 500
_CATALOG_EVERY = 4  # ticks
_START = (-(1 << 62), -1)  # an expiry may lie before 1970


class Sweeper:
    def __init__(self, machine: Machine, writer: Writer, catalog: CatalogReader, clock: Clock) -> None:
        self._machine = machine
        self._writer = writer
        self._catalog = catalog
        self._clock = clock
        self._watched: list[tuple[int, int, str]] = []  # heaps: by leases' time, and by the wall clock
        self._watched_ends: list[tuple[int, int, str]] = []
        self._task: asyncio.Task[None] | None = None
        self._place = _START
        self.expired = 0

    def start(self) -> asyncio.Task[None]:
        self._task = vital_task(self._run(), "expiry")
        return self._task

    async def stop(self) -> None:
        await end_task(self._task)

    def watch(self, stream: Stream) -> None:
        """Look at the stream when its deadline comes; somebody follows it live."""
        if stream.lease is not None:
            heap = self._watched if stream.lease.expires_at_ms is None else self._watched_ends
            heapq.heappush(heap, (deadline_ms(stream, stream), stream.number, stream.key))

    async def _run(self) -> None:
        ticks = 0
        while True:
            self._sweep_watched(self._watched, self._clock.lease_ms())
            self._sweep_watched(self._watched_ends, self._clock.wall_ms())
            if ticks % _CATALOG_EVERY == 0:
                self._sweep_catalog()
            ticks += 1
            await asyncio.sleep(_TICK_S)

    def _sweep_watched(self, heap: list[tuple[int, int, str]], now: int) -> None:
        in_use: list[Stream] = []
        for _ in range(_PER_TICK):
            if not heap or heap[0][0] > now:
                break
            _, number, key = heapq.heappop(heap)
            stream = self._machine.streams.get(key)
            if stream is None or stream.number != number or stream.deleted or stream.lease is None:
                continue
            if self._machine.is_visible(stream):
                in_use.append(stream)
            else:
                self._expire(number, key)
        for stream in in_use:
            self.watch(stream)

    def _sweep_catalog(self) -> None:
        """A page of the recorded deadlines. They lag behind renewals in memory, so a page may hold nothing to expire;
        the next sweep goes on behind it, and starts anew after the last page."""
        lease_ms, wall_ms = self._clock.lease_ms(), self._clock.wall_ms()
        page = self._catalog.expiring(self._place, max(lease_ms, wall_ms), _PER_TICK)
        for deadline, number, key in page:
            stream = self._machine.streams.get(key)
            if stream is None and deadline > min(lease_ms, wall_ms):  # by which of them it is to be judged?
                record = self._catalog.stream_numbered(number)
                stream = None if record is None else Stream.from_record(record)
            if stream is None or (stream.number == number and not self._machine.is_live(stream)):
                self._expire(number, key)
        self._place = page[-1][:2] if len(page) == _PER_TICK else _START

    async def sweep_bucket(self, bucket: str) -> None:
        """End what is over in a bucket, for somebody who needs to know what is left of it. Where nothing is over, it
        takes one look at the catalog's index."""
        last: asyncio.Future[None] | None = None
        for some in self._mortals(bucket):
            for number, key in some:
                stream = self._machine.streams.get(key)
                if stream is None or not (stream.deleted or self._machine.is_visible(stream)):
                    last = asyncio.get_running_loop().create_future()
                    self._writer.submit(Expire(key, number), partial(self._note_last, last))
            await asyncio.sleep(0)
        if last is not None:
            await last  # they are answered in order

    def _mortals(self, bucket: str) -> Iterator[list[tuple[int, str]]]:
        """Streams of a bucket whose time may be up, some at a time."""
        now, place, prefix = max(self._clock.lease_ms(), self._clock.wall_ms()), _START, f"{bucket}/"
        while page := self._catalog.expiring(place, now, _PER_TICK):
            yield [(number, key) for _, number, key in page if key.startswith(prefix)]
            place = page[-1][:2]
        keys = self._machine.mortal_keys(bucket)
        while some := list(islice(keys, _PER_TICK)):
            streams = map(self._machine.streams.get, some)
            yield [(stream.number, stream.key) for stream in streams if stream is not None]

    def _note_last(self, last: asyncio.Future[None], answer: Answer) -> None:
        self._note(answer)
        if not last.done():
            last.set_result(None)

    def _expire(self, number: int, key: str) -> None:
        self._writer.submit(Expire(key, number), self._note)

    def _note(self, answer: Answer) -> None:
        if isinstance(answer, Receipt) and answer.outcome is Outcome.EXPIRED:
            self.expired += 1
