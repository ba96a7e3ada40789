"""The producer on asyncio: a few tasks send what the rules in `producing` say."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from types import TracebackType

from ..errors import ClientError, ConnectionLost
from ..producing import Job, Producing
from ..steps import send
from ..values import Appended
from .driver import AsyncDriver


class AsyncProducer(AbstractAsyncContextManager["AsyncProducer"]):
    """Exactly-once, pipelined, batched appends to one stream.

    `append` gives a future of its batch, and waits only while the buffer is full. `flush` waits until everything is
    durable. When one thing fails for good, everything behind it fails with the same error.
    """

    def __init__(self, driver: AsyncDriver, rules: Producing) -> None:
        self._driver = driver
        self._rules = rules
        self._encode = rules.encode
        self._now = asyncio.get_running_loop().time
        self._pump: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()  # the pump should look again
        self._room = asyncio.Event()  # an append that waits should look again
        self._stopping = False

    @property
    def producer_id(self) -> str:
        return self._rules.options.producer_id

    @property
    def epoch(self) -> int:
        """The present one; higher than the one asked for after a claim."""
        return self._rules.epoch

    @property
    def next_seq(self) -> int:
        """The sequence of the next batch. With `epoch`, what a successor needs to go on: see `first_seq`."""
        return self._rules.next_seq

    async def append(self, data: object) -> asyncio.Future[Appended]:
        message = self._encode(data)
        rules = self._rules
        while rules.full:
            self._room.clear()
            await self._room.wait()
        receipt, news = rules.add(message, self._now())
        if news:
            self._wake()
        assert isinstance(receipt, asyncio.Future)
        return receipt

    async def flush(self) -> None:
        """Returns when everything appended so far is durable; raises what kept it from being so."""
        receipts = self._rules.hurry()
        self._wake()
        try:
            for receipt in receipts:
                assert isinstance(receipt, asyncio.Future)
                await asyncio.shield(receipt)
        except ClientError:
            self._rules.told = True
            raise

    async def close_stream(self, final: object = None) -> Appended:
        """Flush, then close the stream, with one last message if given: in one step, exactly once."""
        receipt = self._rules.add_closing(None if final is None else self._encode(final), self._now())
        self._wake()
        assert isinstance(receipt, asyncio.Future)
        result: Appended = await asyncio.shield(receipt)
        await self.close()
        return result

    async def close(self) -> None:
        """Flush and stop; the stream stays open. Raises what was not delivered and why, unless a call has done so."""
        try:
            if not self._rules.told:
                await self.flush()
        finally:
            await self._stop()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        if not isinstance(error, Exception):
            await self._stop()  # cancelled: whoever does that wants no more waiting
            return
        try:
            await self.close()
        except ClientError as late:
            error.add_note(f"Besides, the producer could not deliver everything: {late}")

    # --- tasks

    def _wake(self) -> None:
        if self._pump is None and not self._stopping:
            self._pump = asyncio.create_task(self._run(), name="millstream-producer")
        self._changed.set()

    async def _stop(self) -> None:
        self._stopping = True
        self._rules.end()
        self._room.set()
        tasks = [task for task in (self._pump, *self._sending) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            job = self._rules.next_job(self._now())
            if isinstance(job, Job):
                task = asyncio.create_task(self._send(job))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
                continue
            try:
                async with asyncio.timeout(job):
                    await self._changed.wait()
            except TimeoutError:
                continue  # a linger or a retry is due

    async def _send(self, job: Job) -> None:
        try:
            answer = await self._driver.run(send(replace(job.request, on_sent=lambda: self._sent(job))))
            self._rules.answered(job, answer, self._now())
        except ConnectionLost as lost:
            self._rules.lost(job, lost, self._now())
        except Exception as error:
            self._rules.abandoned(job, error)
        self._changed.set()
        self._room.set()

    def _sent(self, job: Job) -> None:
        job.sent = True
        self._changed.set()
