"""The road of every write: decide, journal, publish, answer, wake.

What is decided while one batch is being synced forms the next (group commit). A batch is written at the end of the
loop's turn and synced by the kernel's workers, or in one thread. Only one is in flight, so that a crash can tear only
the last. Nothing is answered before it is durable, refusals included: they may rest on something in flight.

Hot code: measured by `bench/appends.py`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from ..engine.machine import Change, Machine, Told
from ..engine.state import Stream
from ..model.codec import HEADER_BYTES, array_header, encode_into
from ..model.commands import Command, Delete, DeleteBucket, Expire, Trim
from ..model.errors import MillstreamError, OutcomeUnknown, Refused, Unavailable
from ..model.facts import ClockRead, PartsDropped, PartStored, UploadFact
from ..model.replies import Outcome, Receipt
from ..storage.journal import LocalJournal
from ..storage.kernel_sync import KernelSync
from .clock import Clock

log = logging.getLogger(__name__)

Answer = Receipt | MillstreamError
Done = Callable[[Answer], None]

_FREES_SPACE = (Delete, Expire, Trim, DeleteBucket)  # taken even when the disk is nearly full
_STAGED = Receipt(Outcome.NOTHING, 0, 0, False, "")
_CROWD = 32  # writers who do not all wait for each other; the sync is left to another core
_LARGE_CROWD = 130  # of these most wait for each other: halves cost more than they gain
_NEVER = 1 << 60
_TOLD_STEP_MS = 100  # of the machine's clock; less is nobody's concern
_WRITE_ON_LOOP_MAX = 128 << 10  # larger batches are copied into the page cache by the sync thread


class Batch:
    """Facts on their way to the journal, and who waits for them."""

    __slots__ = ("at_ms", "buffer", "changes", "first_sequence", "shift_ms", "told", "waiters")

    told: list[Told]  # once it is published

    def __init__(self, first_sequence: int, at_ms: int, shift_ms: int) -> None:
        self.first_sequence = first_sequence
        self.at_ms = at_ms
        self.shift_ms = shift_ms  # from there to leases' time
        self.changes: list[Change] = []
        self.buffer = bytearray(HEADER_BYTES)
        self.waiters: list[tuple[Done, Answer]] = []

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + len(self.changes) - 1

    def seal(self) -> None:
        self.buffer[:HEADER_BYTES] = array_header(len(self.changes))


class Writer:
    def __init__(
        self,
        machine: Machine,
        journal: LocalJournal,
        clock: Clock,
        *,
        batch_bytes_max: int,
        part_bytes: int,
        on_committed: Callable[[Batch], None],
    ) -> None:
        self._machine = machine
        self._journal = journal
        self._clock = clock
        self._batch_bytes_max = batch_bytes_max
        self._part_bytes = part_bytes
        self._on_committed = on_committed
        self._loop = asyncio.get_running_loop()
        self._open: Batch | None = None  # takes decisions
        self._sealed: deque[Batch] = deque()  # full, waiting for their turn
        self._flying: Batch | None = None  # being made durable
        self._scheduled = False
        self._enough = _NEVER  # as many waiters need not wait any longer
        self._refusal: Unavailable | None = None  # why no write is taken now
        self._failed = False  # the journal is broken for good
        self._offset_ms = machine.timeline.offset_ms  # from the wall clock to leases' time, as the log was told
        self._jobs: SimpleQueue[tuple[Batch, bool] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._sync_forever, name="journal-sync", daemon=True)
        self._thread.start()
        self._kernels = {kernel.works_elsewhere: kernel for kernel in journal.kernel_syncs()}
        for kernel in self._kernels.values():
            self._loop.add_reader(kernel.fileno, self._kernel_synced, kernel)
        self.committed_sequence = machine.next_sequence - 1
        self.commits = 0

    # -- taking commands -----------------------------------------------------------------------------

    def submit(self, command: Command, done: Done) -> bool:
        """Decide about a command now; `done` gets the answer once it is durable. False if it is a refusal."""
        if self._refusal is not None and (self._failed or type(command) not in _FREES_SPACE):
            done(self._refusal)
            return False
        batch = self._open or self._open_batch()
        before = len(batch.changes)
        try:
            answer: Answer = self._machine.decide(command, batch.at_ms, batch.changes)
        except Refused as refusal:
            # Its traceback would lead back to this frame and keep all of it, body included, until some collection.
            answer = refusal.with_traceback(None)
        changes = batch.changes
        if len(changes) == before:
            self._answer_undecided(batch, done, answer)
            return type(answer) is Receipt
        for _, fact in changes[before:]:
            encode_into(fact, batch.buffer, -1)
        batch.waiters.append((done, answer))
        if self._flying is None or len(batch.buffer) >= self._batch_bytes_max:
            self._queued(batch)
        return True

    def _answer_undecided(self, batch: Batch, done: Done, answer: Answer) -> None:
        """Nothing to journal. But the answer may rest on what is in flight: then it waits for that."""
        if batch.changes:
            batch.waiters.append((done, answer))
            return
        self._open = None  # it would keep the time of a batch that nothing was put into
        if self._sealed:
            self._sealed[-1].waiters.append((done, answer))
        elif self._flying is not None:
            self._flying.waiters.append((done, answer))
        else:
            done(answer)

    def stage(self, body: bytes) -> asyncio.Future[int]:
        """Journal a large body in parts, between other batches; the number of the upload once it is durable."""
        staged: asyncio.Future[int] = self._loop.create_future()
        self._stage_part(memoryview(body), 0, 0, staged)
        return staged

    def _stage_part(self, body: memoryview, at: int, upload: int, staged: asyncio.Future[int]) -> None:
        if self._refusal is not None:
            staged.set_exception(self._refusal)
            if upload:
                self.drop_upload(upload)
            return
        part = bytes(body[at : at + self._part_bytes])
        batch = self._open or self._open_batch()
        number = upload or self._machine.next_sequence

        def part_done(answer: Answer) -> None:
            if staged.done():
                return
            if isinstance(answer, MillstreamError):
                staged.set_exception(answer)
            elif at + len(part) < len(body):
                self._stage_part(body, at + len(part), number, staged)
            else:
                staged.set_result(number)

        self._admit_upload(PartStored(upload, part), batch, part_done)

    def drop_upload(self, upload: int) -> None:
        """The upload was refused after all."""
        if not self._failed:
            self._admit_upload(PartsDropped(upload), self._open or self._open_batch(), lambda _: None)

    def _admit_upload(self, fact: UploadFact, batch: Batch, done: Done) -> None:
        self._admit(fact, batch)
        batch.waiters.append((done, _STAGED))
        self._queued(batch)

    def _admit(self, fact: UploadFact | ClockRead, batch: Batch) -> None:
        self._machine.admit_other(fact, batch.changes)
        encode_into(fact, batch.buffer, -1)

    # -- time ----------------------------------------------------------------------------------------

    def _open_batch(self) -> Batch:
        """A batch that takes decisions from now on. Where the clocks have parted, the log is told so first."""
        at_ms, lease_ms, wall_ms = self._clock.now()
        said = self._machine.shift_ms, self._offset_ms
        self._machine.shift_ms, self._offset_ms = lease_ms - at_ms, lease_ms - wall_ms
        batch = self._open = Batch(self._machine.next_sequence, at_ms, lease_ms - at_ms)
        if abs(said[1] - self._offset_ms) >= _TOLD_STEP_MS:
            log.warning(
                "The machine's clock was set by %+.3f s. Leases are not moved by it, commit times do not go back.",
                (said[1] - self._offset_ms) / 1000,
            )
        if said != (self._machine.shift_ms, self._offset_ms):
            self._admit(ClockRead(wall_ms, lease_ms), batch)
            self._queued(batch)
        return batch

    def look_at_clock(self) -> None:
        """If somebody has set the machine's clock, the log must know before the next start, whether or not somebody
        writes until then: leases would be judged by the wrong time."""
        _, lease_ms, wall_ms = self._clock.now()
        if lease_ms - wall_ms != self._offset_ms and self._open is None and not self._failed:
            self._open_batch()

    # -- committing ----------------------------------------------------------------------------------

    def _queued(self, batch: Batch) -> None:
        if len(batch.buffer) >= self._batch_bytes_max:
            self._sealed.append(batch)
            self._open = None
        if self._flying is not None:
            return
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._commit)
        elif len(batch.waiters) >= self._enough:
            self._commit()

    def _commit(self) -> None:
        self._scheduled = False
        if self._flying is not None or self._failed:
            return
        if self._sealed:
            batch = self._sealed.popleft()
        elif self._open is not None and self._open.changes:
            batch, self._open = self._open, None
        else:
            return
        batch.seal()
        self._flying = batch
        written = False
        if len(batch.buffer) <= _WRITE_ON_LOOP_MAX and self._journal.fits(len(batch.buffer)):
            try:
                self._journal.write(batch.first_sequence, batch.at_ms, batch.buffer)
                written = True
            except OSError as error:
                self._loop.call_soon(self._fail, error)  # soon: whoever is just being taken has not been told that yet
                return
        if not (written and self._begin_sync(len(batch.waiters) >= _CROWD // 2)):
            self._jobs.put((batch, written))

    def _begin_sync(self, elsewhere: bool) -> bool:
        kernel = self._kernels.get(elsewhere) or self._kernels.get(not elsewhere)
        return kernel is not None and self._journal.begin_sync(kernel)

    def _kernel_synced(self, kernel: KernelSync) -> None:
        assert self._flying is not None
        self._synced(self._flying, kernel.collect())

    def _sync_forever(self) -> None:
        while (job := self._jobs.get()) is not None:
            batch, written = job
            error: OSError | None = None
            try:
                if not written:
                    self._journal.write(batch.first_sequence, batch.at_ms, batch.buffer)
                self._journal.sync()
            except OSError as caught:
                error = caught
            try:
                self._loop.call_soon_threadsafe(self._synced, batch, error)
            except RuntimeError:  # the loop is gone: the process is ending, and nobody can be answered
                return

    def _synced(self, batch: Batch, error: OSError | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self._flying = None
        batch.told = self._machine.publish(batch.changes, batch.first_sequence, batch.at_ms, batch.shift_ms)
        self.committed_sequence = batch.last_sequence
        self.commits += 1
        waiting = len(self._open.waiters) if self._open is not None else 0
        self._enough = self._enough_of(waiting + len(batch.waiters))
        if self._sealed or waiting >= self._enough:
            self._commit()  # the disk works on it while this batch is answered
        elif not self._scheduled:
            # In two turns of the loop those who are answered now have asked again: fewer, larger commits.
            self._scheduled = True
            self._loop.call_soon(self._loop.call_soon, self._commit)
        for done, answer in batch.waiters:
            try:
                done(answer)
            except Exception:  # one client's answer must not cost the others theirs
                log.exception("An answer could not be given in a way it must not.")
        self._on_committed(batch)

    def _enough_of(self, writers: int) -> int:
        """How many of a crowd of writers make a commit, so that the loop has work while the disk has.

        Two halves take turns, one at the disk and one at the loop; of a large crowd an eighth is work enough for the
        time of a sync. It does not pay where few share the price of a commit, or where a sync takes this core.
        """
        if writers < _CROWD or True not in self._kernels:
            return _NEVER
        return writers // 2 if writers < _LARGE_CROWD else writers - writers // 8

    # -- refusing ------------------------------------------------------------------------------------

    def refuse(self, refusal: Unavailable | None) -> None:
        """Take no writes for now, or take them again. A broken journal stays refused."""
        if not self._failed:
            self._refusal = refusal

    @property
    def refusal(self) -> Unavailable | None:
        return self._refusal

    def _fail(self, error: OSError) -> None:
        """Never retry a sync, never pretend: whether these facts will be there after a restart is unknown."""
        log.critical(
            "The journal cannot be written: %s. Writes are refused until a restart; reads go on. "
            "Check the disk and its free space, then restart: what was acknowledged is safe.",
            error,
        )
        self._failed = True
        self._refusal = Unavailable(
            f"Writes are off: the journal could not be written ({error.strerror}). The operator must restart it.",
            code="journal_failed",
        )
        batches = [batch for batch in (self._flying, *self._sealed, self._open) if batch is not None]
        self._flying, self._open = None, None
        self._sealed.clear()
        unknown = OutcomeUnknown("The write may or may not have happened: the journal failed. Read before you retry.")
        for batch in batches:
            self._machine.drop_overlays(batch.changes)
            for done, _ in batch.waiters:
                done(unknown)

    async def drain(self) -> None:
        """Wait until nothing is in flight."""
        while not self._is_idle():  # noqa: ASYNC110 - only at shutdown; an event would cost every commit
            await asyncio.sleep(0.001)

    def _is_idle(self) -> bool:
        return self._flying is None and not self._sealed and (self._open is None or not self._open.changes)

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join(timeout=10)
        for kernel in self._kernels.values():
            self._loop.remove_reader(kernel.fileno)
            kernel.close()


def streams_with_followers(batch: Batch) -> list[Stream]:
    """The streams of a batch that somebody watches, each once."""
    watched = {id(subject): subject for subject, _ in batch.changes if type(subject) is Stream and subject.followers}
    return list(watched.values())
