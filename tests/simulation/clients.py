"""The clients of a simulated node. Each asks for one thing after another, and notes what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from millstream.engine.state import Stream
from millstream.model.commands import Append, Body, Command, Create, Delete, Expire, PublishSnapshot, Touch, Trim
from millstream.model.errors import Conflict, Gone, NotFound, OutcomeUnknown, StreamClosed, Unavailable
from millstream.model.facts import Producer
from millstream.model.replies import Outcome, Receipt
from millstream.node.writer import Answer, Done

from .node import content
from .oracle import FOLDED, JSON, KEYS, PRODUCED, Told

if TYPE_CHECKING:
    from .run import Run


class Client:
    """Writes, reads and deletes whatever comes to its mind."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rng = run.rng
        self.waiting = False  # for an answer
        self.has_asked = False  # in this step

    def begin(self) -> None:
        """A new life: whatever was asked in the last one is never answered."""
        self.waiting = False
        self._rest()

    def _rest(self) -> None:
        self.run.loop.call_later(self.rng.choice((0, 0, 0.001, 0.003, 0.02, 0.3)), self._step)

    def _step(self) -> None:
        if self.run.is_ending:
            return
        self.has_asked = False
        self.act()
        if not self.has_asked:
            self._rest()

    def act(self) -> None:
        key = self.rng.choice(self.run.shared)
        turn = self.rng.random()
        if turn < 0.12:
            self._create(key)
        elif turn < 0.62:
            self._append(key)
        elif turn < 0.8:
            self._look(key)
        elif turn < 0.9:
            self.run.follow(key)
        elif key == "other/moody":
            self._unsettle(key)
        elif key == FOLDED and turn < 0.95:
            self._fold(key)
        elif key == FOLDED:
            self._make_anew(key)

    def _submit(self, command: Command, note: Done) -> None:
        self.waiting = self.has_asked = True
        self.run.submit(command, lambda answer: self._answered(answer, note))

    def _perform(self, work: Coroutine[None, None, Any], note: Callable[[Any], None]) -> None:
        """Do something that waits; the note is of its result, or of its error."""
        self.waiting = self.has_asked = True
        self.run.perform(work, lambda result: self._answered(result, note))

    def _answered(self, answer: Any, note: Callable[[Any], None]) -> None:
        assert self.waiting, "a second answer to one question"
        self.waiting = False
        note(answer)
        self._rest()

    # -- writing -----------------------------------------------------------------------------------------

    def _create(self, key: str) -> None:
        ttl_s = self.rng.choice((None, 1, 1, 2)) if key == "other/moody" else None
        messages = self._messages(key) if self.rng.random() < 0.3 else []
        payload = b"".join(messages)

        def note(answer: Answer) -> None:
            if isinstance(answer, Receipt) and answer.outcome is Outcome.CREATED:
                told = self.run.oracle.stream(answer.number, key)
                told.ttl_s = ttl_s
                self.run.oracle.renewed(told)
                if payload:
                    self.run.oracle.acknowledge(told, answer.tail, payload)

        command = Create(key, self.run.keys[key], ttl_s, body=_body(messages))
        self._submit(command, note)

    def _append(self, key: str) -> None:
        messages = self._messages(key)
        closes = key == "other/moody" and self.rng.random() < 0.05
        if closes:
            self.run.oracle.may_be_closed(key, self.run.node.machine.next_sequence)
        if self.rng.random() < 0.15:
            self._append_in_parts(key, messages)
            return
        command = Append(key, self.run.keys[key], _body(messages), closes)
        if self.run.is_slow and self.rng.random() < 0.8:  # impatient: goes on before the answer
            self._look(key)
            self.run.submit(command, self._noting(key, messages, closes))
        else:
            self._submit(command, self._noting(key, messages, closes))

    def say_last_words(self) -> None:
        """One append to every stream, all in one batch."""
        for key, kind in self.run.keys.items():
            messages = self._messages(key)
            self.run.submit(Append(key, kind, _body(messages)), self._noting(key, messages, False))

    def _append_in_parts(self, key: str, messages: list[bytes]) -> None:
        """As the listener does it: parts first, then the append that names them; a refusal drops them."""
        self.waiting = self.has_asked = True
        writer = self.run.node.writer
        staged = writer.stage(b"".join(messages))

        def was_staged(staged: asyncio.Future[int]) -> None:
            self.waiting = False
            if staged.exception() is not None:
                assert isinstance(staged.exception(), Unavailable | OutcomeUnknown), staged.exception()
                self._rest()
                return
            upload, note = staged.result(), self._noting(key, messages, False)

            def noting(answer: Answer) -> None:
                if not isinstance(answer, Receipt):
                    writer.drop_upload(upload)
                note(answer)

            body = Body(b"", [len(message) for message in messages], None, upload)
            self._submit(Append(key, self.run.keys[key], body), noting)

        staged.add_done_callback(was_staged)

    def _noting(self, key: str, messages: list[bytes], closes: bool) -> Done:
        known = self.run.known(key)
        was_over = known is not None and known.is_over
        payload = b"".join(messages)

        def note(answer: Answer) -> None:
            if isinstance(answer, Receipt):
                assert answer.outcome is Outcome.APPENDED, answer
                told = self.run.oracle.stream(answer.number, key)
                self.run.oracle.acknowledge(told, answer.tail, payload)
                told.closed = told.closed or closes
                assert told is not known or not was_over, f"{key} ({answer.number}) was over, and took an append"
                self.run.oracle.renewed(told)
            elif isinstance(answer, StreamClosed):
                assert known is None or known.closed or known.may_be_closed or known.may_be_gone, "it was open"
            elif isinstance(answer, NotFound):
                assert known is None or not known.must_be_there(self.run.loop.now_s), f"{key} was there"
                self._note_over(known)
            else:
                assert isinstance(answer, Unavailable | OutcomeUnknown), answer

        return note

    def _messages(self, key: str) -> list[bytes]:
        is_json = self.run.keys[key] == JSON
        count = self.rng.choice((1, 1, 2, 3)) if is_json else 1
        fillers = [self.rng.choice((0, 5, 40, 40, 700)) for _ in range(count)]
        return self.run.oracle.mint(fillers, is_json)

    def _unsettle(self, key: str) -> None:
        """Delete, renew, or say that its time is up."""
        stream = self.run.node.machine.find(key)
        kind = self.rng.choice((Delete, Touch, Expire))
        if kind is Delete:
            self._delete(key)
        elif stream is not None:
            self.run.submit(kind(key, stream.number), self._note_expiry)

    def _make_anew(self, key: str) -> None:
        known = self.run.known(key)
        self.run.oracle.may_be_gone(key, self.run.node.machine.next_sequence + 1)
        self.run.submit(Delete(key), self._noting_deletion(known))
        self._create(key)

    def _delete(self, key: str) -> None:
        self.run.oracle.may_be_gone(key, self.run.node.machine.next_sequence + 1)  # a fact of the clock may come first
        self._submit(Delete(key), self._noting_deletion(self.run.known(key)))

    def _note_expiry(self, answer: Answer) -> None:
        if (
            isinstance(answer, Receipt)
            and answer.outcome is Outcome.EXPIRED
            and answer.number in self.run.oracle.streams
        ):
            told = self.run.oracle.streams[answer.number]
            assert not told.must_be_there(self.run.loop.now_s), f"{told.key} was ended early"
            told.deleted = True

    def _note_over(self, known: Told | None) -> None:
        if known is not None:
            known.is_over = True

    def _noting_deletion(self, known: Told | None) -> Done:
        def note(answer: Answer) -> None:
            if isinstance(answer, Receipt) and known is not None and not known.deleted:
                known.deleted = self.run.number(known) == answer.number

        return note

    def _fold(self, key: str) -> None:
        """Publish a snapshot at some message's end, or just trim up to there."""
        stream = self.run.node.visible(key)
        if stream is None:
            return
        told = self.run.oracle.found(stream)
        kept = content(stream, stream.earliest)
        ends = [stream.earliest, *(stream.earliest + at + 1 for at, byte in enumerate(kept) if byte == ord(">"))]
        offset, trims = self.rng.choice((ends[0], self.rng.choice(ends))), self.rng.random() < 0.7
        if trims:
            told.may_be_trimmed = max(told.may_be_trimmed, offset)
        number = stream.number
        if self.rng.random() < 0.2 and told.snapshot is None and not told.snapshots:
            told.may_be_trimmed = max(told.may_be_trimmed, offset)
            trim = Trim(key, offset, number)
            self._submit_later(trim, lambda answer: self._note_trim(answer, number, told, offset))
            return
        state = b"state %d" % self.rng.randrange(10**6)
        told.snapshots.setdefault(offset, set()).add(state)
        command = PublishSnapshot(key, offset, "text/plain", len(state), state[:16], state, trims=trims, number=number)
        self._submit_later(command, lambda answer: self._note_snapshot(answer, number, told, offset, state, trims))

    def _submit_later(self, command: Command, note: Done) -> None:
        """As the listener does it, who has to look at the disk first: meanwhile the name may become another's."""
        self.waiting = self.has_asked = True
        self.run.loop.call_later(self.rng.choice((0, 0.003, 0.02, 0.3)), self._submit, command, note)

    def _note_trim(self, answer: Answer, number: int, told: Told, offset: int) -> None:
        if isinstance(answer, Receipt):
            told.trimmed = max(told.trimmed, offset if answer.number == number else 0)
        else:
            assert isinstance(answer, Unavailable | OutcomeUnknown | NotFound), answer

    def _note_snapshot(self, answer: Answer, number: int, told: Told, offset: int, state: bytes, trims: bool) -> None:
        if isinstance(answer, Receipt):
            assert answer.number == number, f"a snapshot of stream {number} landed on {answer.number}"
            if told.snapshot is None or told.snapshot[0] <= offset:
                told.snapshot = (offset, state)
            told.trimmed = max(told.trimmed, offset if trims else 0)
        else:
            assert isinstance(answer, Unavailable | OutcomeUnknown | Gone | Conflict | NotFound), answer

    # -- reading -----------------------------------------------------------------------------------------

    def _look(self, key: str) -> None:
        stream = self.run.node.visible(key)
        known = self.run.known(key)
        if stream is None:
            assert known is None or not known.must_be_there(self.run.loop.now_s), f"{key} cannot be read"
            self._note_over(known)
            return
        told = self.run.oracle.found(stream)
        assert not told.deleted, f"{key} is back"
        self.run.oracle.show(told, stream.earliest, content(stream, stream.earliest))
        assert stream.tail >= len(told.seen), f"{key} became shorter"
        told.closed = told.closed or stream.closed


