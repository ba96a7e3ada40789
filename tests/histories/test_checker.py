"""The checker accepts what could have happened, and rejects what could not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from .checker import Answer, Append, Read, Violation, check

UNKNOWN, REFUSED = Answer.UNKNOWN, Answer.REFUSED


def a(value: bytes, invoked: float, answered: float = 1000.0, end: int | None = None, **more: object) -> Append:
    return Append("writer", value, invoked, answered, end=end, **more)  # type: ignore[arg-type]


def r(value: bytes, invoked: float, answered: float, start: int = 0, **more: object) -> Read:
    return Read("reader", start, value, invoked, answered, **more)  # type: ignore[arg-type]


def last(value: bytes, **more: object) -> Read:
    return r(value, 5000, 5001, **more)


GOOD = {
    "nothing happened": [last(b"")],
    "one after the other": [a(b"x", 1, 2, 1), r(b"x", 3, 4), a(b"y", 5, 6, 2), last(b"xy")],
    "at the same time, in either order": [a(b"x", 1, 9, 2), a(b"y", 2, 8, 1), last(b"yx")],
    "a read at the same time sees it": [a(b"x", 1, 9), r(b"x", 2, 3), last(b"x")],
    "or does not": [a(b"x", 1, 9), r(b"", 2, 3), last(b"x")],
    "two reads at the same time may differ": [a(b"x", 1, 9), r(b"x", 2, 5), r(b"", 3, 6), last(b"x")],
    "unknown, and it happened late": [a(b"x", 1, answer=UNKNOWN), r(b"", 50, 60), last(b"x")],
    "unknown, and it never happened": [a(b"x", 1, answer=UNKNOWN), a(b"y", 3, 4, 1), last(b"y")],
    "a read from the middle on": [a(b"xy", 1, 2), r(b"y", 3, 4, start=1), last(b"xy")],
    "a read that was cut short": [a(b"xyz", 1, 2), r(b"x", 3, 4, at_tail=False), last(b"xyz")],
    "closed, then refused": [
        a(b"", 1, 2, closes=True),
        a(b"x", 3, 4, answer=REFUSED),
        r(b"", 3, 4, closed=True),
        last(b"", closed=True),
    ],
    "closed twice": [a(b"", 1, 9, closes=True), a(b"", 2, 3, closes=True), last(b"", closed=True)],
    "closed by the last append": [a(b"x", 1, 2, closes=True), a(b"", 5, 6, closes=True), last(b"x", closed=True)],
    "closed by somebody who never heard": [
        a(b"", 1, answer=UNKNOWN, closes=True),
        a(b"x", 2, 3),
        a(b"y", 4, 5, answer=REFUSED),
        last(b"x", closed=True),
    ],
}

BAD = {
    "an acknowledged append is lost": ([a(b"x", 1, 2), a(b"y", 3, 4), last(b"y")], "is lost"),
    "an append is there twice": ([a(b"x", 1, 2), last(b"xx")], "something twice"),
    "what nobody appended": ([a(b"x", 1, 2), last(b"x?")], "nobody appended"),
    "half an append": ([a(b"x", 1, 2), a(b"yz", 3, answer=UNKNOWN), last(b"xy")], "nobody appended"),
    "a refused append is there": (
        [a(b"", 1, 2, closes=True), a(b"x", 3, 4, answer=REFUSED), last(b"x", closed=True)],
        "and it is there",
    ),
    "an append went before one that had been acknowledged": (
        [a(b"x", 1, 2), a(b"y", 3, 4), last(b"yx")],
        "after its answer",
    ),
    "the same offset twice": ([a(b"x", 1, 9, 1), a(b"y", 1, 9, 1), last(b"xy")], "another offset"),
    "an acknowledged append is not seen": ([a(b"x", 1, 2), r(b"", 3, 4), last(b"x")], "after its answer"),
    "a read of the future": ([r(b"x", 1, 2), a(b"x", 3, 4), last(b"x")], "cannot have happened before"),
    "a later reader sees less": (
        [a(b"x", 1, answer=UNKNOWN), r(b"x", 2, 3), r(b"", 4, 5), last(b"x")],
        "cannot have happened before",
    ),
    "a read of other bytes": ([a(b"xy", 1, 2), r(b"xz", 3, 4), last(b"xy")], "does not show"),
    "a read that skips": ([a(b"x", 1, 2), a(b"y", 3, 4), r(b"y", 5, 6), last(b"xy")], "does not show"),
    "a read to the middle of an append": ([a(b"xy", 1, 2), r(b"x", 3, 4), last(b"xy")], "middle of an append"),
    "an append to a closed stream": (
        [a(b"", 1, 2, closes=True), a(b"x", 3, 4), last(b"x", closed=True)],
        "after its answer",
    ),
    "more behind the closing append": (
        [a(b"x", 1, 2, closes=True), a(b"y", 3, 4), last(b"xy", closed=True)],
        "more behind",
    ),
    "open again": ([a(b"", 1, 2, closes=True), last(b"")], "open again"),
    "closed by nobody": ([a(b"x", 1, 2), last(b"x", closed=True)], "nobody asked"),
    "refused though open": ([a(b"x", 1, 2, answer=REFUSED), last(b"")], "nobody closed"),
    "refused before it was closed": (
        [a(b"x", 1, 2, answer=REFUSED), a(b"", 3, 4, closes=True), last(b"", closed=True)],
        "before anything closed",
    ),
    "the closing append without the closing": (
        [a(b"x", 1, 9, closes=True), r(b"x", 2, 3), last(b"x", closed=True)],
        "not the closing",
    ),
    "closed, then read as open": (
        [a(b"", 1, 2, closes=True), r(b"", 3, 4), last(b"", closed=True)],
        "after its answer",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_could_have_happened_is_accepted(name: str) -> None:
    check(GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_what_could_not_have_happened_is_rejected(name: str) -> None:
    history, why = BAD[name]
    with pytest.raises(Violation, match=why):
        check(history)


def test_a_history_needs_a_last_read() -> None:
    with pytest.raises(ValueError, match="does not end"):
        check([a(b"x", 1, 2), r(b"x", 3, 4), a(b"y", 5, 6)])


# --- at random


def possible(rng: random.Random, operations: int = 30) -> list[Append | Read]:
    """A history that did happen one by one: every answer and invocation is moved away from the moment it was about."""
    stored, history, closed = b"", [], False
    for moment in range(operations):
        invoked, answered = moment - rng.choice((0, 0, 0.4, 3)), moment + rng.choice((0, 0, 0.4, 3))
        turn = rng.random()
        if turn < 0.5:
            start = rng.choice((0, len(stored)))
            history.append(Read("r", start, stored[start:], invoked, answered, True, closed))
        elif closed:
            history.append(Append("w", b"<%d>" % moment, invoked, answered, REFUSED))
        elif turn < 0.55:
            closed = True
            history.append(Append("w", b"", invoked, answered, closes=True))
        elif turn < 0.9:
            stored += b"<%d>" % moment
            unknown = rng.random() < 0.2
            answer, end = (UNKNOWN, None) if unknown else (Answer.OK, len(stored))
            history.append(Append("w", b"<%d>" % moment, invoked, 1e9 if unknown else answered, answer, end))
        else:
            history.append(Append("w", b"<%d>" % moment, invoked, 1e9, UNKNOWN))
    return [*history, Read("r", 0, stored, 1000, 1001, True, closed)]


def test_histories_that_happened_are_accepted() -> None:
    for seed in range(300):
        check(possible(random.Random(seed)))


def test_the_same_histories_with_a_read_moved_to_another_time_are_mostly_rejected() -> None:
    """A read of the tail that is moved over two acknowledged appends shows too much or too little."""
    rejected = tried = 0
    for seed in range(300):
        history = possible(random.Random(seed))
        reads = [index for index, one in enumerate(history[:-1]) if isinstance(one, Read) and not one.closed]
        if not reads:
            continue
        tried += 1
        chosen = random.Random(seed).choice(reads)
        moved = 20.0 if history[chosen].invoked < 10 else -20.0
        one = history[chosen]
        history[chosen] = replace(one, invoked=one.invoked + moved, answered=one.answered + moved)
        try:
            check(history)
        except Violation:
            rejected += 1
    assert rejected > 0.7 * tried, (rejected, tried)
