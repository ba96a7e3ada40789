"""The producer's rules: which messages travel together, when, under which number, and what each answer means.

Everything that decides about order and exactly-once is in this file. It never waits: a driver asks `next_job`, sends
what it gets, and reports the answer. Times are given in seconds of any steady clock.

- A batch gets its sequence number when it is first sent, and keeps it through every retry.
- Several batches may be on their way. One that overtakes another is refused by the server (a gap) and sent again
  once those before it are there, so nothing is ever stored out of order.
- The first batch of an epoch travels alone: a server knows nothing of the epoch before it.
- While a batch waits to be sent again, no new one leaves.
- The append that closes the stream leaves when all others are acknowledged: on a closed stream the server could not
  tell that it has them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import ClientError, ConnectionLost, Fenced, OutcomeUnknown, SequenceGap
from .faults import error_of
from .operations import appended
from .retry import RETRYABLE, UNCHANGED, Retry
from .values import join_json
from .wire import (
    CONTENT_TYPE,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQ,
    RETRY_AFTER,
    STREAM_CLOSED,
    Answer,
    Request,
)

NUMBER_MAX = 2**53 - 1


class Receipt(Protocol):
    """A future: of `concurrent.futures` for threads, of asyncio for tasks."""

    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Any, /) -> None: ...
    def exception(self) -> BaseException | None: ...
    def done(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """A producer is known by `producer_id` and `epoch`. `claim` takes the next epoch where the id is in use already;
    `resume` goes on with `first_seq` in an epoch of one's own, and counts as delivered what the server has of it.

    `linger_s` is how long a message waits for company. A batch is sent earlier when it has `batch_bytes_max` or
    `batch_messages_max`; `in_flight_max` batches are on their way at most, and `buffer_bytes_max` bytes wait before
    `append` does. `merge` joins messages of streams that are not JSON into one append, which loses their borders.
    """

    producer_id: str
    epoch: int = 0
    first_seq: int = 0
    claim: bool = False
    resume: bool = False
    linger_s: float = 0.005
    batch_bytes_max: int = 1024 * 1024
    batch_messages_max: int = 20_000
    in_flight_max: int = 4
    buffer_bytes_max: int = 16 * 1024 * 1024
    merge: bool = False

    def __post_init__(self) -> None:
        if not self.producer_id:
            raise ValueError("producer_id must not be empty.")
        if not 0 <= self.epoch <= NUMBER_MAX:
            raise ValueError("epoch must be from 0 to 2^53-1.")
        if not 0 <= self.first_seq <= NUMBER_MAX:
            raise ValueError("first_seq must be from 0 to 2^53-1.")
        if self.linger_s < 0:
            raise ValueError("linger_s must not be negative.")
        for name in ("batch_bytes_max", "batch_messages_max", "in_flight_max", "buffer_bytes_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more.")


class _Batch:
    """Messages that travel together."""

    __slots__ = (
        "closes",
        "failures",
        "flying",
        "messages",
        "opened_s",
        "receipt",
        "retry_at_s",
        "seq",
        "size",
        "unsure",
    )

    def __init__(self, opened_s: float, receipt: Receipt) -> None:
        self.opened_s = opened_s
        self.receipt = receipt
        self.messages: list[bytes] = []
        self.size = 0
        self.closes = False
        self.seq = -1
        self.flying = False
        self.failures = 0
        self.retry_at_s = 0.0
        self.unsure = False  # an attempt may have been carried out although its answer is missing


@dataclass(slots=True, eq=False)
class Job:
    """One request to send now. `sent` is set by the driver when the body is on its way."""

    batch: _Batch
    request: Request
    was_oldest: bool
    sent: bool = False


class Producing:
    """One producer of one stream."""

    def __init__(
        self,
        url: str,
        content_type: str,
        options: ProducerOptions,
        retry: Retry,
        *,
        encode: Callable[[object], bytes],
        is_json: bool,
        new_receipt: Callable[[], Receipt],
        headers: Mapping[str, str],
    ) -> None:
        self.encode = encode
        self.options = options
        self._url = url
        self._headers = {**headers, CONTENT_TYPE: content_type, PRODUCER_ID: options.producer_id}
        self._retry = retry
        self._is_json = is_json
        self._joins = is_json or options.merge
        self._new_receipt = new_receipt
        self._waiting: deque[_Batch] = deque()  # not sent yet; the last one is still open
        self._unacknowledged: list[_Batch] = []  # sent at least once, in order
        self._jobs: list[Job] = []  # on their way
        self._next_seq = options.first_seq
        self._proven = options.first_seq > 0  # whether the server has accepted something of this epoch
        self._claiming: int | None = None  # the epoch to go beyond, once nothing is on its way
        self._rush = False
        self._ended = False
        self.epoch = options.epoch
        self.buffered_bytes = 0
        self.failure: ClientError | None = None
        self.told = False  # whether a call of the user's has raised the failure

    # --- what the caller does

    def add(self, message: bytes, now_s: float) -> tuple[Receipt, bool]:
        """Take a message. Returns its batch's receipt, and whether the driver should look again."""
        self._raise_failure()
        if self._ended:
            raise ValueError("This producer is closed.")
        if not message:
            raise ValueError("There is nothing to append: the message is empty.")
        options = self.options
        batch = self._waiting[-1] if self._waiting else None
        news = False
        if (
            batch is None
            or not self._joins
            or batch.size + len(message) >= options.batch_bytes_max
            or len(batch.messages) >= options.batch_messages_max
        ):
            batch = _Batch(now_s, self._new_receipt())
            self._waiting.append(batch)
            news = True
        batch.messages.append(message)
        size = len(message) + 1
        batch.size += size
        self.buffered_bytes += size
        return batch.receipt, news or len(batch.messages) == options.batch_messages_max

    def add_closing(self, message: bytes | None, now_s: float) -> Receipt:
        """The last append of the stream: closes it, with a final message if there is one."""
        self._raise_failure()
        if self._ended:
            raise ValueError("This producer is closed.")
        if message is None and self._waiting:
            batch = self._waiting[-1]
        else:
            batch = _Batch(now_s, self._new_receipt())
            self._waiting.append(batch)
            if message:
                batch.messages.append(message)
                batch.size += len(message)
                self.buffered_bytes += len(message)
        batch.closes = True
        self._ended = True
        return batch.receipt

    def hurry(self) -> list[Receipt]:
        """Send what waits without lingering; returns the receipts of all that is not there yet."""
        self._raise_failure()
        self._rush = bool(self._waiting)
        return [batch.receipt for batch in (*self._unacknowledged, *self._waiting)]

    def _raise_failure(self) -> None:
        if self.failure is not None:
            self.told = True
            raise self.failure

    def end(self) -> None:
        """Take no more. What is not delivered by now has an unknown outcome."""
        self._ended = True
        if not self.idle:
            self.fail(
                OutcomeUnknown(
                    f"The producer {self.options.producer_id!r} of {self._url} was stopped before everything was "
                    "delivered. Read the end of the stream before you send it again.",
                    url=self._url,
                )
            )

    @property
    def full(self) -> bool:
        return self.buffered_bytes >= self.options.buffer_bytes_max and self.failure is None and not self._ended

    @property
    def idle(self) -> bool:
        return self.failure is not None or not (self._waiting or self._unacknowledged)

    @property
    def in_flight(self) -> int:
        return len(self._jobs)

    @property
    def next_seq(self) -> int:
        return self._next_seq

    # --- what the driver does

    def next_job(self, now_s: float) -> Job | float | None:
        """What to send now, or in how many seconds to ask again, or None: when something has changed."""
        if self.failure is not None or self._claiming is not None:
            return None
        grounded = [batch for batch in self._unacknowledged if not batch.flying]
        if grounded:
            oldest = self._unacknowledged[0]
            if oldest.flying:
                return None
            return self._launch(oldest) if oldest.retry_at_s <= now_s else oldest.retry_at_s - now_s
        limit = self.options.in_flight_max if self._proven else 1
        if not self._waiting or len(self._unacknowledged) >= limit or not all(job.sent for job in self._jobs):
            return None
        first = self._waiting[0]
        if first.closes and self._unacknowledged:
            return None
        if len(self._waiting) == 1 and not (self._rush or self._ended or self._is_full(first)):
            due_s = first.opened_s + self.options.linger_s
            if due_s > now_s:
                return due_s - now_s
        self._waiting.popleft()
        if not self._waiting:
            self._rush = False
        first.seq = self._next_seq
        self._next_seq += 1
        self._unacknowledged.append(first)
        return self._launch(first)

    def _is_full(self, batch: _Batch) -> bool:
        options = self.options
        return (
            not self._joins
            or batch.size >= options.batch_bytes_max
            or len(batch.messages) >= options.batch_messages_max
        )

    def _launch(self, batch: _Batch) -> Job:
        batch.flying = True
        headers = {**self._headers, PRODUCER_EPOCH: str(self.epoch), PRODUCER_SEQ: str(batch.seq)}
        if batch.closes:
            headers[STREAM_CLOSED] = "true"
        request = Request("POST", self._url, headers=headers, body=self._body(batch))
        job = Job(batch, request, was_oldest=batch is self._unacknowledged[0])
        self._jobs.append(job)
        return job

    def _body(self, batch: _Batch) -> bytes:
        if self._is_json and batch.messages:
            return join_json(batch.messages)
        return b"".join(batch.messages)

    # --- what came of it

    def answered(self, job: Job, answer: Answer, now_s: float) -> None:
        batch = self._landed(job)
        if self.failure is not None:
            return
        if 200 <= answer.status < 300:
            self._accepted(batch, answer, duplicate=answer.status == 204)
        elif answer.status in RETRYABLE:
            fault = error_of(answer, job.request)
            unchanged = answer.status in UNCHANGED and fault.code != OutcomeUnknown.code
            self._again(batch, fault, now_s, unsure=not unchanged, retry_after=answer.header(RETRY_AFTER))
        else:
            self._refused(job, error_of(answer, job.request), now_s)
        self._claim_if_landed()

    def lost(self, job: Job, fault: ConnectionLost, now_s: float) -> None:
        batch = self._landed(job)
        if self.failure is None:
            self._again(batch, fault, now_s, unsure=fault.sent, retry_after=None)
        self._claim_if_landed()

    def abandoned(self, job: Job, error: Exception) -> None:
        """Something happened that no retry mends, such as a callback for credentials that fails."""
        self._landed(job)
        if not isinstance(error, ClientError):
            error = OutcomeUnknown(f"The producer cannot go on: {error!r}.", url=self._url)
        self.fail(error)

    def fail(self, error: ClientError) -> None:
        """Nothing goes on after this; every receipt and every later call gets the error."""
        self.failure = error
        for batch in (*self._unacknowledged, *self._waiting):
            if not batch.receipt.done():
                batch.receipt.set_exception(error)
                batch.receipt.exception()  # seen, so that asyncio does not warn when nobody asks for this receipt
        self._unacknowledged.clear()
        self._waiting.clear()
        self.buffered_bytes = 0

    def _landed(self, job: Job) -> _Batch:
        if job in self._jobs:
            self._jobs.remove(job)
        job.batch.flying = False
        return job.batch

    def _accepted(self, batch: _Batch, answer: Answer, *, duplicate: bool) -> None:
        if duplicate and not (batch.unsure or batch.closes or self.options.resume):
            # We never sent this number before, so someone else did, under our name: our data was not stored.
            self._fenced(answer.number(PRODUCER_EPOCH), None)
            return
        self._proven = True
        self._unacknowledged.remove(batch)
        self.buffered_bytes -= batch.size
        if not batch.receipt.done():
            batch.receipt.set_result(appended(answer, duplicate=duplicate))

    def _again(self, batch: _Batch, fault: ClientError, now_s: float, *, unsure: bool, retry_after: str | None) -> None:
        batch.failures += 1
        batch.unsure = batch.unsure or unsure
        if not self._retry.allows(batch.failures):
            self.fail(fault)
            return
        batch.retry_at_s = now_s + self._retry.wait_s(batch.failures, retry_after)

    def _refused(self, job: Job, error: ClientError, now_s: float) -> None:
        if isinstance(error, SequenceGap) and not job.was_oldest:
            job.batch.retry_at_s = now_s  # it overtook one before it; its turn comes
        elif isinstance(error, Fenced):
            self._fenced(error.epoch, error)
        else:
            self.fail(error)

    def _fenced(self, epoch: int | None, error: Fenced | None) -> None:
        held = self.epoch if epoch is None else max(epoch, self.epoch)
        if self.options.claim:
            self._claiming = held if self._claiming is None else max(held, self._claiming)
            return
        if error is None:
            error = Fenced(
                f"Another producer has used the id {self.options.producer_id!r} with epoch {held} on {self._url}, so "
                "the server took new messages for old ones. Use an id of your own, a higher epoch, or claim=True.",
                url=self._url,
            )
            error.epoch = held
        self.fail(error)

    def _claim_if_landed(self) -> None:
        """Take a new epoch, once no answer of the old one is outstanding."""
        if self._claiming is None or self._jobs or self.failure is not None:
            return
        unsure = next((batch for batch in self._unacknowledged if batch.unsure), None)
        if unsure is not None:
            # Under a new epoch the server could not tell that it has this batch already.
            self.fail(
                OutcomeUnknown(
                    f"Batch {unsure.seq} of producer {self.options.producer_id!r} was sent when another one took "
                    "over, and its answer is missing. Read the end of the stream before you send it again.",
                    url=self._url,
                )
            )
            return
        self.epoch = self._claiming + 1
        self._claiming = None
        self._proven = False
        for seq, batch in enumerate(self._unacknowledged):
            batch.seq, batch.retry_at_s = seq, 0.0
        self._next_seq = len(self._unacknowledged)
