"""The state machine: finds streams, dispatches commands to their rule book, applies facts.

    decide(command, now)  -> a receipt, and facts that now lie over the committed state
    publish(changes)      <- the journal has them: they become the committed state
    replay(fact)          <- the same, at start
    drop_overlays()       <- the journal failed: what was in flight never happened, as far as anybody was told

Everything that affects state lives in this folder. A decision is atomic: every check comes before the first
`admit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..model import commands, facts
from ..model.errors import NotFound
from ..model.facts import Fact, Producer
from ..model.names import split_key
from ..model.records import BucketRecord
from ..model.replies import Receipt
from ..model.timeline import Timeline
from .appending import decide_append
from .applying import apply_appended, apply_to_bucket, apply_to_stream, born
from .buckets import decide_bucket
from .hot_tail import HotTail
from .leasing import UNBORN, begin, is_over, renew
from .lifecycle import decide_create, decide_delete, decide_expire, decide_touch
from .new_keys import NewKeys
from .snapshots import decide_snapshot, decide_trim
from .state import Bucket, HotRecord, Payloads, Shelf, Stream, Time
from .transactions import decide_forget, decide_transaction

_BUCKETS_MAX = 10_000  # in memory; they are small, and every read asks its bucket how it may be cached

# A decided fact and what it is about. A plain tuple: one is made for every append.
Change = tuple[Stream | Bucket | None, Fact]
# A published fact. An append whose payload stays in memory is the record that stays with it: with both, messages of 256
# bytes took a fifth more. Who the producer was is not told.
Told = Fact | HotRecord
NOTHING = facts.PartsDropped(0)  # is told of parts: nobody asks, and their payload is kept elsewhere


class Machine:
    def __init__(
        self,
        shelf: Shelf,
        *,
        incarnation: int,
        time: Time,
        next_sequence: int = 1,
        ttl_renewal: bool = True,
        producers_max: int = 10_000,
        apps_max: int = 1000,
        payloads: Payloads | None = None,
    ) -> None:
        self.incarnation = incarnation
        self.next_sequence = next_sequence  # of the next decided fact
        self.shift_ms = 0  # from commit times to leases' time, of facts that are decided now
        self.timeline = Timeline()  # of the log, as far as it is published
        self.answered_ms = 0  # when that was, in leases' time
        self._time = time
        self.ttl_renewal = ttl_renewal
        self.producers_max = producers_max
        self.apps_max = apps_max  # applications one bucket remembers the transactions of
        self.streams: dict[str, Stream] = {}  # committed; a deleted one stays until the catalog knows
        self.buckets: dict[str, Bucket] = {}
        # Of streams that the catalog may not have yet: created since the last cut, and before it but in a checkpoint
        # that is still under way.
        self.new_keys = NewKeys()
        self.saving_keys = NewKeys()
        self._mortal = NewKeys(), NewKeys()  # those among them that have a lease
        self._hot = HotTail(payloads)
        self.coarse_s = 0  # a coarse clock that the node moves on: enough to know what is idle
        self._arriving: dict[str, Stream] = {}  # created by a fact in flight; readers do not see them
        # Objects of transactions that the segments may not have taken over yet, and the sequence of each commit.
        self.objects: dict[int, int] = {}
        self._shelf = shelf
        self._cut_sequence = 0  # where the last cut for a checkpoint was made
        self._dirty: list[Stream] = []  # changed since then, each once
        self._dirty_buckets: list[Bucket] = []

    @property
    def hot_bytes(self) -> int:
        """Payload that streams have in memory, and bodies on their way to them."""
        return self._hot.bytes

    @property
    def held_bytes(self) -> int:
        """Payload in memory, that of streams that have lost it included; a checkpoint frees it."""
        return self._hot.held_bytes

    @property
    def uploads(self) -> dict[int, list[bytes]]:
        """Parts of bodies that no append has named yet."""
        return self._hot.uploads

    # -- deciding ----------------------------------------------------------------------------------

    def decide(self, command: commands.Command, now_ms: int, changes: list[Change]) -> Receipt:
        """Judge a command; facts go to the end of `changes`. Raises `Refused`, and then nothing has changed."""
        kind = type(command)
        if kind is commands.Append:
            return decide_append(self, command, now_ms, changes)  # type: ignore[arg-type]
        if kind is commands.Create:
            return decide_create(self, command, now_ms, changes)  # type: ignore[arg-type]
        if kind is commands.Touch:
            return decide_touch(self, command, now_ms, changes)  # type: ignore[arg-type]
        if kind is commands.Expire:
            return decide_expire(self, command, now_ms, changes)  # type: ignore[arg-type]
        if kind is commands.Delete:
            return decide_delete(self, command, now_ms, changes)  # type: ignore[arg-type]
        if isinstance(command, commands.CommitTransaction):
            return decide_transaction(self, command, now_ms, changes)
        if isinstance(command, commands.ForgetTransactions):
            return decide_forget(self, command, now_ms, changes)
        if kind is commands.Trim:
            return decide_trim(self, command, now_ms, changes)  # type: ignore[arg-type]
        if kind is commands.PublishSnapshot:
            return decide_snapshot(self, command, now_ms, changes)  # type: ignore[arg-type]
        return decide_bucket(self, command, now_ms, changes)  # type: ignore[arg-type]

    def admit(self, stream: Stream, fact: facts.StreamFact, now_ms: int, changes: list[Change]) -> None:
        """Lay a decided fact over the stream's committed state."""
        if type(fact) is not facts.Appended:
            apply_to_stream(stream.overlay(), fact, now_ms, self.shift_ms)
        elif stream.pending is None:
            stream.pending = (fact, now_ms, self.shift_ms)
        else:
            apply_appended(stream.overlay(), fact, now_ms, self.shift_ms)
        stream.inflight += 1
        if type(fact) is facts.Appended or (type(fact) is facts.Closed and not fact.is_repeated):
            producer = fact.producer
            if producer is not None:
                if stream.pending_producers is None:
                    stream.pending_producers = {}
                stream.pending_producers[producer.id] = (producer.epoch, producer.seq)
        elif type(fact) is facts.StreamDeleted or type(fact) is facts.StreamExpired:
            self._count_in_bucket(stream.key, fact, now_ms)
        self.next_sequence += 1
        changes.append((stream, fact))

    def admit_new(self, fact: facts.StreamCreated, now_ms: int, changes: list[Change]) -> Stream:
        stream = Stream.from_record(born(fact, self.next_sequence, now_ms, self.shift_ms))
        if fact.ttl_s is not None:
            stream.seen_ms = UNBORN
        stream.used = self.coarse_s
        stream.overlay()
        stream.inflight = 1
        self._arriving[fact.key] = stream
        self._count_in_bucket(fact.key, fact, now_ms)
        self.next_sequence += 1
        changes.append((stream, fact))
        return stream

    def admit_bucket_fact(self, fact: facts.BucketFact, now_ms: int, changes: list[Change]) -> None:
        bucket = self.find_bucket(fact.bucket)
        if bucket is None:
            bucket = self.buckets[fact.bucket] = Bucket(fact.bucket, now_ms, deleted=True)
        apply_to_bucket(bucket.overlay(), fact, self.next_sequence, now_ms)
        bucket.inflight += 1
        self.next_sequence += 1
        changes.append((bucket, fact))

    def admit_other(self, fact: facts.UploadFact | facts.ClockRead, changes: list[Change]) -> None:
        """Parts and readings of the clock need no decision."""
        self.next_sequence += 1
        changes.append((None, fact))

    def _count_in_bucket(self, key: str, fact: Fact, now_ms: int) -> None:
        bucket = self.find_bucket(split_key(key)[0])
        assert bucket is not None, key
        apply_to_bucket(bucket.overlay(), fact, self.next_sequence, now_ms)
        bucket.inflight += 1

    # -- finding -----------------------------------------------------------------------------------

    def find(self, key: str) -> Stream | None:
        """The stream as decisions see it, deleted ones included: from memory, or fetched into it."""
        if self._arriving:
            arriving = self._arriving.get(key)
            if arriving is not None:
                return arriving
        return self.streams.get(key) or self._fetch(key)

    def existing(self, key: str) -> Stream:
        stream = None if self._arriving else self.streams.get(key)
        if stream is None:
            stream = self.find(key)
        if stream is not None:
            view = stream if stream.pending is None else stream.overlay()
            if not view.deleted and (view.lease is None or not is_over(stream, view, self._time)):
                stream.used = self.coarse_s
                return stream
        raise NotFound("There is no such stream. Create it with PUT.")

    def visible(self, key: str) -> Stream:
        """The stream as readers see it: committed, not deleted, not expired."""
        stream = self.streams.get(key) or self._fetch(key)
        if stream is None or not self.is_visible(stream):
            raise NotFound("There is no such stream. Create it with PUT.")
        stream.used = self.coarse_s
        return stream

    def is_visible(self, stream: Stream) -> bool:
        return not stream.deleted and (stream.lease is None or not is_over(stream, stream, self._time))

    def is_live(self, stream: Stream) -> bool:
        view = stream.view()
        return not view.deleted and (view.lease is None or not is_over(stream, view, self._time))

    def _fetch(self, key: str) -> Stream | None:
        record = self._shelf.stream(key)
        if record is None:
            return None
        stream = self.streams[key] = Stream.from_record(record)
        stream.used = self.coarse_s
        return stream

    def find_bucket(self, name: str) -> Bucket | None:
        bucket = self.buckets.get(name)
        if bucket is None:
            record = self._shelf.bucket(name)
            if record is None:
                return None
            bucket = self.buckets[name] = Bucket.from_record(record)
        return bucket

    def live_bucket(self, name: str) -> BucketRecord | None:
        """The bucket as decisions see it."""
        bucket = self.find_bucket(name)
        return None if bucket is None or bucket.view().deleted else bucket.view()

    def visible_bucket(self, name: str) -> Bucket:
        """The bucket as readers see it."""
        bucket = self.find_bucket(name)
        if bucket is None or bucket.deleted:
            raise NotFound("There is no such bucket. Create it with PUT.", code="bucket_not_found")
        return bucket

    def producer_state(self, stream: Stream, producer_id: str) -> tuple[int, int] | None:
        """(epoch, seq) of a producer as decisions see it."""
        if stream.pending_producers is not None:
            pending = stream.pending_producers.get(producer_id)
            if pending is not None:
                return pending
        loaded = stream.producers
        if loaded is None:
            loaded = stream.producers = {}
        state = loaded.get(producer_id)
        if state is None and stream.writers is not None and stream.writers.producer_count > len(loaded):
            state = self._shelf.producer(stream.number, producer_id)
            if state is not None:
                loaded[producer_id] = state
        return state

    # -- committing --------------------------------------------------------------------------------

    def publish(self, changes: Sequence[Change], first_sequence: int, at_ms: int, shift_ms: int) -> list[Told]:
        """The journal holds these facts: make them the committed state. What is to be remembered of each."""
        told: list[Told] = []
        self.timeline.at_ms = at_ms
        self.answered_ms = lease_ms = self._time.lease_ms()  # who waits for these facts is told now
        for sequence, (subject, fact) in enumerate(changes, first_sequence):
            remembered: Told = fact
            if type(subject) is Stream:
                if type(fact) is facts.Appended:
                    remembered = self._commit_append(subject, fact, sequence, at_ms, shift_ms)
                    if subject.lease is not None:
                        renew(subject, lease_ms)
                elif type(fact) is facts.StreamCreated:
                    self._publish_new(subject, fact, sequence, at_ms)
                    begin(subject, lease_ms)
                else:
                    self._commit(subject, fact, sequence, at_ms, shift_ms)  # type: ignore[arg-type]
                    if type(fact) is facts.Closed or type(fact) is facts.SnapshotPublished:
                        renew(subject, lease_ms)
                subject.settle()
            elif isinstance(subject, Bucket):
                self._commit_bucket(subject, fact, sequence, at_ms)
                subject.settle()
            else:
                self._apply_other(fact, sequence, at_ms)
                remembered = NOTHING
            told.append(remembered)
        return told

    def _publish_new(self, stream: Stream, fact: facts.StreamCreated, sequence: int, at_ms: int) -> None:
        assert stream.number == sequence, (stream.number, sequence)
        self.streams[fact.key] = stream
        self.new_keys.add(fact.key)
        if stream.lease is not None:
            self._mortal[0].add(fact.key)
        if self._arriving.get(fact.key) is stream:
            del self._arriving[fact.key]
        self._settle_bucket(fact.key, fact, sequence, at_ms)
        self._mark_dirty(stream, sequence)

    def _commit(self, stream: Stream, fact: facts.StreamFact, sequence: int, at_ms: int, shift_ms: int) -> None:
        if type(fact) is facts.Appended:
            self._commit_append(stream, fact, sequence, at_ms, shift_ms)
            return
        apply_to_stream(stream, fact, at_ms, shift_ms)
        if isinstance(fact, facts.Closed) and fact.producer is not None and not fact.is_repeated:
            _remember(stream, fact.producer)
        if isinstance(fact, facts.SnapshotPublished):
            self._hot.hold_snapshot(stream, (sequence, fact.payload) if fact.payload else None)
            self._hot.drop_trimmed(stream)
        elif isinstance(fact, facts.Trimmed):
            if stream.snapshot is None:
                self._hot.hold_snapshot(stream, None)
            self._hot.drop_trimmed(stream)
        if stream.deleted:
            self._hot.hold_snapshot(stream, None)
            self._hot.free(stream)
            self._settle_bucket(stream.key, fact, sequence, at_ms)
        self._mark_dirty(stream, sequence)

    def _commit_append(self, stream: Stream, fact: facts.Appended, sequence: int, at_ms: int, shift_ms: int) -> Told:
        """What is to be remembered: the record that the stream has of the append, where that says it all."""
        told: Told = fact
        apply_appended(stream, fact, at_ms, shift_ms)
        if fact.payload:
            record = self._hot.keep(stream, fact, sequence, at_ms)
            if not fact.closes:
                told = record
        elif fact.stored is not None:
            self._hot.keep_stored(stream, fact, sequence, at_ms)
        elif fact.upload is not None:
            self._hot.keep_upload(stream, fact, sequence, at_ms)
        if fact.producer is not None:
            _remember(stream, fact.producer)
        if stream.changed <= self._cut_sequence:
            self._dirty.append(stream)
        stream.changed = sequence
        return told

    def _apply_other(self, fact: Fact, sequence: int, at_ms: int) -> None:
        if type(fact) is facts.ClockRead:
            self.timeline.take(fact, at_ms)
        else:
            self.apply_upload(fact, sequence)  # type: ignore[arg-type]

    def apply_upload(self, fact: facts.UploadFact, sequence: int) -> None:
        if isinstance(fact, facts.PartsDropped):
            self.drop_upload(fact.upload)
        elif fact.upload == 0 or fact.upload in self.uploads:
            self._hot.add_part(fact.upload or sequence, fact.payload)
        # Else a replay has begun in the middle of an upload, which therefore has been sealed or dropped long since.

    def drop_upload(self, upload: int) -> None:
        self._hot.take_upload(upload)

    def _settle_bucket(self, key: str, fact: Fact, sequence: int, at_ms: int) -> None:
        bucket = self.find_bucket(split_key(key)[0])
        assert bucket is not None, key
        apply_to_bucket(bucket, fact, sequence, at_ms)
        self._bucket_changed(bucket, sequence)
        bucket.settle()

    def _commit_bucket(self, bucket: Bucket, fact: Fact, sequence: int, at_ms: int) -> None:
        apply_to_bucket(bucket, fact, sequence, at_ms)
        self._bucket_changed(bucket, sequence)
        if isinstance(fact, facts.TransactionCommitted) and fact.object is not None:
            self.objects[fact.object] = sequence

    def _bucket_changed(self, bucket: Bucket, sequence: int) -> None:
        if bucket.changed <= self._cut_sequence:
            self._dirty_buckets.append(bucket)
        bucket.changed = sequence

    def _mark_dirty(self, stream: Stream, sequence: int) -> None:
        if stream.changed <= self._cut_sequence:
            self._dirty.append(stream)
        stream.changed = sequence

    def drop_overlays(self, changes: Sequence[Change]) -> None:
        """The journal did not take these facts: forget that they were decided."""
        self._arriving.clear()
        for subject, _ in changes:
            if subject is not None:
                subject.pending = None
                subject.inflight = 0
            if isinstance(subject, Stream):
                subject.pending_producers = None
        for bucket in self.buckets.values():
            bucket.pending, bucket.inflight = None, 0

    # -- replaying ---------------------------------------------------------------------------------

    def replayed_stream(self, number: int, known: dict[int, Stream]) -> Stream:
        """The stream a replayed fact is about; `known` maps numbers to streams for the time of the replay."""
        stream = known.get(number)
        if stream is None:
            record = self._shelf.stream_numbered(number)
            assert record is not None, f"a fact names stream {number}, which nobody created"
            stream = known[number] = self.streams[record.key] = Stream.from_record(record)
        return stream

    def replay(self, fact: Fact, sequence: int, at_ms: int, known: dict[int, Stream]) -> None:
        """Apply one journaled fact at start."""
        assert sequence == self.next_sequence, (sequence, self.next_sequence)
        self.next_sequence += 1
        self.timeline.at_ms = at_ms
        kind = type(fact)
        if kind is facts.StreamCreated:
            assert isinstance(fact, facts.StreamCreated)
            stream = known[sequence] = Stream.from_record(born(fact, sequence, at_ms, self.timeline.shift_ms))
            self._replayed_in_bucket(fact.key)
            self._publish_new(stream, fact, sequence, at_ms)
        elif isinstance(fact, facts.BucketFact):
            self._replay_bucket(fact, sequence, at_ms)
        elif isinstance(fact, facts.UploadFact | facts.ClockRead):
            self._apply_other(fact, sequence, at_ms)
        else:
            stream = self.replayed_stream(fact.stream, known)  # type: ignore[union-attr]
            if kind is facts.StreamDeleted or kind is facts.StreamExpired:
                self._replayed_in_bucket(stream.key)
            self._commit(stream, fact, sequence, at_ms, self.timeline.shift_ms)  # type: ignore[arg-type]
            if stream.lease is not None:
                renew(stream, stream.lease.promised_ms())

    def _replayed_in_bucket(self, key: str) -> None:
        bucket = self.find_bucket(split_key(key)[0])
        assert bucket is not None, key
        bucket.inflight += 1  # `_settle_bucket` takes it off again

    def _replay_bucket(self, fact: facts.BucketFact, sequence: int, at_ms: int) -> None:
        bucket = self.find_bucket(fact.bucket)
        if bucket is None:
            bucket = self.buckets[fact.bucket] = Bucket(fact.bucket, at_ms, deleted=True)
        self._commit_bucket(bucket, fact, sequence, at_ms)

    # -- leaving memory ----------------------------------------------------------------------------

    def cut(self, sequence: int) -> tuple[list[Stream], list[Bucket]]:
        """What has changed since the last cut: a checkpoint up to `sequence`, the last that was published,
        will have it in the catalog."""
        cut = self._dirty, self._dirty_buckets
        self._dirty, self._dirty_buckets, self._cut_sequence = [], [], sequence
        self._hot.cut(sequence)
        self.saving_keys, self.new_keys = self.new_keys, NewKeys()
        self._mortal = NewKeys(), self._mortal[0]
        return cut

    def mortal_keys(self, bucket: str) -> Iterator[str]:
        """Keys of streams with a lease that the catalog may not have yet."""
        for keys in self._mortal:
            yield from keys.between(bucket, f"{bucket}/", f"{bucket}0")  # "0" follows "/"

    def cut_is_saved(self) -> None:
        """The catalog has everything up to the last cut."""
        self._hot.cut_is_saved()
        self.saving_keys = NewKeys()
        self._mortal = self._mortal[0], NewKeys()

    def checkpointed(self, stream: Stream, sequence: int, at_most: int = 1 << 60) -> int:
        """The catalog and the segments have all of the stream's changes up to `sequence`: let go of what that spares,
        so many messages at most. How many went."""
        dropped = self._hot.drop_through(stream, sequence, at_most)
        if stream.snapshot_hot is not None and stream.snapshot_hot[0] <= sequence:
            self._hot.hold_snapshot(stream, None)
        if stream.deleted and stream.changed <= sequence and self.streams.get(stream.key) is stream:
            del self.streams[stream.key]
        return dropped

    def bucket_checkpointed(self, bucket: Bucket, sequence: int) -> None:
        if bucket.changed > sequence or bucket.inflight or self.buckets.get(bucket.name) is not bucket:
            return
        if bucket.deleted or len(self.buckets) > _BUCKETS_MAX:
            del self.buckets[bucket.name]

    def evict_idle(self, stream: Stream, checkpointed_sequence: int, used_before_s: int) -> bool:
        """Let a stream go that the catalog has, and nobody needs or has asked for lately; whether it went."""
        if stream.changed > checkpointed_sequence or stream.inflight or stream.followers or stream.hot:
            return False  # `changed` covers a snapshot that is still in memory
        if stream.used >= used_before_s or self.streams.get(stream.key) is not stream:
            return False
        if not self.is_live(stream):
            return False  # expired: fetched again it would live a little longer, and be back
        del self.streams[stream.key]
        return True


def _remember(stream: Stream, producer: Producer) -> None:
    if stream.producers is None:
        stream.producers = {}
    stream.producers[producer.id] = (producer.epoch, producer.seq)
