"""The road of a transaction: stage parts, merge them, commit.

    stage    body in a file -> the staging process makes a sorted part of it, synced -> known here
    commit   the staging process merges the parts into one object, synced -> one batch of facts that point into it

The batch is the commit: before it nothing is visible, and it is there as a whole or not at all. What a crash leaves
behind is an object that no fact names. See docs/decisions/0010.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from weakref import WeakValueDictionary

import msgspec

from ..engine.machine import Machine
from ..engine.transactions import REASONS_MAX, is_duplicate
from ..model.commands import Addition, Command, CommitTransaction, ForgetTransactions
from ..model.errors import (
    MillstreamError,
    OutcomeUnknown,
    Reason,
    TooLarge,
    TooMany,
    TransactionRefused,
    Unavailable,
)
from ..model.records import Application
from ..model.replies import Receipt
from ..storage.objects import LocalObjects
from ..storage.transactions import objects as transaction_objects
from ..storage.transactions.objects import decode_additions, object_name, object_number, read_additions
from ..storage.transactions.parts import FOLDER as STAGED
from ..storage.transactions.parts import PartHead, part_name
from .clock import WallClock
from .staged_parts import ALL_PARTS_MAX, PARTS_MAX, App, StagedPart, StagedParts
from .staging_process import MergeJob, StageJob
from .staging_worker import StagingWorker
from .writer import Answer, Writer

log = logging.getLogger(__name__)

MESSAGES_MAX = 2_000_000
STREAMS_MAX = 100_000
_SWEEP_S = 5.0
_SWEEP_PARTS = 1000


class TransactionLimits(msgspec.Struct, frozen=True):
    staged_ttl_s: float
    staged_bytes_max: int
    transaction_bytes_max: int


class PartName(msgspec.Struct, frozen=True):
    """A part as a commit lists it."""

    part: str
    etag: str | None = None


class Committed(msgspec.Struct, frozen=True):
    application: Application
    duplicate: bool


class Transactions:
    def __init__(
        self,
        machine: Machine,
        writer: Writer,
        objects: LocalObjects,
        clock: WallClock,
        worker: StagingWorker,
        limits: TransactionLimits,
        staged: Iterable[StagedPart],
    ) -> None:
        self._machine = machine
        self._writer = writer
        self._objects = objects
        self._clock = clock
        self._worker = worker
        self._limits = limits
        self.parts = StagedParts()
        self._stored = {object_number(name) for name, _ in objects.list(transaction_objects.FOLDER)}
        self._preparing: set[int] = set()  # objects that no fact names yet
        self._locks: WeakValueDictionary[App, asyncio.Lock] = WeakValueDictionary()
        self._sweeper: asyncio.Task[None] | None = None
        self._last_number = 0
        self._garbage = [part_name(part.number) for part in staged if not self._take_up(part)]
        self._last_number = max(self._last_number, *self._stored, 0, 0)
        self.commits = 0

    def _take_up(self, part: StagedPart) -> bool:
        """Know a part again after a restart, unless its time is over."""
        self._last_number = max(self._last_number, part.number)
        if self._is_outdated(part.head):
            return False
        former = self.parts.add(part)
        if former is not None:
            self.parts_replaced(former)
        return True

    # -- its life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._sweeper = asyncio.create_task(self._sweep_forever(), name="transactions")

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        await self._worker.close()