class Producing(Client):
    """An idempotent producer: it sends each message until it knows, and so each is there exactly once."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run)
        self.name = name
        self.seq = 0
        self.message: list[bytes] | None = None
        self.was_tried = False

    def act(self) -> None:
        if self.run.node.visible(PRODUCED) is None:
            self._create(PRODUCED)
            return
        if self.message is None:
            self.message, self.was_tried = self._messages(PRODUCED), False
        command = Append(PRODUCED, KEYS[PRODUCED], _body(self.message), False, Producer(self.name, 0, self.seq))
        was_tried, self.was_tried = self.was_tried, True
        message = self.message
        self._submit(command, lambda answer: self._note(answer, was_tried))
        if self.rng.random() < 0.2:  # impatient: the same once more, before the answer
            self.run.submit(command, lambda answer: self._note_repetition(answer, message))

    def _note_repetition(self, answer: Answer, message: list[bytes]) -> None:
        if isinstance(answer, Receipt):
            assert answer.outcome is Outcome.DUPLICATE, answer
            self.run.produced.append(message[0])

    def _note(self, answer: Answer, was_tried: bool) -> None:
        assert self.message is not None
        if not isinstance(answer, Receipt):
            assert isinstance(answer, Unavailable | OutcomeUnknown), answer
            return
        expected = (Outcome.APPENDED, Outcome.DUPLICATE) if was_tried else (Outcome.APPENDED,)
        assert answer.outcome in expected, answer
        assert answer.producer_seq == self.seq, answer
        if answer.outcome is Outcome.APPENDED:
            told = self.run.oracle.stream(answer.number, PRODUCED)
            self.run.oracle.acknowledge(told, answer.tail, self.message[0])
        self.run.produced.append(self.message[0])
        self.seq += 1
        self.message = None


class SimulatedFollower:
    """A live reader: an offset that moves along a stream whenever it is told."""

    def __init__(self, run: Run, stream: Stream, told: Told) -> None:
        self.queued = False
        self.run = run
        self.stream = stream
        self.told = told
        self.offset = stream.earliest

    def stream_changed(self) -> None:
        with self.run.noticing():
            self._catch_up()

    def _catch_up(self) -> None:
        if self.stream.deleted or self.offset < self.stream.earliest:
            self.end()  # the second: what it would read next was trimmed away
            return
        while self.offset < self.stream.tail:
            data = content(self.stream, self.offset, 1000)
            assert data, f"{self.told.key}: an empty read before the tail"
            self.run.oracle.show(self.told, self.offset, data)
            self.offset += len(data)

    def end(self) -> None:
        self.run.node.followers.leave(self.stream, self)
        self.run.following.discard(self)


def _body(messages: list[bytes]) -> Body:
    if len(messages) <= 1:
        return Body(b"".join(messages))
    return Body(b"".join(messages), [len(message) for message in messages])
