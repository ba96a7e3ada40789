"""What each S3P command does: translate, ask the node, reply."""

from __future__ import annotations

import asyncio

from ..model.commands import Append, Body, Create, Delete, Trim
from ..model.errors import BadRequest, MillstreamError, NotFound, StorageError, Unavailable
from ..model.ids import ZERO_ID, MessageId
from ..model.media import DEFAULT_CONTENT_TYPE, is_json
from ..model.replies import Receipt
from ..node import Records, Stream
from ..node.node import Node
from ..node.writer import Answer
from ..protocol.http.json_mode import flaw_in_value
from ..protocol.s3p.commands import AppendRecords, CreateStream, DeleteStream, ReadRecords, TrimStream
from ..protocol.s3p.names import key_of_name
from ..protocol.s3p.replies import NOTHING, records_reply
from .s3p_connection import S3pConnection
from .settings import Settings

_KEPT_REPLY_BYTES_MAX = 256 << 10
_TRIMMED_MAX = 5  # times that a read begins anew


class S3pHandlers:
    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.part_bytes = settings.part_bytes
        self._buckets = settings.s3p_buckets
        self._read_bytes_max = settings.s3p_read_bytes_max
        # The last READ's reply: thousands that were blocked at the same place get the same bytes.
        self._kept: tuple[int, int, int, int] | None = None  # stream, place, tail, count
        self._kept_reply: list[bytes] = []

    def _key(self, name: bytes) -> str:
        return key_of_name(name, self._buckets)

    # -- writing -------------------------------------------------------------------------------------------

    def create(self, conn: S3pConnection, command: CreateStream) -> None:
        create = Create(self._key(command.name), DEFAULT_CONTENT_TYPE, must_be_new=True, client_ids=command.client_ids)
        conn.submit(create)

    def delete(self, conn: S3pConnection, command: DeleteStream) -> None:
        conn.submit(Delete(self._key(command.name)))

    def append(self, conn: S3pConnection, command: AppendRecords) -> None:
        conn.submit(self._append_command(command))

    def _append_command(self, command: AppendRecords) -> Append:
        """S3P knows no content types: records take the stream's, and must be what it says."""
        key = self._key(command.name)
        # As the decision will see it: the writer decides before anything else can happen.
        stream = self.node.machine.find(key)
        content_type = DEFAULT_CONTENT_TYPE if stream is None else stream.view().content_type
        body = command.body
        if content_type is not DEFAULT_CONTENT_TYPE and is_json(content_type):
            body = _checked_json(body)
        return Append(key, content_type, body, False, None, None, None, command.first_id)

    def append_large(self, conn: S3pConnection, command: AppendRecords) -> None:
        conn.in_background(self._append_large(conn, command), is_write=True)

    async def _append_large(self, conn: S3pConnection, command: AppendRecords) -> None:
        """Journal the records in parts first, then decide; a refusal drops the parts again."""
        body = command.body
        upload = await self.node.writer.stage(body.payload)
        lengths = [len(body.payload)] if body.lengths is None else body.lengths
        append = self._append_command(command)
        staged = Body(b"", lengths, append.body.fault, upload)
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.node.submit(
            Append(append.key, append.content_type, staged, first_id=command.first_id), answered.set_result
        )
        answer = await answered
        if not isinstance(answer, Receipt):
            self.node.writer.drop_upload(upload)
        conn.answer(answer)

    # -- reading -------------------------------------------------------------------------------------------

    def read(self, conn: S3pConnection, command: ReadRecords) -> None:
        stream = self.node.visible(self._key(command.name))
        self.node.renew(stream)
        place = self.node.records.place_after_now(stream, command.after)
        if place is None:
            conn.in_background(self.read_cold(conn, command, stream))
        else:
            self.read_from(conn, command, stream, place)

    async def read_cold(self, conn: S3pConnection, command: ReadRecords, stream: Stream) -> None:
        place = await self._place_after(stream, command.after)
        if place >= stream.tail:
            self.read_from(conn, command, self.node.present(stream), place)
        else:
            await self._send_cold(conn, command, stream, place)

    def read_from(self, conn: S3pConnection, command: ReadRecords, stream: Stream, place: int) -> None:
        """Reply with what lies at a place, or wait for it."""
        if place >= stream.tail:
            if command.block_ms:
                BlockedRead(self, conn, stream, place, command)
            else:
                conn.reply(NOTHING)
            return
        kept = (stream.number, place, stream.tail, command.count)
        if kept == self._kept:
            conn.reply_pieces(self._kept_reply)
            return
        records = self.node.records.read_now(stream, place, command.count, self._read_bytes_max)
        if records is None:
            conn.in_background(self._send_cold(conn, command, stream, place))
            return
        reply = _reply(records)
        if records.end - place <= _KEPT_REPLY_BYTES_MAX:
            self._kept, self._kept_reply = kept, reply
        conn.reply_pieces(reply)

    async def _send_cold(self, conn: S3pConnection, command: ReadRecords, stream: Stream, place: int) -> None:
        for _ in range(_TRIMMED_MAX):
            try:
                records = await self.node.records.read(stream, place, command.count, self._read_bytes_max)
                break
            except StorageError:
                _check_alive(stream)
                if stream.earliest <= place:
                    raise
                place = stream.earliest  # trimmed under our feet: what is left begins later
        else:
            raise Unavailable("the stream is trimmed faster than it can be read; try again")
        conn.reply_pieces(_reply(records))

    async def _place_after(self, stream: Stream, last: MessageId) -> int:
        try:
            return await self.node.records.place_after(stream, last)
        except StorageError:
            _check_alive(stream)  # its blocks go with it
            raise

    # -- trimming ------------------------------------------------------------------------------------------

    def trim(self, conn: S3pConnection, command: TrimStream) -> None:
        """Nothing is in flight on this connection: what it appended before is there."""
        stream = self.node.visible(self._key(command.name))
        last_to_go = command.until.before() or ZERO_ID
        place = self.node.records.place_after_now(stream, last_to_go)
        if place is None:
            conn.in_background(self._trim_cold(conn, stream, last_to_go))
        else:
            self._trim_to(conn, stream, place)

    async def _trim_cold(self, conn: S3pConnection, stream: Stream, last_to_go: MessageId) -> None:
        self._trim_to(conn, stream, await self._place_after(stream, last_to_go))

    def _trim_to(self, conn: S3pConnection, stream: Stream, place: int) -> None:
        conn.submit(Trim(stream.key, place, stream.number))


