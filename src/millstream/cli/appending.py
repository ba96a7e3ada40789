"""Appends: a message or a small batch in one request, all or nothing; anything larger through a producer, exactly once
and in order. Ctrl-C waits for the answer of what is on its way, so that there always is a true account of what is
stored."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.cli.connection import Connection, explained
from millstream.cli.exits import Exit
from millstream.cli.intake import Messages
from millstream.cli.output import CommandError, count_text, print_stop
from millstream.cli.progress import Meter

if TYPE_CHECKING:
    from millstream.client import Appended, Producer, Stream

# Input that ends this soon and is no larger becomes one request.
ONE_REQUEST_S = 0.2
ONE_REQUEST_BYTES_MAX = 4 * 1024 * 1024
ONE_REQUEST_MESSAGES_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Stored:
    """What an append came to. `offset` is the stream's end after it, None if nothing was stored."""

    messages: int
    bytes: int
    offset: str | None
    closed: bool
    producer_id: str | None = None
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Wishes:
    """How to append; see the options of `stream append`."""

    closes: bool = False
    if_match: str | None = None
    producer_id: str | None = None
    merges: bool = False


def append_whole(link: Connection, stream: Stream, body: bytes, wishes: Wishes) -> Stored:
    """One request."""
    with Meter("appending", len(body)), link.interrupts.held():
        if wishes.closes:
            done = stream.close(body or None, if_match=wishes.if_match)
        else:
            done = stream.append(body, if_match=wishes.if_match)
    return Stored(1, len(body), done.offset, done.closed, interrupted=link.interrupts.received is not None)


def append_messages(
    link: Connection, stream: Stream, source: Messages, wishes: Wishes, *, json_stream: bool, total: int | None
) -> Stored:
    """Several messages can travel in one request to a JSON stream; to others only if they may become one."""
    with nothing_sent():
        first = gather(source)
    if not first and source.ended:
        raise CommandError("there is nothing to append: the input is empty")
    if source.ended and wishes.producer_id is None and (json_stream or wishes.merges or len(first) == 1):
        body = b"[" + b",".join(first) + b"]" if json_stream else b"".join(first)
        done = append_whole(link, stream, body, wishes)
        size = sum(map(len, first))
        return Stored(len(first), size, done.offset, done.closed, interrupted=done.interrupted)
    if wishes.if_match is not None:
        raise CommandError("--if-match is for an append of one request; this input is too large or too slow for one")
    with Meter("appending", total) as meter:
        return produce(link, stream, first, source, wishes, meter)


@contextmanager
def nothing_sent() -> Iterator[None]:
    """While the input is still being read."""
    try:
        yield
    except KeyboardInterrupt:
        print_stop("interrupted; nothing is stored")
        raise


def gather(source: Messages) -> list[bytes]:
    """What comes at once, up to the size of one request."""
    until = time.monotonic() + ONE_REQUEST_S
    found: list[bytes] = []
    size = 0
    while not source.ended and size < ONE_REQUEST_BYTES_MAX and len(found) < ONE_REQUEST_MESSAGES_MAX:
        if not source.within(until - time.monotonic()):
            break
        more = source.next()
        found += more
        size += sum(map(len, more))
    return found


def produce(
    link: Connection, stream: Stream, first: list[bytes], source: Messages, wishes: Wishes, meter: Meter
) -> Stored:
    from millstream.client import ClientError

    # A name of one's own may have been used before, by an earlier run: its place is taken over.
    named = wishes.producer_id is not None
    producer = stream.producer(wishes.producer_id, claim=named, merge=wishes.merges)
    ledger = Ledger(meter, producer.producer_id)
    try:
        hand_over(link, producer, first, ledger)
        while not source.ended:
            hand_over(link, producer, source.next(), ledger)
        with link.interrupts.held():
            closing = finished(producer, wishes.closes)
        ledger.finish()
        return ledger.stored(closing, interrupted=link.interrupts.received is not None)
    except ClientError as error:
        producer.close()
        known = explained(error)
        raise CommandError(f"{known} {ledger.account()}", exit_code=known.exit_code, code=known.code) from error
    except CommandError as error:  # a line that is not as it should be
        producer.close()
        ledger.settle()
        raise CommandError(f"{error}; {ledger.account()}", exit_code=error.exit_code, code=error.code) from None
    except KeyboardInterrupt:
        return interrupted(link, producer, ledger)


def hand_over(link: Connection, producer: Producer, messages: list[bytes], ledger: Ledger) -> None:
    with link.interrupts.held():
        for message in messages:
            ledger.note(producer.append(message), len(message))
    ledger.settle()
    link.interrupts.check()


def finished(producer: Producer, closes: bool) -> Appended | None:
    """Wait until everything is stored. A second Ctrl-C gets out of `flush` at once; `close` waits for its threads."""
    if closes:
        return producer.close_stream()
    producer.flush()
    producer.close()
    return None


def interrupted(link: Connection, producer: Producer, ledger: Ledger) -> Stored:
    """No more input is taken; what the producer has is finished, unless somebody insists."""
    from millstream.client import ClientError

    try:
        with link.interrupts.held():
            finished(producer, closes=False)
    except ClientError as error:
        raise cut_off(link, f"interrupted; {explained(error)} {ledger.account()}") from error
    except KeyboardInterrupt:
        more = "A few more may be, as their answers were not waited for."
        raise cut_off(link, f"ended at once; {ledger.account()} {more}") from None
    ledger.settle()
    print_stop(f"interrupted; {ledger.account()}")
    return ledger.stored(None, interrupted=True)


def cut_off(link: Connection, sentence: str) -> CommandError:
    return CommandError(sentence, exit_code=Exit(link.interrupts.exit_code), code="interrupted")


class Ledger:
    """Which of the messages handed to a producer are stored: a batch has one receipt."""

    def __init__(self, meter: Meter, producer_id: str) -> None:
        self._meter = meter
        self._producer_id = producer_id
        self._open: deque[tuple[Future[Appended], list[int]]] = deque()
        self._messages = 0
        self._last: Appended | None = None

    def note(self, receipt: Future[Appended], size: int) -> None:
        if self._open and self._open[-1][0] is receipt:
            sizes = self._open[-1][1]
            sizes[0] += 1
            sizes[1] += size
        else:
            self._open.append((receipt, [1, size]))

    def settle(self) -> None:
        """Take what has been answered; one that failed stays, as everything behind it does."""
        while self._open and self._open[0][0].done() and self._open[0][0].exception() is None:
            receipt, (messages, size) = self._open.popleft()
            self._messages += messages
            self._meter.advance(size)
            self._last = receipt.result()

    def finish(self) -> None:
        """Everything has been answered: settle it, or raise what kept the rest from being stored."""
        self.settle()
        for receipt, _ in self._open:
            receipt.result()

    def account(self) -> str:
        self.settle()
        if self._last is None:
            return "Nothing is stored."
        counted = count_text(self._messages, "message is stored", "messages are stored")
        return f"The first {counted}; the stream ends at {self._last.offset}."

    def stored(self, closing: Appended | None, *, interrupted: bool = False) -> Stored:
        last = closing or self._last
        return Stored(
            self._messages,
            self._meter.done,
            last.offset if last else None,
            last.closed if last else False,
            self._producer_id,
            interrupted,
        )
