"""The serving side of upkeep: when a checkpoint is due, and what leaves memory once it is done."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..engine.machine import Machine
from ..engine.state import Bucket, Stream
from ..storage.objects import LocalObjects
from ..storage.segments.segment import segment_name
from . import memory
from .clock import Clock
from .damage import DamageBook
from .helper_process import read_line, start_helper
from .recent import RecentFacts
from .upkeep_process import Assignment, Report, Request
from .vital import end_task, vital_task
from .writer import Writer

log = logging.getLogger(__name__)

_TICK_S = 0.05
_SLICE = 1000  # streams looked at, or messages let go, per turn of the loop
_RESTART_DELAY_S = 1.0
_IDLE_S = 20  # a stream nobody asked for in this time leaves memory
_EVICT_EVERY_S = 10.0


class UpkeepLimits(msgspec.Struct, frozen=True):
    checkpoint_bytes: int
    checkpoint_records: int
    checkpoint_age_s: float
    hot_bytes_max: int
    hot_streams_max: int
    block_bytes: int
    segments_min: int
    archive_age_s: float
    archive_bytes_max: int


class Upkeep:
    def __init__(
        self,
        machine: Machine,
        writer: Writer,
        recent: RecentFacts,
        objects: LocalObjects,
        damage: DamageBook,
        limits: UpkeepLimits,
        *,
        data_dir: Path,
        lock_fd: int,
        applied: int,
        now_s: Callable[[], float],
        clock: Clock,
    ) -> None:
        self._machine = machine
        self._writer = writer
        self._recent = recent
        self._objects = objects
        self._damage = damage
        self._limits = limits
        self._data_dir = data_dir
        self._lock_fd = lock_fd
        self._now_s = now_s
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._progress = asyncio.Event()
        self._was_started = False
        self._oldest_change_s: float | None = None  # when the first change after the last cut was seen
        self.applied = applied
        self._cut_at = applied
        self._evicted_at = -1
        self._next_eviction_s = now_s() + _EVICT_EVERY_S
        self.bytes_since_cut = machine.hot_bytes
        self.on_cooled: Callable[[int], None] = lambda _: None  # memory needs nothing up to this sequence any more
        self.checkpoints = 0
        self.merges = 0
        self.failures = 0

    def start(self) -> asyncio.Task[None]:
        self._task = vital_task(self._run(), "upkeep")
        return self._task

    async def stop(self) -> None:
        """Let the helper finish what it does and end; what it did not get to is in the journal."""
        await end_task(self._task)
        await self._end_process()

    @property
    def unapplied(self) -> int:
        """How many facts a restart would have to replay."""
        return self._writer.committed_sequence - self.applied

    async def checkpoint(self) -> None:
        """Bring catalog and segments up to what is committed now, and cool what they have."""
        through = self._writer.committed_sequence
        if through <= self.applied:
            return
        streams, buckets = self._machine.cut(through)
        self._cut_at, self.bytes_since_cut, self._oldest_change_s = through, 0, None
        await self._request(through)
        self._machine.cut_is_saved()
        while not self._recent.forget(through, _SLICE):  # noqa: ASYNC110 - it is the work itself, in slices
            await asyncio.sleep(0)
        await self._cool(streams, buckets, through)
        self.on_cooled(through)
        self.checkpoints += 1

    # -- when ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._machine.coarse_s = int(self._now_s())
            if not self._was_started:
                await self._try_process()  # merges may be due although nobody writes
            elif self._is_due():
                await self.checkpoint()
            elif self._is_eviction_due():
                if await self._evict() >= max(_SLICE, len(self._machine.streams)):
                    memory.give_back()  # most have left
            else:
                await asyncio.sleep(_TICK_S)

    def _is_due(self) -> bool:
        limits = self._limits
        records = self._writer.committed_sequence - self._cut_at
        if records == 0:
            return False
        records += len(self._machine.new_keys)  # a new stream takes twice the memory of a message
        if self._oldest_change_s is None:
            self._oldest_change_s = self._now_s()
        return (
            records >= limits.checkpoint_records
            or self.bytes_since_cut >= limits.checkpoint_bytes
            or self._machine.held_bytes >= limits.hot_bytes_max // 2
            or self._now_s() - self._oldest_change_s >= limits.checkpoint_age_s
        )

    # -- what leaves memory ----------------------------------------------------------------------------

    async def _cool(self, streams: list[Stream], buckets: list[Bucket], through: int) -> None:
        budget = _SLICE
        for stream in streams:
            budget -= 1 + self._machine.checkpointed(stream, through, budget)
            while budget <= 0:  # the stream may have more
                await asyncio.sleep(0)
                budget = _SLICE
                budget -= 1 + self._machine.checkpointed(stream, through, budget)
        for bucket in buckets:
            self._machine.bucket_checkpointed(bucket, through)

    def _is_eviction_due(self) -> bool:
        over = len(self._machine.streams) > self._limits.hot_streams_max and self.applied > self._evicted_at
        return over or self._now_s() >= self._next_eviction_s

    async def _evict(self) -> int:
        """Let streams go that nobody asked for lately; over the limit, the oldest whoever asked for them. How many
        went."""
        self._next_eviction_s = self._now_s() + _EVICT_EVERY_S
        self._evicted_at = self.applied
        now = self._machine.coarse_s
        streams = list(self._machine.streams.values())
        excess = before = len(streams) - self._limits.hot_streams_max
        for start in range(0, len(streams), _SLICE):
            for stream in streams[start : start + _SLICE]:
                used_before = now + 1 if excess > 0 else now - _IDLE_S
                excess -= self._machine.evict_idle(stream, self.applied, used_before)
            await asyncio.sleep(0)
        return before - excess

    # -- the helper ------------------------------------------------------------------------------------

    async def _request(self, through: int) -> None:
        """Ask for a checkpoint until it is there; a helper that dies is replaced and asked again."""
        while self.applied < through:
            process = await self._try_process()
            if process is None:
                continue
            assert process.stdin is not None
            try:
                process.stdin.write(msgspec.json.encode(Request(through)) + b"\n")
            except RuntimeError:  # uvloop's word for a pipe that is closed: it has just ended, `_listen` will tell
                await asyncio.sleep(_RESTART_DELAY_S)
                continue
            self._progress.clear()
            while self.applied < through and process is self._process:
                await self._progress.wait()
                self._progress.clear()
            if process is not self._process:
                await asyncio.sleep(_RESTART_DELAY_S)

    async def _try_process(self) -> asyncio.subprocess.Process | None:
        try:
            return await self._ensure_process()
        except OSError as error:
            self.failures += 1
            log.error("The upkeep process cannot be started: %s. It is tried again.", error)
            await asyncio.sleep(_RESTART_DELAY_S)
            return None

    async def _ensure_process(self) -> asyncio.subprocess.Process:
        if self._process is None:
            assignment = Assignment(
                str(self._data_dir.absolute()),
                self._limits.block_bytes,
                self._limits.segments_min,
                os.getpid(),
                self._limits.archive_age_s,
                self._limits.archive_bytes_max,
                self._clock.base_ms,
            )
            self._process = await start_helper("millstream.node.upkeep_process", assignment, self._lock_fd)
            self._was_started = True
            self._listener = vital_task(self._listen(self._process), "upkeep-reports")
        return self._process

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        try:
            await self._take_reports(process)
        except ValueError as error:
            log.error("The upkeep process says what nobody understands: %s. It is ended.", error)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        code = await process.wait()
        if self._process is process:  # nobody asked it to end
            self.failures += 1
            log.error("The upkeep process ended with code %s; another is started when there is work.", code)
            self._process = None
            self._progress.set()

    async def _take_reports(self, process: asyncio.subprocess.Process) -> None:
        while (line := await read_line(process)) is not None:
            report = msgspec.json.decode(line, type=Report)
            if report.failure:
                log.error("The upkeep process failed: %s.", report.failure)
            self._take(report)
            self._progress.set()

    def _take(self, report: Report) -> None:
        self.applied = max(self.applied, report.applied)
        self.merges += report.merged
        for place, what in report.damage:
            self._damage.note(place, what)
        for segment in report.removed:
            self._objects.forget(segment_name(segment))

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._listener is not None:
            await self._listener
