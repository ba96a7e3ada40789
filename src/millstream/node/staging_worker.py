"""The serving side of the staging process: one job after the other, and another process when one dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine
from pathlib import Path

import msgspec

from ..model.errors import BadRequest, TransactionRefused, Unavailable
from .helper_process import Signs, read_line, start_helper
from .staging_process import Job, JobReport, StagingAssignment

log = logging.getLogger(__name__)

_WAITING_MAX = 256
_END_S = 10
# A process that has done nothing for this long hangs. A sync of gigabytes takes longer, and no processor.
_STALL_S = 15.0
_STALLS_ON_DISK = 20
_WAITS_FOR_DISK = "D"
# Runs come and go: freed ones should leave the process, not stay as holes in its heap. (Measured: 78 MB instead of 91.)
_ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "262144"}


class StagingWorker:
    def __init__(self, data_dir: Path, lock_fd: int, message_bytes_max: int, niceness: int = 0) -> None:
        self._data_dir = data_dir
        self._lock_fd = lock_fd
        self._message_bytes_max = message_bytes_max
        self._niceness = niceness
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._closed = False

    async def run(self, job: Job) -> JobReport:
        """Have a job done. Raises what it was refused for."""
        if self._waiting >= _WAITING_MAX:
            raise Unavailable("Too many transactions are being staged and committed. Try again.")
        self._waiting += 1
        try:
            async with self._turn:
                report = await self._ask(job)
        finally:
            self._waiting -= 1
        if report.bad_request:
            raise BadRequest(report.bad_request, code="bad_part")
        if report.reasons:
            raise TransactionRefused(report.reasons, report.reason_count)
        if report.failure:
            log.error("The staging process could not do its work: %s", report.failure)
            raise Unavailable("The part or transaction could not be worked on; the server's log has more. Try again.")
        return report

    async def _ask(self, job: Job) -> JobReport:
        try:
            process = await self._ensure_process()
            line = await self._while_it_works(process, _answer(process, job))
        except (OSError, RuntimeError, ValueError) as error:
            # RuntimeError is uvloop's word for a pipe that is closed, ValueError asyncio's for a line above the limit.
            line = None
            log.error("The staging process cannot be used: %s", error)
        except asyncio.CancelledError:
            await self._end(patience_s=0)  # its answer would be taken for the next one's
            raise
        if line is None:
            await self._end()
            return JobReport(failure="the process has ended")
        return msgspec.json.decode(line, type=JobReport)

    async def _while_it_works(
        self, process: asyncio.subprocess.Process, answer: Coroutine[None, None, bytes | None]
    ) -> bytes | None:
        """Wait for an answer for as long as it takes, unless the process hangs: then it is ended, and there is none."""
        asked = asyncio.ensure_future(answer)
        try:
            idle, before = 0, Signs.of(process)
            while not (await asyncio.wait([asked], timeout=_STALL_S))[0]:
                now = Signs.of(process)
                idle = idle + 1 if now == before else 0
                before = now
                if idle >= (_STALLS_ON_DISK if now.state == _WAITS_FOR_DISK else 1):
                    log.error("The staging process hangs (state %s) and is ended.", now.state)
                    process.kill()
                    return None
            return asked.result()
        finally:
            asked.cancel()

    async def _ensure_process(self) -> asyncio.subprocess.Process:
        if self._closed:
            raise Unavailable("The server stops.")
        if self._process is None:
            assignment = StagingAssignment(
                str(self._data_dir.absolute()), self._message_bytes_max, os.getpid(), self._niceness
            )
            module = "millstream.node.staging_process"
            self._process = await start_helper(module, assignment, self._lock_fd, _ALLOCATOR)
        return self._process

    async def close(self) -> None:
        self._closed = True
        await self._end()

    def kill(self) -> None:
        """End the process now, whatever it does."""
        self._closed = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _end(self, patience_s: float = _END_S) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), patience_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _answer(process: asyncio.subprocess.Process, job: Job) -> bytes | None:
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(job) + b"\n")
    await process.stdin.drain()
    return await read_line(process)
