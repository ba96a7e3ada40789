"""Keys of streams that the catalog may not have yet, by bucket and in order: listings add them to what it says."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator

from ..model.names import split_key

_UNSORTED_MAX = 4096


class NewKeys:
    """There may be a million, and a listing may come after each: neither may walk through the others."""

    def __init__(self) -> None:
        self._of_bucket: dict[str, _SortedKeys] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many were added."""
        return self._count

    def add(self, key: str) -> None:
        self._count += 1
        bucket, _ = split_key(key)
        keys = self._of_bucket.get(bucket)
        if keys is None:
            keys = self._of_bucket[bucket] = _SortedKeys()
        keys.add(key)

    def between(self, bucket: str, first: str, before: str) -> Iterator[str]:
        """In order, from `first` on and before `before`, taken as they are needed. A key may come more than once: the
        stream was deleted and created again."""
        keys = self._of_bucket.get(bucket)
        return iter(()) if keys is None else keys.between(first, before)


class _SortedKeys:
    """Sorted runs, each more than twice as long as the next, and the keys that came since: adding a key costs the
    logarithm of their number, looking one up the same."""

    def __init__(self) -> None:
        self._runs: list[list[str]] = []
        self._unsorted: list[str] = []

    def add(self, key: str) -> None:
        self._unsorted.append(key)
        if len(self._unsorted) >= _UNSORTED_MAX:
            self._sort()

    def between(self, first: str, before: str) -> Iterator[str]:
        if self._unsorted:
            self._sort()
        return heapq.merge(*(_between(run, first, before) for run in self._runs))

    def _sort(self) -> None:
        run, self._unsorted = self._unsorted, []
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = self._runs.pop() + run
        run.sort()  # mostly runs that are sorted already: Timsort only joins them
        self._runs.append(run)


def _between(run: list[str], first: str, before: str) -> Iterator[str]:
    return map(run.__getitem__, range(bisect_left(run, first), bisect_left(run, before)))
