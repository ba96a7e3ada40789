"""The producer for threads: a few workers send what the rules in `producing` say."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType

from ..errors import ClientError, ConnectionLost
from ..producing import Job, Producing
from ..steps import send
from ..values import Appended
from .driver import Driver


class Producer(AbstractContextManager["Producer"]):
    """Exactly-once, pipelined, batched appends to one stream. Safe to share between threads.

    `append` returns at once with a future of its batch; it waits only while the buffer is full. `flush` waits until
    everything is durable. When one thing fails for good, everything behind it fails with the same error.
    """

    def __init__(self, driver: Driver, rules: Producing) -> None:
        self._driver = driver
        self._rules = rules
        self._encode = rules.encode
        self._changed = threading.Condition()
        self._workers: list[threading.Thread] = []
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

    def append(self, data: object) -> Future[Appended]:
        message = self._encode(data)
        with self._changed:
            while self._rules.full:
                self._changed.wait()
            receipt, news = self._rules.add(message, time.monotonic())
            if news:
                self._start()
                self._changed.notify_all()  # not just one: it might be another append that waits for room
        assert isinstance(receipt, Future)
        return receipt

    def flush(self) -> None:
        """Returns when everything appended so far is durable; raises what kept it from being so."""
        with self._changed:
            receipts = self._rules.hurry()
            self._changed.notify_all()
        try:
            for receipt in receipts:
                assert isinstance(receipt, Future)
                receipt.result()
        except ClientError:
            self._rules.told = True
            raise

    def close_stream(self, final: object = None) -> Appended:
        """Flush, then close the stream, with one last message if given: in one step, exactly once."""
        message = None if final is None else self._encode(final)
        with self._changed:
            receipt = self._rules.add_closing(message, time.monotonic())
            self._start()
            self._changed.notify_all()
        assert isinstance(receipt, Future)
        result: Appended = receipt.result()
        self.close()
        return result

    def close(self) -> None:
        """Flush and stop; the stream stays open. Raises what was not delivered and why, unless a call has done so."""
        try:
            if not self._rules.told:
                self.flush()
        finally:
            self._stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        if not isinstance(error, Exception):
            self._stop()  # Ctrl-C: whoever presses that wants no more waiting
            return
        try:
            self.close()
        except ClientError as late:
            error.add_note(f"Besides, the producer could not deliver everything: {late}")

    # --- workers

    def _start(self) -> None:
        while len(self._workers) < self._rules.options.in_flight_max and not self._stopping:
            worker = threading.Thread(target=self._work, name="millstream-producer", daemon=True)
            self._workers.append(worker)
            worker.start()

    def _stop(self) -> None:
        """Workers that wait end at once. One that is inside a request is left alone: its answer matters to nobody."""
        with self._changed:
            self._stopping = True
            self._rules.end()
            self._changed.notify_all()
            busy = self._rules.in_flight > 0
        if not busy:
            for worker in self._workers:
                worker.join()

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            try:
                self._send(job)
            except Exception as error:
                with self._changed:
                    self._rules.abandoned(job, error)
                    self._changed.notify_all()

    def _next_job(self) -> Job | None:
        with self._changed:
            while True:
                job = self._rules.next_job(time.monotonic())
                if isinstance(job, Job):
                    return job
                if self._stopping and self._rules.idle:
                    return None
                self._changed.wait(job)

    def _send(self, job: Job) -> None:
        lost: ConnectionLost | None = None
        try:
            answer = self._driver.run(send(replace(job.request, on_sent=lambda: self._sent(job))))
        except ConnectionLost as error:
            lost = error
        with self._changed:
            if lost is None:
                self._rules.answered(job, answer, time.monotonic())
            else:
                self._rules.lost(job, lost, time.monotonic())
            self._changed.notify_all()

    def _sent(self, job: Job) -> None:
        with self._changed:
            job.sent = True
            self._changed.notify_all()
