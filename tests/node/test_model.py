"""A node against a dictionary: whatever is asked, checkpointed, merged, evicted, expired or restarted, they agree."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from millstream.model.commands import Append, Body, Create, Delete, Expire
from millstream.model.errors import BadRequest, Fenced, NotFound, SequenceGap
from millstream.model.etags import state_etag
from millstream.model.facts import Producer
from millstream.model.replies import Outcome, Receipt

from .rig import BYTES, JSON, TINY, Rig, body_of
from .times import time_in_hand

KEYS = ("box/a", "box/b", "box/d", "other/c")
HOT_STREAMS_MAX = 1
TTL_S = 100
PASSES_S = 30  # so that nobody is asked in the tenth of a TTL by which a stream may live longer after a restart
keys = st.sampled_from(KEYS)
kinds = st.sampled_from((BYTES, JSON))
sizes = st.sampled_from((1, 3, 20, 90, 300))
rarely = st.sampled_from((False, False, False, True))
bodies = st.lists(sizes, min_size=1, max_size=4)
names = st.sampled_from(("p", "q"))
moves = st.sampled_from(("next", "next", "next", "again", "older", "gap", "stale", "new epoch", "new epoch, not at 0"))


# -- the dictionary ------------------------------------------------------------------------------------------


@dataclass
class Expected:
    """What one stream is, as plainly as can be said."""

    kind: str
    takes_kind: bool = False  # it was created without one: the first append says it
    messages: list[bytes] = field(default_factory=list)
    closed: bool = False
    closed_by: tuple | None = None
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    idle_s: int | None = None  # since it was written to, if it has a TTL

    @property
    def content(self):
        return b"".join(self.messages)

    @property
    def tail(self):
        return len(self.content)

    def boundaries(self):
        return [sum(map(len, self.messages[:count])) for count in range(len(self.messages) + 1)]


class Model:
    """The rules of the protocol, one stream at a time. An answer is a word and what comes with it."""

    def __init__(self):
        self.streams: dict[str, Expected] = {}

    def create(self, key, kind, messages, closed, producer):
        stream = self.streams.get(key)
        if stream is not None:
            wanted = kind or (stream.kind if stream.takes_kind else BYTES)
            if (stream.kind, stream.closed) != (wanted, closed):
                return ("stream_exists",)
            return ("existed", stream.tail, stream.closed)
        if producer is not None and producer.seq != 0:
            return ("producer_sequence_gap", 0, producer.seq)
        stream = self.streams[key] = Expected(kind or BYTES, takes_kind=kind is None and not messages)
        self._write(stream, messages, closed, producer)
        return ("created", stream.tail, stream.closed)

    def append(self, key, kind, messages, closes, producer):
        stream = self.streams.get(key)
        if stream is None:
            return ("not_found",)
        if stream.closed:
            return self._on_closed(stream, messages, producer)
        awaits_kind = stream.takes_kind and not stream.messages
        if messages and kind != stream.kind and not awaits_kind:
            return ("content_type_mismatch",)
        refusal = self._producer_says(stream, producer)
        if refusal is not None and refusal[0] == "duplicate" and closes:
            stream.closed, stream.closed_by = True, (producer.id, producer.epoch, producer.seq)
            return ("duplicate", stream.tail, True)
        if refusal is not None:
            return refusal
        if messages and awaits_kind:
            stream.kind = kind
        self._write(stream, messages, closes, producer)
        return ("appended" if messages else "closed", stream.tail, stream.closed)

    def delete(self, key, seen=None):
        """`seen` is the tail at which the one who deletes has seen the stream; None if that is all the same to him."""
        stream = self.streams.get(key)
        if stream is None:
            return ("not_found",)
        if seen is not None and seen != stream.tail:
            return ("precondition_failed",)
        del self.streams[key]
        return ("deleted", stream.tail, stream.closed)

    def _on_closed(self, stream, messages, producer):
        if producer is not None and stream.closed_by == (producer.id, producer.epoch, producer.seq):
            return ("duplicate", stream.tail, True)
        return ("stream_closed", stream.tail) if messages else ("closed", stream.tail, True)

    def _producer_says(self, stream, producer):
        if producer is None:
            return None
        if producer.id not in stream.producers:
            return None if producer.seq == 0 else ("producer_sequence_gap", 0, producer.seq)
        epoch, last = stream.producers[producer.id]
        if producer.epoch < epoch:
            return ("producer_fenced", epoch)
        if producer.epoch > epoch:
            return None if producer.seq == 0 else ("bad_producer",)
        if producer.seq <= last:
            return ("duplicate", stream.tail, False)
        return None if producer.seq == last + 1 else ("producer_sequence_gap", last + 1, producer.seq)

    def _write(self, stream, messages, closes, producer):
        stream.messages += messages
        if producer is not None:
            stream.producers[producer.id] = (producer.epoch, producer.seq)
        if closes:
            stream.closed = True
            if producer is not None:
                stream.closed_by = (producer.id, producer.epoch, producer.seq)


def said(answer):
    """An answer of the node in the model's words."""
    if isinstance(answer, Receipt):
        return (answer.outcome.value, answer.tail, answer.closed)
    details = {SequenceGap: ("expected", "received"), Fenced: ("epoch",)}.get(type(answer), ())
    if answer.code == "stream_closed":
        details = ("tail",)
    return (answer.code, *(getattr(answer, name) for name in details))


