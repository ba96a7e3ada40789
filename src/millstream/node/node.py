"""One node: everything between the listeners and the disk, and its life from opening to closing."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from ..engine import leasing
from ..engine.machine import NOTHING, Machine
from ..engine.reading import resolve_offset
from ..engine.state import Stream
from ..model.commands import Command, Expire, Touch
from ..model.errors import NotFound, Unavailable
from ..model.facts import Touched
from ..model.names import split_key
from ..model.positions import format_stream_id
from ..model.records import BucketRecord, StreamRecord
from ..storage.catalog import CatalogReader
from ..storage.data_dir import DataDir, lock_directory
from ..storage.files import Files
from ..storage.journal import LocalJournal, scan_journal
from ..storage.objects import LocalObjects
from ..storage.transactions.objects import StoredPayloads
from .bulk import Bulk
from .clock import Clock, base_of_this_boot, note_base
from .damage import DamageBook
from .expiry import Sweeper
from .feed import Feed
from .followers import Followers
from .leases import LeaseBook
from .listing import Lister
from .long_reads import LongRead, Room
from .reader import Reader
from .recent import RecentFacts
from .record_reader import RecordReader
from .recovery import Replayed, check_agreement, prepare_catalog, replay
from .retention import Retention
from .sightings import Sightings
from .snapshots import remove_orphans
from .staged_parts import Leftovers, find_leftovers
from .staging_worker import StagingWorker
from .transactions import TransactionLimits, Transactions
from .upkeep import Upkeep, UpkeepLimits
from .vital import end_task, failed_work, vital_task
from .writer import Answer, Batch, Done, Writer, streams_with_followers

log = logging.getLogger(__name__)

_WATCH_S = 0.5
_STAGING_NICENESS = 5
_SLOW_COMMIT_MS = 1000  # up to here a restart makes up for it, see `Lease.thinning_ms`
_UNAPPLIED_FACTOR = 3  # checkpoints' worth of facts that may wait before writes are held back


class NodeLimits(msgspec.Struct, frozen=True):
    """What bounds a node. The defaults are those of the settings."""

    journal_file_bytes: int = 64 << 20
    batch_bytes_max: int = 1 << 20
    part_bytes: int = 512 << 10
    checkpoint_bytes: int = 128 << 20
    checkpoint_records: int = 400_000
    checkpoint_age_s: float = 30.0
    hot_bytes_max: int = 512 << 20
    hot_streams_max: int = 150_000
    block_bytes: int = 128 << 10
    merge_segments_min: int = 8
    low_space_bytes: int = 256 << 20
    archive_age_s: float = 86_400.0
    archive_bytes_max: int = 8 << 30
    lease_s: float = 300.0
    producers_max: int = 10_000
    ttl_renewal: bool = True
    append_bytes_max: int = 64 << 20
    staged_ttl_s: float = 86_400.0
    staged_bytes_max: int = 64 << 30
    transaction_bytes_max: int = 4 << 30
    transaction_apps_max: int = 1000
    retention_every_s: float = 60.0


@dataclass(slots=True)
class Recovered:
    """A data directory that is locked, checked and replayed: all of a node that needs no event loop."""

    limits: NodeLimits
    data_dir: DataDir
    files: Files
    lock_fd: int
    journal: LocalJournal
    catalog: CatalogReader
    clock: Clock
    machine: Machine
    objects: LocalObjects
    leftovers: Leftovers
    replayed: list[Replayed]
    recovery_s: float


class Node:
    """Everything runs on the event loop that is running when it is made."""

    def __init__(self, recovered: Recovered) -> None:
        self.limits = limits = recovered.limits
        self.journal = journal = recovered.journal
        self.catalog = catalog = recovered.catalog
        self.clock = clock = recovered.clock
        self.machine = recovered.machine
        self.replayed = sum(len(batch.changes) for batch in recovered.replayed)
        self.recovery_s = recovered.recovery_s
        self._data_dir = recovered.data_dir
        self._files = recovered.files
        self._lock_fd = recovered.lock_fd
        self.objects_root = self._data_dir.objects.absolute()
        self.objects = recovered.objects
        self.damage = DamageBook()
        self.reader = Reader(self.machine, catalog, self.objects, self.damage)
        self.sightings = Sightings(self.machine)
        self._room_for_reads = Room()
        self.records = RecordReader(catalog, self.objects, self.damage)
        self.followers = Followers()
        self.recent = RecentFacts(catalog.state("applied") or 0)
        for batch in recovered.replayed:
            self.recent.add(*batch, [NOTHING if subject is None else fact for subject, fact in batch.changes])
        recovered.replayed.clear()
        self.writer = Writer(
            self.machine,
            journal,
            clock,
            batch_bytes_max=limits.batch_bytes_max,
            part_bytes=limits.part_bytes,
            on_committed=self._committed,
        )
        self.feed = Feed(self.recent, catalog, self.objects, self.damage, self.writer, self.machine.incarnation)
        self.leases = LeaseBook(self._data_dir.root, lease_s=limits.lease_s, now_ms=clock.lease_ms)
        self.bulk = Bulk(self.feed, self.recent, self._data_dir.catalog, self.objects, self.damage, self.leases)
        self.upkeep = self._make_upkeep()
        self.lister = Lister(self.machine, catalog)
        self.sweeper = Sweeper(self.machine, self.writer, catalog, clock)
        self.transactions = self._make_transactions(recovered.leftovers)
        self.retention = Retention(
            self.machine, self.writer, catalog, self.reader, self.lister, clock, every_s=limits.retention_every_s
        )
        remove_orphans(self.objects, catalog, self.machine)
        self._watch: asyncio.Task[None] | None = None
        self._vital: list[asyncio.Task[None]] = []
        self.appended_messages = 0
        self.appended_bytes = 0

    def _make_upkeep(self) -> Upkeep:
        limits = self.limits
        return Upkeep(
            self.machine,
            self.writer,
            self.recent,
            self.objects,
            self.damage,
            UpkeepLimits(
                limits.checkpoint_bytes,
                limits.checkpoint_records,
                limits.checkpoint_age_s,
                limits.hot_bytes_max,
                limits.hot_streams_max,
                limits.block_bytes,
                limits.merge_segments_min,
                limits.archive_age_s,
                limits.archive_bytes_max,
            ),
            data_dir=self._data_dir.root,
            lock_fd=self._lock_fd,
            applied=self.catalog.state("applied") or 0,
            now_s=time.monotonic,
            clock=self.clock,
        )

    def _make_transactions(self, leftovers: Leftovers) -> Transactions:
        limits = self.limits
        helper = partial(StagingWorker, self._data_dir.root, self._lock_fd, limits.append_bytes_max)
        transactions = Transactions(
            self.machine,
            self.writer,
            self.objects,
            self.clock,
            helper(_STAGING_NICENESS),
            helper(),  # somebody waits for a commit, with all that was staged behind him
            TransactionLimits(
                limits.staged_ttl_s,
                limits.staged_bytes_max,
                limits.transaction_bytes_max,
                limits.low_space_bytes,
            ),
            leftovers,
            lambda: self.leases.held().transactions_below,
        )
        transactions.on_committed = self._transaction_committed
        self.upkeep.on_cooled = transactions.cooled
        return transactions

    def start(self) -> None:
        for upload in list(self.machine.uploads):
            self.writer.drop_upload(upload)  # their clients were never answered
        self._watch = vital_task(self._watch_limits(), "limits")
        parts = (self.upkeep, self.sweeper, self.transactions, self.retention)
        self._vital = [self._watch, *(part.start() for part in parts)]

    async def close(self) -> None:
        """Finish what is in flight, then let go of everything."""
        await end_task(self._watch)
        await self.sweeper.stop()
        await self.transactions.close()
        await self.retention.stop()
        await self.writer.drain()
        await self.upkeep.stop()
        self.writer.stop()
        self.journal.close()
        self.catalog.close()
        self.objects.close()
        self._files.close(self._lock_fd)

    # -- for listeners -----------------------------------------------------------------------------------

    def submit(self, command: Command, done: Done) -> bool:
        """Whether the decision was in favour is known at once; `done` gets the answer once it is durable."""
        return self.writer.submit(command, done)

    def visible(self, key: str) -> Stream:
        stream = self.machine.streams.get(key)
        if stream is not None and stream.lease is None and not stream.deleted:
            stream.used = self.machine.coarse_s
            return stream  # the common case
        try:
            return self.machine.visible(key)
        except NotFound:
            self._end_if_over(key)
            raise

    def _end_if_over(self, key: str) -> None:
        """Somebody is told that there is no such stream. If its time is up, that must hold from now on: after a restart
        the deadline may be a little later, and the machine's clock can be set."""
        stream = self.machine.streams.get(key)
        if stream is not None and not stream.deleted:
            self.submit(Expire(key, stream.number), _ignore)

    def present(self, stream: Stream) -> Stream:
        """A stream that somebody saw before he had to wait. It may have left memory meanwhile and come back: only what
        is in memory now is ever told of changes."""
        now = self.visible(stream.key)
        if now.number != stream.number:
            raise NotFound("The stream was deleted; another one has its name.")
        return now

    def long_read(self, stream: Stream, start: int, end: int) -> LongRead:
        return LongRead(self.reader, self.catalog, self._room_for_reads, self.present, stream, start, end)

    def renew(self, stream: Stream) -> None:
        """A read keeps a stream with a sliding TTL alive; now and then that goes into the journal."""
        lease = stream.lease
        if lease is None or lease.ttl_s is None or not lease.sliding or not self.machine.is_visible(stream):
            return
        now = self.clock.lease_ms()
        leasing.renew(stream, now)
        if now - lease.renewed_ms >= lease.thinning_ms():
            self.submit(Touch(stream.key, stream.number), _ignore)

    def seconds_left(self, stream: Stream) -> int | None:
        """How long the stream lives yet, rounded up; None for ever."""
        if stream.lease is None:
            return None
        left_s = max(0, -(-leasing.left_ms(stream, self.clock) // 1000))
        return left_s if stream.lease.ttl_s is None else min(left_s, stream.lease.ttl_s)  # a restart may give a little

    def resolve(self, stream: Stream, offset: int) -> int:
        return resolve_offset(stream, offset)

    def bucket(self, name: str) -> BucketRecord:
        return self.machine.visible_bucket(name)

    def is_private(self, key: str) -> bool:
        """Whether reads of the stream may be kept by the reader only."""
        bucket = self.machine.find_bucket(split_key(key)[0])
        return bucket is not None and bucket.settings.caching == "private"

    def list_streams(self, bucket: str, prefix: str, after: str, limit: int) -> tuple[list[StreamRecord], bool]:
        return self.lister.page(bucket, prefix, after, limit)

    def stream_id(self, number: int) -> str:
        return format_stream_id(self.machine.incarnation, number)

    def trouble(self) -> str | None:
        """Why this node takes no writes, if it does not."""
        refusal = self.writer.refusal
        return None if refusal is None else refusal.message

    def failed_work(self) -> str | None:
        """Which work in the background has ended that must not, if any has."""
        return failed_work(self._vital)

    # -- watching ----------------------------------------------------------------------------------------

    def _committed(self, batch: Batch) -> None:
        self.upkeep.bytes_since_cut += len(batch.buffer)
        self.recent.add(batch.first_sequence, batch.at_ms, batch.changes, batch.told)
        if self.machine.held_bytes > self.limits.hot_bytes_max:
            self.writer.refuse(self._reason_to_refuse())
        if self.machine.answered_ms - batch.at_ms - batch.shift_ms >= _SLOW_COMMIT_MS:
            self._renew_again(batch)
        if self.followers.count:
            self.followers.wake(streams_with_followers(batch))

    def _renew_again(self, batch: Batch) -> None:
        """TTLs count from the answer, which came long after what the journal says: let it know of the later time."""
        for subject, fact in batch.changes:
            if isinstance(subject, Stream) and not isinstance(fact, Touched):  # or it would never come to an end
                self.renew(subject)

    def _transaction_committed(self, size: int) -> None:
        self.upkeep.bytes_since_cut += size

    async def _watch_limits(self) -> None:
        while True:
            try:
                self.writer.refuse(self._reason_to_refuse())
            except OSError as error:
                log.error("The free space of %s cannot be told: %s", self._data_dir.root, error)
            self.writer.look_at_clock()
            await asyncio.sleep(_WATCH_S)

    def _reason_to_refuse(self) -> Unavailable | None:
        free = self._files.free_bytes(self._data_dir.root)
        if free < self.limits.low_space_bytes:
            return Unavailable(
                f"Writes are off: the disk has {free >> 20} MiB left, low_space_bytes is "
                f"{self.limits.low_space_bytes >> 20} MiB. Free some space; they resume by themselves.",
                code="disk_nearly_full",
            )
        if self.machine.held_bytes > self.limits.hot_bytes_max:
            return Unavailable("Too much is waiting to be moved to segments. Try again soon.", code="write_pressure")
        if self.upkeep.unapplied > _UNAPPLIED_FACTOR * self.limits.checkpoint_records:
            return Unavailable("Checkpoints lag behind the writes. Try again soon.", code="write_pressure")
        return None


def open_node(root: Path, limits: NodeLimits, files: Files | None = None) -> Node:
    """Recover a data directory and make it a node, at once."""
    return Node(recover(root, limits, files))


def recover(root: Path, limits: NodeLimits, files: Files | None = None) -> Recovered:
    """Lock the directory, check it, and replay what is needed. Raises `StorageError` and changes nothing."""
    started = time.monotonic()
    files = files or Files()
    data_dir = DataDir(root)
    clock = Clock()
    lock_fd = lock_directory(data_dir)
    try:
        data_dir.prepare(files)
        # Everything is looked at before anything is written: a start that is refused changes nothing.
        scan = scan_journal(data_dir.journal, files)
        check_agreement(data_dir, scan)
        journal = LocalJournal(data_dir.journal, files, file_bytes=limits.journal_file_bytes)
        journal.open(clock.wall_ms(), scan)
        if scan.torn_bytes:
            log.warning("Cut %d bytes of a torn batch off the journal; nobody was told it happened.", scan.torn_bytes)
        incarnation = prepare_catalog(data_dir, files, journal, limits.block_bytes)
        catalog = CatalogReader(data_dir.catalog)
        objects = LocalObjects(data_dir.objects, files)
        machine = Machine(
            catalog,
            incarnation=incarnation,
            time=clock,
            ttl_renewal=limits.ttl_renewal,
            producers_max=limits.producers_max,
            apps_max=limits.transaction_apps_max,
            payloads=StoredPayloads(objects),
        )
        replayed = replay(machine, journal, catalog)
        clock.go_on(machine.timeline, base_of_this_boot(root))
        note_base(root, clock.base_ms)
        leftovers = find_leftovers(objects, machine)
        seconds = time.monotonic() - started
        return Recovered(
            limits, data_dir, files, lock_fd, journal, catalog, clock, machine, objects, leftovers, replayed, seconds
        )
    except BaseException:
        files.close(lock_fd)
        raise


def _ignore(_: Answer) -> None:
    """For writes whose outcome changes nothing for anybody."""