class BlockedRead:
    """One READ with BLOCK: replies when there is a record, the stream is gone, or time is up."""

    __slots__ = ("_command", "_conn", "_handlers", "_is_ahead", "_place", "_stream", "_timer", "queued")

    def __init__(
        self, handlers: S3pHandlers, conn: S3pConnection, stream: Stream, place: int, command: ReadRecords
    ) -> None:
        self.queued = False
        self._handlers = handlers
        self._conn = conn
        self._stream = stream
        self._place = place
        self._command = command
        self._is_ahead = command.after > (stream.id_ms, stream.id_seq)
        self._timer = asyncio.get_running_loop().call_later(command.block_ms / 1000, self.end)
        handlers.node.followers.follow(stream, self)
        handlers.node.sweeper.watch(stream)
        conn.waiting = self

    def stream_changed(self) -> None:
        conn, stream = self._conn, self._stream
        if conn.waiting is not self:
            return
        if stream.deleted:
            self.cancel()
            conn.fail(_gone())
        elif stream.tail > self._place:
            if self._is_ahead and self._command.after >= (stream.id_ms, stream.id_seq):
                self._place = stream.tail  # what has come lies before the wanted id, too
                return
            self.cancel()
            try:
                self._reply()
            except MillstreamError as error:
                conn.fail(error)
            conn.resume()

    def _reply(self) -> None:
        handlers, stream, place = self._handlers, self._stream, max(self._place, self._stream.earliest)
        if self._is_ahead:  # only the last of what has come may lie behind the wanted id
            found = handlers.node.records.place_after_now(stream, self._command.after)
            if found is None:
                self._conn.in_background(handlers.read_cold(self._conn, self._command, stream))
                return
            place = found
        handlers.read_from(self._conn, self._command, stream, place)

    def end(self) -> None:
        """Time is up."""
        self.cancel()
        self._conn.reply(NOTHING)

    def cancel(self) -> None:
        self._timer.cancel()
        self._conn.waiting = None
        self._handlers.node.followers.leave(self._stream, self)


def _check_alive(stream: Stream) -> None:
    if stream.deleted:
        raise _gone()


def _gone() -> NotFound:
    return NotFound("The stream was deleted.")


def _reply(records: Records) -> list[bytes]:
    return records_reply(records.payloads, records.ids_ms, records.id_seqs)


def _checked_json(body: Body) -> Body:
    """The same records, or why they cannot be messages of a JSON stream. An array is one message: nothing is split."""
    at = 0
    for number, length in enumerate(body.lengths or [len(body.payload)], 1):
        flaw = flaw_in_value(body.payload[at : at + length])
        if flaw is not None:
            return Body(fault=BadRequest(f"record {number} is not valid JSON, which the stream holds: {flaw}"))
        at += length
    return body
