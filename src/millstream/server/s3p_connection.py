"""One S3P connection: bytes in, commands out, replies back in order (S3P sections 4 and 13).

Writes are submitted as soon as they are decoded, so that everything a client pipelines shares a group commit; the
decision about each is known at once, so nothing behind a refused one is executed. Reading commands, trims and large
appends wait until what came before them is answered, and hold back what comes after.

Hot code: measured by `bench/s3p.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from ..model.commands import Command
from ..model.errors import MillstreamError, Unavailable
from ..model.replies import APPENDED, Receipt
from ..node.writer import Answer
from ..protocol.s3p.commands import AppendRecords, CreateStream, DeleteStream, ReadRecords, S3pCommand, TrimStream
from ..protocol.s3p.decoder import Decoder
from ..protocol.s3p.error_table import code_of, message_of
from ..protocol.s3p.replies import OK, error_reply, id_reply
from .descriptors import TOLD_MAX
from .draining import Drain

if TYPE_CHECKING:
    from .s3p_listener import S3pListener

log = logging.getLogger(__name__)

_LINGER_S = 2.0
_OWED_MAX = 1024  # commands in flight before the next is taken
_OWED_BYTES_MAX = 1 << 20
_AHEAD_MAX = 64 << 10  # bytes of commands that cannot begin yet


class Waiting(Protocol):
    """What a connection is busy with besides writes: a blocked READ, or work in the background."""

    def cancel(self) -> None:
        """The client is gone."""

    def end(self) -> None:
        """The server stops: finish cleanly."""


class S3pConnection(asyncio.Protocol):
    __slots__ = (
        "_closing",
        "_decoder",
        "_drain",
        "_ended",
        "_held",
        "_kept",
        "_last_words",
        "_lingering",
        "_listener",
        "_loop",
        "_name",
        "_owed",
        "_owed_bytes",
        "_paused",
        "_reading",
        "_replies",
        "_taking",
        "_transport",
        "_turning",
        "_working",
        "deadline",
        "waiting",
    )

    def __init__(self, listener: S3pListener) -> None:
        self._listener = listener
        self._loop = listener.loop
        self._decoder = Decoder(listener.limits)
        self._drain = Drain()
        self._transport: asyncio.Transport | None = None
        self._replies: list[bytes] = []
        self._turning = False  # `_turn` is due
        self._owed = 0  # writes submitted and not answered
        self._owed_bytes = 0
        self._held: S3pCommand | None = None  # waits until nothing is owed
        self._last_words: tuple[MillstreamError, bytes] | None = None  # the error this connection ends with
        self._name = b""  # of the stream that the last command was about
        self._kept = 0  # bytes of a command that is not here in full
        self._taking = True  # False once nothing more is to be executed
        self._working = False
        self._reading = True
        self._paused = False  # the client does not take its replies
        self._ended = False  # the client has said all it had to say
        self._closing = False
        self._lingering = False
        self.waiting: Waiting | None = None
        self.deadline = listener.now + listener.settings.s3p_idle_timeout_s

    # -- transport -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class; it has all of one's methods
        self._transport.set_write_buffer_limits(high=256 << 10)
        over = self._listener.admit(self)
        if over > TOLD_MAX:
            self.abort()
        elif over > 0:
            self.fail(Unavailable("the server has as many connections as it takes; try again later"))
        elif self._listener.handlers is None:
            self.fail(Unavailable("the server recovers its data; try again soon"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._listener.forget(self)
        self._let_go()
        self._held = None
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.cancel()

    def pause_writing(self) -> None:
        self._paused = True
        self._watch_drain()

    def resume_writing(self) -> None:
        self._paused = False
        self.deadline = 0.0
        if self._lingering or self._closing:
            self._watch_drain()  # there is a rest that must be taken as well
        self._work()

    def _watch_drain(self) -> None:
        """From now on the client has to take something in time."""
        self._drain.watch(self._transport)
        self.deadline = self._listener.now + self._listener.settings.drain_timeout_s

    def eof_received(self) -> bool:
        """The client has said all it had to say; it still gets its replies."""
        if self._lingering or self._closing:
            return False
        self._work()  # what has arrived and not begun yet
        self._flush()
        self._ended = True
        return not self._is_idle()

    def data_received(self, data: bytes) -> None:
        if not self._taking:
            return
        self._decoder.feed(data)
        self._work()

    # -- taking commands -----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Begin every command that may begin."""
        if self._working or self._transport is None:
            return
        self._working = True
        began = False
        try:
            while self._may_begin():
                command = self._held or self._decoder.next_command()
                if command is None:
                    break
                self._held = None
                began = True
                self._begin(command)
        except MillstreamError as error:
            self.fail(error)
        except Exception:
            log.exception("An S3P command failed in a way it must not.")
            self.fail(Unavailable("the server made a mistake; it is in its log"))
        finally:
            self._working = False
        if self._last_words is None:
            self._watch_input(began)

    def _may_begin(self) -> bool:
        if not self._taking or self.waiting is not None or self._paused:
            return False
        if self._held is not None:
            return self._owed == 0
        return self._owed < _OWED_MAX and self._owed_bytes < _OWED_BYTES_MAX

    def _begin(self, command: S3pCommand) -> None:
        handlers = self._listener.handlers
        assert handlers is not None
        kind = type(command)
        is_small = kind is AppendRecords and len(command.body.payload) <= handlers.part_bytes  # type: ignore[union-attr]
        if self._owed and not (is_small or kind is CreateStream or kind is DeleteStream):
            self._held = command
            return
        self._name = command.name
        self._listener.commands[kind] += 1
        if is_small:
            self._owed_bytes += len(command.body.payload)  # type: ignore[union-attr]
            handlers.append(self, command)  # type: ignore[arg-type]
        elif kind is ReadRecords:
            handlers.read(self, command)  # type: ignore[arg-type]
        elif kind is CreateStream:
            handlers.create(self, command)  # type: ignore[arg-type]
        elif kind is DeleteStream:
            handlers.delete(self, command)  # type: ignore[arg-type]
        elif kind is TrimStream:
            handlers.trim(self, command)  # type: ignore[arg-type]
        else:
            handlers.append_large(self, command)  # type: ignore[arg-type]

    def _watch_input(self, began: bool) -> None:
        """Read on if more can be taken; count what is kept, and what time the client has for the next command."""
        transport, listener = self._transport, self._listener
        if transport is None or self._closing:
            return
        held = self._decoder.held_bytes
        # A little is read ahead of a command that waits: who never reads never sees that its client is gone.
        wants_more = held < _AHEAD_MAX or self._may_begin()
        if wants_more != self._reading:
            self._reading = wants_more
            transport.resume_reading() if wants_more else transport.pause_reading()
        if held != self._kept:
            listener.inflight_bytes += held - self._kept
            self._kept = held
            if listener.inflight_bytes > listener.settings.inflight_bytes_max:
                self.fail(Unavailable("the server holds as many commands as it takes; try again"))
                return
        if self._is_idle():
            if self._ended:
                self.close()
            elif began or self.deadline == 0.0:
                self.deadline = listener.now + listener.settings.s3p_idle_timeout_s
        elif not self._paused:
            self.deadline = 0.0

    def _is_idle(self) -> bool:
        """Nothing is being done for the client."""
        return self._owed == 0 and self.waiting is None and self._held is None and not self._paused

    # -- answering -----------------------------------------------------------------------------------------

    def _written(self, answer: Answer) -> None:
        """A submitted write is durable, or refused. Answers come in the order of submission, except that a server which
        takes no writes says so at once: that one is the last, and waits for those before it."""
        self._owed -= 1
        if type(answer) is Receipt:
            if answer.outcome is APPENDED:
                ms, seq = answer.last_id  # type: ignore[misc]
                self.reply(id_reply(ms, seq))
            else:
                self.reply(OK)
        else:
            self.fail(answer)  # type: ignore[arg-type]
        if not self._owed:
            self._owed_bytes = 0
            if self._last_words is not None:
                self._say_last_words()
            else:
                self._flush()  # now rather than in a turn of its own, which followers may have before us

    def submit(self, command: Command) -> None:
        """Ask for a write. If it will be refused, once its answer is due, nothing after it is executed."""
        assert self._listener.handlers is not None
        self._owed += 1
        if not self._listener.handlers.node.submit(command, self._written):
            self._taking = False

    def answer(self, answer: Answer) -> None:
        """The answer to a write that nothing was submitted beside."""
        self._owed += 1
        self._written(answer)

    def reply(self, data: bytes) -> None:
        """Replies of one turn leave together, and then there may be room for more commands."""
        self._replies.append(data)
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        self._flush()
        if not self._owed:
            self._work()

    def reply_pieces(self, pieces: Sequence[bytes]) -> None:
        """A reply that is worth a write of its own."""
        self._replies.extend(pieces)
        self._flush()

    def _flush(self) -> None:
        replies, self._replies = self._replies, []
        if self._transport is None or not replies:
            return
        if len(replies) == 1:
            self._transport.write(replies[0])
        else:
            self._transport.writelines(replies)

    def resume(self) -> None:
        """Something is answered: perhaps there is more to do."""
        if self.waiting is None:
            self._work()

    def in_background(self, work: Coroutine[None, None, None], *, is_write: bool = False) -> None:
        """Do something that waits; what goes wrong is answered as everywhere. A write goes on without its client."""
        task = asyncio.create_task(self._answering(work))
        self._listener.tasks.add(task)
        task.add_done_callback(self._listener.tasks.discard)
        self.waiting = _Task(task, is_write)

    async def _answering(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except MillstreamError as error:
            self.fail(error)
        except Exception:
            log.exception("An S3P command failed in a way it must not.")
            self.fail(Unavailable("the server made a mistake; it is in its log"))
        if isinstance(self.waiting, _Task):
            self.waiting = None
            self.resume()

    # -- ending --------------------------------------------------------------------------------------------

    def fail(self, error: MillstreamError) -> None:
        """Answer what came before, then the error, then close: nothing after it is executed."""
        self._taking = False
        self._let_go()
        if self._last_words is None:
            self._last_words = (error, self._name)
        self.deadline = 0.0
        if not self._owed:
            self._say_last_words()

    def _let_go(self) -> None:
        """Keep nothing of commands that will not be executed."""
        self._listener.inflight_bytes -= self._kept
        self._kept = 0
        self._decoder = Decoder(self._listener.limits)

    def _say_last_words(self) -> None:
        assert self._last_words is not None
        if self._transport is None or self._lingering:
            return
        error, name = self._last_words
        self._listener.count_error(code_of(error))
        self._replies.append(error_reply(code_of(error), message_of(error, name)))
        self._flush()
        self._linger()

    def _linger(self) -> None:
        """Closing at once with bytes unread would reset the connection and could destroy the error on its way."""
        self._lingering = True
        self._listener.lingering[self] = None
        if not self._paused:
            self._drain.watch_later()
            self.deadline = self._listener.now + _LINGER_S
        transport = self._transport
        if transport is None:
            return
        if not self._reading:
            self._reading = True
            transport.resume_reading()
        if self._ended:
            self.close()
        elif transport.can_write_eof():
            transport.write_eof()

    def timed_out(self) -> None:
        """The deadline has passed."""
        if self._transport is None:
            return
        if not (self._paused or self._lingering or self._closing):
            self.close()
        elif self._drain.has_moved(self._transport):
            self.deadline = self._listener.now + self._listener.settings.drain_timeout_s
        else:
            self.abort()

    def close(self) -> None:
        """Close when everything is sent; a client that does not take it is dropped."""
        self._flush()
        self._closing = True
        self._taking = False
        self._watch_drain()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def stop(self) -> None:
        """The server stops: answer what has begun, begin nothing more."""
        self._ended = True
        self._taking = False
        self._held = None
        if self.waiting is not None:
            self.waiting.end()
        if self._is_idle():
            self.close()


class _Task:
    """Work in the background, as something to wait for."""

    __slots__ = ("_is_write", "_task")

    def __init__(self, task: asyncio.Task[None], is_write: bool) -> None:
        self._task = task
        self._is_write = is_write

    def cancel(self) -> None:
        if not self._is_write:
            self._task.cancel()

    def end(self) -> None:
        """It is bounded by the disk, and answers soon."""