# -- the node beside it --------------------------------------------------------------------------------------


class NodeAndDictionary(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.Runner()
        self.clocks = ExitStack()
        self.time = self.clocks.enter_context(time_in_hand())
        self.rig = Rig(Path(self.folder.name), replace(TINY, hot_streams_max=HOT_STREAMS_MAX))
        self.run(self._opened())
        self.model = Model()
        self.lapsed: dict[str, int] = {}  # streams whose time is up and for which nobody has come yet, by number
        self.staged: list[tuple[int, str, str, list[bytes]]] = []
        self.written = 0

    def run(self, coroutine):
        return self.loop.run(coroutine)

    async def _opened(self):
        self.rig.open()

    def teardown(self):
        try:
            self.everything_is_as_expected()
            self.run(self.rig.crash())
            self.everything_is_as_expected()
        finally:
            self.run(self.rig.node.close())
            self.loop.close()
            self.clocks.close()
            self.folder.cleanup()

    # -- asking

    def messages(self, kind, sizes):
        """Messages that no other stream and no other append has."""
        self.written += 1
        if kind == JSON:
            return [b'"%d.%d%b"' % (self.written, number, b"j" * size) for number, size in enumerate(sizes)]
        return [b"<%d:%b>" % (self.written, b"b" * sum(sizes))]

    def stamp(self, key, name, move):
        """What a producer says next, as the model knows it."""
        stream = self.model.streams.get(key)
        epoch, last = stream.producers.get(name, (0, -1)) if stream is not None else (0, -1)
        epoch, seq = {
            "next": (epoch, last + 1),
            "again": (epoch, max(last, 0)),
            "older": (epoch, max(last - 1, 0)),
            "gap": (epoch, last + 2),
            "stale": (max(epoch - 1, 0), last + 1),
            "new epoch": (epoch + 1, 0),
            "new epoch, not at 0": (epoch + 1, 1),
        }[move]
        return Producer(name, epoch, seq)

    def create_command(self, key, kind, sizes, closed, producer):
        messages = self.messages(kind, sizes) if sizes else []
        expected = self.created(key, self.model.create(key, kind, messages, closed, producer))
        return Create(key, kind, closed=closed, body=body(kind, messages), producer=producer), expected

    def append_command(self, key, kind, sizes, closes, producer):
        messages = self.messages(kind, sizes) if sizes else []
        expected = self.appended(key, kind, messages, closes, producer)
        return Append(key, kind, body(kind, messages), closes, producer), expected

    def created(self, key, expected):
        if expected[0] == "created":
            self.lapsed.pop(key, None)
        is_leased = expected[0] == "existed" and self.model.streams[key].idle_s is not None
        return ("stream_exists",) if is_leased else expected  # we ask for no TTL

    def appended(self, key, kind, messages, closes, producer):
        """What changes a stream renews it."""
        stream = self.model.streams.get(key)
        before = (stream.tail, stream.closed) if stream is not None else None
        expected = self.model.append(key, kind, messages, closes, producer)
        if stream is not None and stream.idle_s is not None and (stream.tail, stream.closed) != before:
            stream.idle_s = 0
        return expected

    async def _answers(self, commands):
        """Ask for all of it in one turn of the loop."""
        futures = [self.rig.submit(command) for command in commands]
        return await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 10)

    def ask(self, *asked):
        answers = self.run(self._answers([command for command, _ in asked]))
        assert [said(answer) for answer in answers] == [expected for _, expected in asked]

    # -- rules: writing

    @initialize()
    def begin_with_some_streams(self):
        self.ask(
            self.create_command("box/a", BYTES, [], False, None),
            self.create_command("box/b", JSON, [], False, None),
        )
        self.create_for_a_while("box/d", JSON)
        self.create_for_a_while("other/c", BYTES)

    @rule(
        key=keys,
        kind=st.none() | kinds,
        sizes=st.lists(sizes, max_size=3),
        closed=rarely,
        seq=st.sampled_from((None, 0, 1)),
    )
    def create(self, key, kind, sizes, closed, seq):
        producer = None if seq is None else Producer("p", 0, seq)
        self.ask(self.create_command(key, kind, sizes, closed and not sizes, producer))

    @rule(key=keys, kind=kinds, sizes=bodies)
    def append(self, key, kind, sizes):
        self.ask(self.append_command(key, self.kind_of(key, kind), sizes, False, None))

    @rule(key=keys, kind=kinds, sizes=bodies)
    def append_with_any_content_type(self, key, kind, sizes):
        self.ask(self.append_command(key, kind, sizes, False, None))

    @rule(key=keys, kind=kinds, sizes=bodies, name=names, move=moves)
    def append_as_a_producer(self, key, kind, sizes, name, move):
        self.ask(self.append_command(key, self.kind_of(key, kind), sizes, False, self.stamp(key, name, move)))

    @rule(key=keys, sizes=st.lists(sizes, max_size=2), name=st.none() | names, move=moves)
    def close(self, key, sizes, name, move):
        producer = None if name is None else self.stamp(key, name, move)
        self.ask(self.append_command(key, self.kind_of(key, BYTES), sizes, True, producer))

    @precondition(lambda self: any(stream.closed_by for stream in self.model.streams.values()))
    @rule(data=st.data(), sizes=st.lists(sizes, max_size=1), other=st.booleans())
    def close_once_more(self, data, sizes, other):
        """The one who closed it tries again, having missed the answer; or another, who comes too late."""
        closed = sorted(key for key, stream in self.model.streams.items() if stream.closed_by)
        key = data.draw(st.sampled_from(closed))
        name, epoch, seq = self.model.streams[key].closed_by
        producer = Producer(name, epoch, seq + other)
        self.ask(self.append_command(key, self.kind_of(key, BYTES), sizes, True, producer))

    @rule(key=keys, kind=st.none() | kinds, again=st.sampled_from((True, True, False)))
    def delete(self, key, kind, again):
        """And mostly take the name again at once, or there would soon be nothing to write to."""
        deleted = Delete(key), self.model.delete(key)
        self.ask(deleted, *([self.create_command(key, kind, [3] if kind else [], False, None)] if again else []))

    @rule(key=keys, behind=st.sampled_from((0, 1, 1)), sizes=st.lists(sizes, max_size=1))
    def delete_if_nothing_has_changed(self, key, behind, sizes):
        """By an ETag that may be older than an append which is still in flight."""
        stream = self.model.streams.get(key)
        if stream is None:
            return
        seen, closed = max(stream.tail - behind, 0), stream.closed
        tag = state_etag(self.rig.node.stream_id(self.rig.stream(key).number), seen, closed)
        appended = [self.append_command(key, stream.kind, [size], False, None) for size in sizes]
        self.ask(*appended, (Delete(key, tag), self.model.delete(key, seen)))

    @rule(keys=st.lists(keys, min_size=2, max_size=6), data=st.data())
    def several_at_once(self, keys, data):
        """In one batch, or one behind the other: decided on top of what is in flight."""
        self.ask(*(asked for key in keys for asked in self._any_commands(key, data)))

    def _any_commands(self, key, data):
        what = data.draw(st.sampled_from(("append", "append", "produce", "produce", "create", "replace", "close")))
        kind = self.kind_of(key, BYTES)
        sizes = data.draw(bodies)
        if what == "replace":
            yield Delete(key), self.model.delete(key)
        if what in ("create", "replace"):
            yield self.create_command(key, data.draw(kinds), sizes, False, None)
            return
        producer = self.stamp(key, data.draw(names), data.draw(moves)) if what == "produce" else None
        yield self.append_command(key, kind, sizes, what == "close", producer)

    def kind_of(self, key, otherwise):
        stream = self.model.streams.get(key)
        return otherwise if stream is None else stream.kind

    # -- rules: large bodies

    @rule(key=keys, sizes=bodies)
    def stage(self, key, sizes):
        kind = self.kind_of(key, BYTES)
        messages = self.messages(kind, sizes)
        upload = self.run(self._staged(b"".join(messages)))
        self.staged.append((upload, key, kind, messages))

    async def _staged(self, payload):
        return await self.rig.node.writer.stage(payload)

    @precondition(lambda self: self.staged)
    @rule(name=st.none() | names, move=moves)
    def append_what_was_staged(self, name, move):
        upload, key, kind, messages = self.staged.pop(0)
        producer = None if name is None else self.stamp(key, name, move)
        expected = self.appended(key, kind, messages, False, producer)
        body = Body(b"", list(map(len, messages)), None, upload)
        self.ask((Append(key, kind, body, False, producer), expected))
        if expected[0] != "appended":
            self.rig.node.writer.drop_upload(upload)

    # -- rules: reading

    @rule(key=keys, place=st.floats(0, 1), bytes_max=st.sampled_from((1, 7, 50, 333, 100_000)))
    def read(self, key, place, bytes_max):
        stream = self.model.streams.get(key)
        if stream is None:
            with pytest.raises(NotFound):
                self.rig.stream(key)
            return
        boundaries = stream.boundaries()
        start = boundaries[int(place * (len(boundaries) - 1))] if stream.kind == JSON else int(place * stream.tail)
        cut = self.run(self.rig.read(key, start, bytes_max))
        pieces = list(map(bytes, cut.pieces))
        assert cut.start == start
        assert b"".join(pieces) == stream.content[start : cut.end]
        assert cut.end > start or start == stream.tail
        if stream.kind == JSON:
            first = boundaries.index(start)
            assert pieces == stream.messages[first : first + len(pieces)]
        assert cut.end - start <= bytes_max or (stream.kind == JSON and len(pieces) == 1)

    @rule(key=keys, beyond=st.integers(1, 1000))
    def read_beyond_the_tail(self, key, beyond):
        if key in self.model.streams:
            with pytest.raises(BadRequest):
                self.run(self.rig.read(key, self.model.streams[key].tail + beyond))

    @rule()
    def everything_is_as_expected(self):
        for key in KEYS:
            stream = self.model.streams.get(key)
            if stream is None:
                with pytest.raises(NotFound):
                    self.rig.stream(key)
                continue
            found = self.rig.stream(key)
            assert (found.tail, found.closed, found.content_type) == (stream.tail, stream.closed, stream.kind)
            assert self.run(self.rig.content(key)) == stream.content
            if stream.kind == JSON:
                assert self.run(self.rig.messages(key, bytes_max=100)) == stream.messages
        for bucket in ("box", "other"):
            count = len([key for key in self.model.streams if key.startswith(bucket)])
            lapsed = len([key for key in self.lapsed if key.startswith(bucket)])
            record = self.rig.node.machine.find_bucket(bucket)
            assert count <= (0 if record is None else record.streams) <= count + lapsed

    # -- rules: time

    @rule(key=keys, kind=kinds)
    def create_for_a_while(self, key, kind):
        if key not in self.model.streams:
            command, expected = self.create_command(key, kind, [3], False, None)
            self.ask((replace(command, ttl_s=TTL_S), expected))
            self.model.streams[key].idle_s = 0

    @rule(steps=st.sampled_from((1, 2, 4)), is_swept=rarely)
    def time_passes(self, steps, is_swept):
        numbers = {key: self.rig.stream(key).number for key in self.model.streams}
        self.time.pass_s(steps * PASSES_S)
        for key, stream in list(self.model.streams.items()):
            if stream.idle_s is not None:
                stream.idle_s += steps * PASSES_S
                if stream.idle_s >= TTL_S:
                    del self.model.streams[key]
                    self.lapsed[key] = numbers[key]
        if is_swept:
            answers = self.run(self._answers([Expire(key, number) for key, number in self.lapsed.items()]))
            assert {answer.outcome for answer in answers} <= {Outcome.EXPIRED, Outcome.NOTHING}  # somebody was here
            self.lapsed.clear()

    # -- rules: what happens behind the scenes

    @rule()
    def checkpoint(self):
        self.rig.checkpoint()

    @rule()
    def merge(self):
        self.rig.merge()

    @rule()
    def checkpoint_and_evict(self):
        self.rig.checkpoint()
        self.rig.evict()
        assert self.rig.node.machine.streams.keys() <= self.lapsed.keys()
        on_their_way = sum(len(part) for parts in self.rig.node.machine.uploads.values() for part in parts)
        assert self.rig.node.machine.hot_bytes == on_their_way

    @rule()
    def checkpoint_and_keep_to_the_limit(self):
        self.rig.checkpoint()
        self.run(self.rig.node.upkeep._evict())
        assert len(self.rig.node.machine.streams.keys() - self.lapsed.keys()) <= HOT_STREAMS_MAX

    @rule()
    def checkpoint_that_the_server_has_not_heard_of(self):
        checkpointer = self.rig.checkpointer()
        checkpointer.advance(self.rig.node.writer.committed_sequence)
        checkpointer.close()

    @rule()
    def restart(self):
        self.run(self.rig.restart())
        self.staged.clear()

    @rule()
    def crash(self):
        self.run(self.rig.crash())
        self.staged.clear()


def body(kind, messages):
    return body_of(messages if kind == JSON else b"".join(messages))


def test_a_node_and_a_dictionary_agree():
    run_state_machine_as_test(
        NodeAndDictionary,
        settings=settings(
            max_examples=70,
            stateful_step_count=50,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
