"""Retention: buckets that say how long or how much their streams keep are swept, slowly, in the background.

Never past the latest snapshot of a stream, and by whole blocks where data lies in segments: what is kept is at least
what the bucket asked for, and at most a block more.
"""

from __future__ import annotations

import asyncio
import logging

from ..engine.machine import Machine
from ..engine.state import Stream
from ..model.commands import Trim
from ..model.errors import CorruptData, MillstreamError, Unavailable
from ..model.facts import BucketSettings
from ..model.records import StreamRecord
from ..model.replies import Outcome, Receipt
from ..storage.catalog import CatalogReader
from .clock import Clock
from .listing import Lister
from .reader import Reader
from .vital import end_task, vital_task
from .writer import Answer, Writer

log = logging.getLogger(__name__)

_PAGE = 200  # streams looked at before the loop gets its turn
_PAUSE_S = 0.01  # between pages: a sweep is never in a hurry


class Retention:
    def __init__(
        self,
        machine: Machine,
        writer: Writer,
        catalog: CatalogReader,
        reader: Reader,
        lister: Lister,
        clock: Clock,
        *,
        every_s: float,
    ) -> None:
        self._machine = machine
        self._writer = writer
        self._catalog = catalog
        self._reader = reader
        self._lister = lister
        self._clock = clock
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None
        self.trimmed = 0

    def start(self) -> asyncio.Task[None]:
        self._task = vital_task(self._run(), "retention")
        return self._task

    async def stop(self) -> None:
        await end_task(self._task)

    async def sweep(self) -> None:
        """Look at every stream of every bucket that has a retention, once."""
        for bucket in self._lister.buckets():
            settings = bucket.settings
            if settings.retention_s is not None or settings.retention_bytes is not None:
                await self._sweep_bucket(bucket.name, settings)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.sweep()

    async def _sweep_bucket(self, name: str, settings: BucketSettings) -> None:
        after, has_more = "", True
        while has_more:
            page, has_more = self._lister.page(name, "", after, _PAGE)
            for record in page:
                try:
                    await self._look_at(name, record, settings)
                except MillstreamError as error:  # the next stream is no worse for it
                    log.error("Retention of %s could not be applied: %s", record.key, error.message)
            if page:
                after = page[-1].key.partition("/")[2]
            await asyncio.sleep(_PAUSE_S)

    async def _look_at(self, bucket: str, record: StreamRecord, settings: BucketSettings) -> None:
        limit = record.tail if record.snapshot is None else record.snapshot.offset
        if record.earliest >= limit:
            return
        stream = record if isinstance(record, Stream) else Stream.from_record(record)
        offset = 0
        if settings.retention_s is not None:
            oldest_ms = self._machine.timeline.older_than(settings.retention_s * 1000, self._clock.lease_ms())
            offset = await self._offset_by_age(stream, oldest_ms)
        if settings.retention_bytes is not None:
            offset = max(offset, self._offset_by_size(stream, settings.retention_bytes))
        now = self._machine.live_bucket(bucket)
        if offset > stream.earliest and now is not None and now.settings == settings:
            self._writer.submit(Trim(stream.key, offset, stream.number, keeps_snapshot=True), self._note)

    async def _offset_by_age(self, stream: Stream, oldest_ms: int) -> int:
        if stream.created_ms >= oldest_ms:
            return 0
        try:
            return await self._reader.offset_since(stream, oldest_ms)
        except (CorruptData, Unavailable):
            # The reader has told of it. A block that cannot be read is kept whole, until all of it is too old.
            extent = self._catalog.extent_since(stream.number, oldest_ms)
            return 0 if extent is None else extent.first_offset

    def _offset_by_size(self, stream: Stream, kept: int) -> int:
        """The last place where a block or an append begins that leaves at least so many bytes."""
        target = stream.tail - kept
        if target <= stream.earliest:
            return 0
        if target >= stream.hot_from:
            return max((record.offset for record in stream.hot or () if record.offset <= target), default=stream.tail)
        extents = self._catalog.extents(stream.number, target, target + 1, 1)
        return extents[0].first_offset if extents else 0

    def _note(self, answer: Answer) -> None:
        if isinstance(answer, Receipt) and answer.outcome is Outcome.TRIMMED:
            self.trimmed += 1
