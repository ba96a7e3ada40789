"""Is a history of one stream linearizable? Could it have happened one operation at a time, each at some moment between
its invocation and its answer?

In general that is hard to tell. Here it is not, because a stream keeps its order: the last read names every append that
took effect, in order, so only the moments are to be found. They are given out as early as possible: an append happens
after the one before it, after its own invocation, and after the invocation of every read that did not see it. If that
is later than its answer, or than the answer of a read that saw it, there is no other way either.

What follows from it, and is named when it fails: nothing acknowledged is lost, nothing is there twice, no offset is
given out twice, reads see prefixes, what one reader has seen all later readers see, and a closed stream stays closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf


class Violation(AssertionError):
    """The history could not have happened."""


class Answer(Enum):
    OK = "ok"
    REFUSED = "refused, as the stream is closed"
    UNKNOWN = "none: it may have happened or not, at any time since"


@dataclass(frozen=True, slots=True)
class Append:
    """Bytes, the closing of the stream, or both."""

    client: str
    value: bytes
    invoked: float
    answered: float = inf
    answer: Answer = Answer.OK
    end: int | None = None  # the offset behind it, where the answer says so
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    client: str
    start: int
    value: bytes
    invoked: float
    answered: float
    at_tail: bool = True  # the answer says that there was no more; otherwise there may have been
    closed: bool = False  # the answer says that there never will be

    @property
    def end(self) -> int:
        return self.start + len(self.value)


History = Sequence[Append | Read]


def check(history: History) -> None:
    """Raises `Violation`. The history must end with a read of everything, when nobody else was active."""
    reads = [one for one in history if isinstance(one, Read)]
    appends = [one for one in history if isinstance(one, Append)]
    last = reads[-1]
    if last.start != 0 or not last.at_tail or any(one.invoked > last.invoked for one in history):
        raise ValueError("The history does not end with a read of everything.")
    for read in reads:
        if last.value[read.start : read.end] != read.value:
            raise Violation(f"{read} does not show what lies there in the end.")
    order = _order(last.value, [append for append in appends if append.value])
    _check_answers(order, appends)
    order, is_closed = _with_closing(order, appends, reads)
    _check_closing(order, appends, reads, is_closed)
    _find_moments(
        order, reads, [append for append in appends if append.answer is Answer.REFUSED or _only_closed(append)]
    )


def _only_closed(append: Append) -> bool:
    return append.closes and not append.value and append.answer is Answer.OK


def _order(stored: bytes, appends: Iterable[Append]) -> list[Append]:
    """The appends that the stream is made of. Values are unique, and none is the beginning of another."""
    order: list[Append] = []
    missing = {append.value: append for append in appends}
    at = 0
    while at < len(stored):
        found = next((append for append in missing.values() if stored.startswith(append.value, at)), None)
        if found is None:
            again = any(stored.startswith(append.value, at) for append in order)
            raise Violation(f"At {at} there is {'something twice' if again else 'what nobody appended'}.")
        del missing[found.value]
        order.append(found)
        at += len(found.value)
    return order


def _check_answers(order: Sequence[Append], appends: Iterable[Append]) -> None:
    ends: dict[bytes, int] = {}
    at = 0
    for append in order:
        at += len(append.value)
        ends[append.value] = at
        if append.answer is Answer.REFUSED:
            raise Violation(f"{append} was refused, and it is there.")
    for append in appends:
        if append.answer is not Answer.OK or not append.value:
            continue
        if append.value not in ends:
            raise Violation(f"{append} was acknowledged, and it is lost.")
        if append.end not in (None, ends[append.value]):
            raise Violation(f"{append} was told another offset than {ends[append.value]}, which is its own.")


def _with_closing(order: list[Append], appends: Iterable[Append], reads: Iterable[Read]) -> tuple[list[Append], bool]:
    """The order with what closed the stream at its end, and whether something did."""
    closing = [append for append in appends if append.closes and append.answer is not Answer.REFUSED]
    is_closed = any(read.closed for read in reads) or any(append.answer is Answer.OK for append in closing)
    if not is_closed:
        return order, False
    if not closing:
        raise Violation("The stream is closed, and nobody asked for that.")
    if order and order[-1].closes:
        return order, True
    if any(append.closes for append in order):
        raise Violation("There is more behind the append that closed the stream.")
    # Of several that only close the first will do: a closed stream takes the others as well.
    without_value = [append for append in closing if not append.value]
    if not without_value:
        raise Violation("The stream is closed, and what should have closed it is not there.")
    return [*order, min(without_value, key=lambda append: append.invoked)], True


def _check_closing(order: Sequence[Append], appends: Iterable[Append], reads: Sequence[Read], is_closed: bool) -> None:
    for append in appends:
        if append.answer is Answer.REFUSED and not is_closed:
            raise Violation(f"{append} was refused, and nobody closed the stream.")
    tail = reads[-1].end
    closing_value = order[-1].value if order and order[-1].closes else b""
    for read in reads:
        if read.closed and read.end != tail:
            raise Violation(f"{read} says that {read.end} is the end, and there is more.")
        if closing_value and read.end == tail and read.at_tail and not read.closed:
            raise Violation(f"{read} shows the append that closed the stream, and not the closing.")
    if is_closed and not reads[-1].closed:
        raise Violation("The stream was closed, and is open again.")


def _find_moments(order: Sequence[Append], reads: Iterable[Read], met_it_closed: Iterable[Append]) -> None:
    """Give each append its moment, from the first to the last."""
    gaps = _gaps(order, reads)
    moment = -inf
    for index, append in enumerate(order):
        without_it = [read.invoked for read in gaps[index] if read.at_tail]
        moment = max(moment, append.invoked, *without_it)
        if moment > append.answered:
            raise Violation(f"{append} must have happened after its answer: something that began later is before it.")
        for read in gaps[index + 1]:
            if moment > read.answered:
                raise Violation(f"{read} shows what cannot have happened before its answer: {append}.")
    for append in met_it_closed:
        if moment > append.answered:
            raise Violation(f"{append} found the stream closed before anything closed it.")


def _gaps(order: Sequence[Append], reads: Iterable[Read]) -> list[list[Read]]:
    """The reads that end behind so many appends. One that ends inside of an append saw all of it."""
    ends = [0]
    for append in order:
        ends.append(ends[-1] + len(append.value))
    gaps: list[list[Read]] = [[] for _ in ends]
    for read in reads:
        index = next(index for index, end in enumerate(ends) if read.end <= end)
        if read.at_tail and ends[index] != read.end:
            raise Violation(f"{read} ends in the middle of an append and says that there is no more.")
        if read.closed:
            index = len(ends) - 1
        gaps[index].append(read)
    return gaps
