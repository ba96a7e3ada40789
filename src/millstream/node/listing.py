"""Listing a bucket: what the catalog has, with what it does not have yet or still has.

A page costs the same in a bucket of a million: it reads a range of the catalog's index, and of sorted names in memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ..engine.machine import Machine
from ..engine.state import Stream
from ..model.records import BucketRecord, StreamRecord
from ..storage.catalog import CatalogReader

_LAST = "\U0010ffff" * 2  # sorts behind every name


class Lister:
    def __init__(self, machine: Machine, catalog: CatalogReader) -> None:
        self._machine = machine
        self._catalog = catalog

    def page(self, bucket: str, prefix: str, after: str, limit: int) -> tuple[list[StreamRecord], bool]:
        """Up to `limit` streams whose names start with `prefix`, behind `after`; and whether there are more."""
        base = f"{bucket}/{prefix}"
        first = max(base, _behind(f"{bucket}/{after}")) if after else base
        found: list[StreamRecord] = []
        for key, record in self._candidates(bucket, first, base, limit + 1):
            stream = self._machine.streams.get(key)
            if stream is not None:
                if not stream.deleted and self._machine.is_visible(stream):
                    found.append(stream)
            elif record is not None and (record.lease is None or self._machine.is_visible(Stream.from_record(record))):
                found.append(record)
            if len(found) > limit:
                return found[:limit], True
        return found, False

    def buckets(self) -> list[BucketRecord]:
        """All buckets there are, in no order."""
        records = {record.name: record for record in self._catalog.buckets()}
        records.update(self._machine.buckets)
        return [record for record in records.values() if not record.deleted]

    def _candidates(self, bucket: str, first: str, base: str, page: int) -> Iterator[tuple[str, StreamRecord | None]]:
        """Keys in order, each once, with the catalog's record where it has one."""
        before = base + _LAST
        fresh = self._fresh_keys(bucket, first, before)
        key = next(fresh, before)
        while True:
            records = self._catalog.streams_between(first, before, page)
            for record in records:
                while key < record.key:
                    yield key, None
                    key = next(fresh, before)
                if key == record.key:
                    key = next(fresh, before)
                yield record.key, record
            if len(records) < page:
                break
            first = _behind(records[-1].key)
        while key != before:
            yield key, None
            key = next(fresh, before)

    def _fresh_keys(self, bucket: str, first: str, before: str) -> Iterator[str]:
        """Keys that the catalog may lack, in order, each once. Taken as they are needed: there may be a million."""
        machine = self._machine
        kinds = (machine.new_keys, machine.saving_keys)
        previous = None
        for key in heapq.merge(*(keys.between(bucket, first, before) for keys in kinds)):
            if key != previous:
                yield key
            previous = key


def _behind(key: str) -> str:
    """The smallest string that sorts after a key; no key holds a NUL."""
    return key + "\0"
