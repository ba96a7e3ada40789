"""Columns of a batch, made all at once: arithmetic on a whole column as one large number, texts out of prepared parts.

A loop over rows in Python takes longer than everything else in a bulk read. What most batches are like (sequences that
count on, ids of commits, messages of one length) has a short way here; everything else goes a longer one, with the same
result. Hot code: measured by `bench/feed.py`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import add
from typing import NamedTuple

_THOUSAND = list(range(1000))
_COUNTERS = [str(number) for number in _THOUSAND]
_DIGITS = [f"{number:03}" for number in _THOUSAND]
_CACHED_ROWS_MAX = 2048  # of a full chunk of ordinary appends
_ROWS_PER_COMMIT_MIN = 10  # with fewer the long way is the shorter one


class Texts(NamedTuple):
    """Texts one after the other, and where each starts and the last one ends, as i32."""

    data: bytes
    offsets: bytes


# -- numbers -----------------------------------------------------------------------------------------------


def times_thousand(numbers: memoryview) -> bytes:
    """Each u64 times 1000. They are milliseconds: none runs over into its neighbour."""
    return (int.from_bytes(numbers, "little") * 1000).to_bytes(numbers.nbytes, "little")


def ends_of(offsets: memoryview, end: int) -> bytes:
    """Where messages end that follow each other, the last one at `end`."""
    return offsets.tobytes()[8:] + end.to_bytes(8, "little")


def distances(offsets: memoryview, end: int) -> bytes:
    """How far offsets, which only grow, and their end lie behind the first; as i32."""
    count = len(offsets) + 1
    first = int.from_bytes(offsets[:1].tobytes() * count, "little")
    far = int.from_bytes(offsets.tobytes() + end.to_bytes(8, "little"), "little") - first
    return memoryview(far.to_bytes(8 * count, "little")).cast("I")[::2].tobytes()


def offsets_of(lengths: Iterable[int]) -> bytes:
    """Where things of these lengths start that follow each other, and the last one ends; as i32."""
    return array("i", accumulate(lengths, initial=0)).tobytes()


def even_offsets(length: int, count: int) -> bytes:
    """`offsets_of` things that are all of one length."""
    return _even_offsets(length, count) if count <= _CACHED_ROWS_MAX else offsets_of([length] * count)


@lru_cache(maxsize=256)
def _even_offsets(length: int, count: int) -> bytes:
    """Full chunks have the same again and again."""
    return offsets_of([length] * count)


def are_all_alike(numbers: memoryview) -> bool:
    return bool(numbers) and numbers.tobytes() == numbers[:1].tobytes() * len(numbers)


def any_but_zero(numbers: memoryview) -> bool:
    return numbers.tobytes() != bytes(numbers.nbytes)


# -- texts -------------------------------------------------------------------------------------------------


def position_texts(incarnation: int, sequences: memoryview) -> Texts:
    prefix, count = f"{incarnation:016x}.", len(sequences)
    if count and _are_counting_on(first := sequences[0], sequences):
        return Texts(_counted(prefix, first, first + count - 1).encode(), even_offsets(len(f"{prefix}{first}"), count))
    digits = list(map(str, sequences))
    data = prefix + prefix.join(digits) if digits else ""
    return Texts(data.encode(), offsets_of([len(prefix) + size for size in map(len, digits)]))


def _are_counting_on(first: int, numbers: memoryview) -> bool:
    """Whether they count on from the first, and are of one width which is four digits at least."""
    behind = first + len(numbers)
    has_one_width = first >= 1000 and len(str(first)) == len(str(behind - 1))
    return has_one_width and numbers.tobytes() == array("Q", range(first, behind)).tobytes()


def _counted(prefix: str, first: int, last: int) -> str:
    """All numbers from one to another, both of four digits at least, each behind the prefix."""
    parts = []
    for thousand in range(first // 1000, last // 1000 + 1):
        start, end = max(first - thousand * 1000, 0), min(last - thousand * 1000, 999)
        head = f"{prefix}{thousand}"
        parts.append(head + head.join(_DIGITS[start : end + 1]))
    return "".join(parts)


def id_texts(ids_ms: memoryview, id_seqs: memoryview, valid: Sequence[bool] | None = None) -> Texts:
    """Ids of messages; those that are not valid are empty."""
    texts = _ids_of_commits(ids_ms, id_seqs) if valid is None else None
    return _single_ids(ids_ms.tolist(), id_seqs.tolist(), valid) if texts is None else texts


def _ids_of_commits(ids_ms: memoryview, id_seqs: memoryview) -> Texts | None:
    """The ids if they are those of commits, which count on from 0 within a millisecond (the first may have begun
    before); None where they are not like that."""
    raw_ms, counters, count = ids_ms.tobytes(), id_seqs.tolist(), len(id_seqs)
    if counters.count(0) * _ROWS_PER_COMMIT_MIN > count:
        return None
    starts = [*counters, 0]
    expected_ms, expected_counters = bytearray(), []
    texts: list[str] = []
    inner, outer = bytearray(), bytearray()  # where ids start within those of their commit, and where those start
    at = start = 0
    while start < count:
        end = starts.index(0, start + 1)
        first, rows = counters[start], end - start
        counted = slice(first, first + rows)
        prefix = f"{ids_ms[start]}-"
        expected_ms += raw_ms[8 * start : 8 * start + 8] * rows
        expected_counters += _THOUSAND[counted]
        text = prefix + prefix.join(_COUNTERS[counted])
        texts.append(text)
        inner += _id_offsets(len(prefix), first)[: 4 * rows]
        outer += at.to_bytes(4, "little") * rows
        at += len(text)
        start = end
    if expected_ms != raw_ms or expected_counters != counters:
        return None
    places = (int.from_bytes(inner, "little") + int.from_bytes(outer, "little")).to_bytes(4 * count, "little")
    return Texts("".join(texts).encode(), places + at.to_bytes(4, "little"))


@lru_cache(maxsize=64)
def _id_offsets(prefix: int, first: int) -> bytes:
    """Where ids start behind a prefix of so many characters that count on."""
    return offsets_of([prefix + len(counter) for counter in _COUNTERS[first:]])


def _single_ids(ids_ms: list[int], id_seqs: list[int], valid: Sequence[bool] | None) -> Texts:
    prefixes = {at_ms: f"{at_ms}-" for at_ms in set(ids_ms)}  # many share a millisecond
    highest = max(id_seqs, default=0)
    counters = map(_COUNTERS.__getitem__ if highest < len(_COUNTERS) else str, id_seqs)
    texts = list(map(add, map(prefixes.__getitem__, ids_ms), counters))
    if valid is not None:
        texts = [text if is_valid else "" for text, is_valid in zip(texts, valid, strict=True)]
    elif highest < 10 and len(set(map(len, prefixes.values()))) == 1:
        return Texts("".join(texts).encode(), even_offsets(len(texts[0]), len(texts)))
    return Texts("".join(texts).encode(), offsets_of(map(len, texts)))
