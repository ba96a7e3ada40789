"""The rules of appending and closing (protocol sections 5.2, 5.2.1 and 5.3).

Checks come in this order: no body at all, closed, content type, producer, If-Match, Stream-Seq, ids, body. A duplicate
ends at the producer check, whatever the later ones would say; a refusal changes nothing, producer state included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..model.commands import Append, Body
from ..model.errors import (
    BadRequest,
    Conflict,
    Fenced,
    PreconditionFailed,
    SequenceGap,
    StreamClosed,
    TooMany,
    stream_recreated,
)
from ..model.etags import names_state
from ..model.facts import Appended, Closed, ContentTypeTaken, Producer, size_of
from ..model.ids import U64_MAX, MessageId
from ..model.media import media_type
from ..model.positions import format_stream_id
from ..model.records import StreamRecord
from ..model.replies import APPENDED, Outcome, Receipt
from .state import Stream

if TYPE_CHECKING:
    from .machine import Change, Machine


def decide_append(machine: Machine, command: Append, now_ms: int, changes: list[Change]) -> Receipt:
    stream = machine.existing(command.key)
    view = stream if stream.pending is None else stream.overlay()
    body = command.body
    close_only = not body.payload and body.upload is None and body.fault is None
    if command.stream_id is not None or (close_only and not command.closes):
        _check_request(machine, view, command)
    if view.closed:
        return _on_closed(machine, stream, view, command, close_only)
    taken_type = None
    if not close_only and command.content_type != view.content_type:
        taken_type = _check_content_type(view, command.content_type)
    producer = command.producer
    if producer is not None:
        checked = _check_producer(machine, stream, view, producer)
        if isinstance(checked, Receipt):
            return checked if not command.closes else _close_late(machine, stream, command, checked, now_ms, changes)
        producer = checked
    if command.if_match is not None or command.if_none_match is not None or command.stream_seq is not None:
        _check_writer(machine, view, command)
    if close_only:
        machine.admit(stream, Closed(view.number, producer), now_ms, changes)
        return _receipt(Outcome.CLOSED, view, view.tail, True, producer)
    first_id = command.first_id
    if first_id is not None or view.client_ids:
        check_first_id(view, first_id, 1 if body.lengths is None else len(body.lengths))
    if body.fault is not None:
        raise body.fault
    if taken_type is not None:
        machine.admit(stream, ContentTypeTaken(view.number, taken_type), now_ms, changes)
        view = stream.overlay()
    fact = appended(view, body, command.closes, producer, command.stream_seq, now_ms, first_id)
    machine.admit(stream, fact, now_ms, changes)
    tail = fact.offset + (len(fact.payload) or size_of(fact))
    last_id = (fact.id_ms, fact.id_seq if body.lengths is None else fact.id_seq + len(body.lengths) - 1)
    if producer is None:
        return Receipt(APPENDED, fact.stream, tail, command.closes, view.content_type, None, None, last_id)
    return Receipt(
        APPENDED, fact.stream, tail, command.closes, view.content_type, producer.epoch, producer.seq, last_id
    )


def _check_request(machine: Machine, view: StreamRecord, command: Append) -> None:
    if command.stream_id is not None:
        check_identity(machine, view, command.stream_id)
    body = command.body
    if not (body.payload or command.closes or body.fault) and body.upload is None:
        raise BadRequest("The body is empty. Send data, or 'Stream-Closed: true' to close.", code="empty_body")


def appended(
    view: StreamRecord,
    body: Body,
    closes: bool,
    producer: Producer | None,
    stream_seq: str | None,
    now_ms: int,
    first_id: MessageId | None = None,
) -> Appended:
    """The fact that these messages follow what the stream holds."""
    id_ms, id_seq = next_id(view, now_ms) if first_id is None else first_id
    return Appended(
        view.number,
        view.tail,
        id_ms,
        id_seq,
        body.payload,
        body.lengths,
        closes,
        producer,
        stream_seq,
        body.upload,
    )


def next_id(view: StreamRecord, now_ms: int) -> tuple[int, int]:
    if now_ms > view.id_ms:
        return now_ms, 0
    # The same millisecond, or a clock that stepped back: ids still only grow.
    return view.id_ms, view.id_seq + 1


def check_first_id(view: StreamRecord, first_id: MessageId | None, messages: int) -> None:
    """Whether the messages may have the ids that their writer gives them, or leaves to us."""
    if first_id is None:
        raise Conflict(
            "This stream takes its ids from its writers (S3P's TIMESTAMP). Append over S3P, or to another stream.",
            code="ids_are_the_clients",
        )
    if not view.client_ids:
        raise Conflict("This stream's ids are given by the server. Append without an id.", code="ids_are_the_servers")
    if first_id <= (view.id_ms, view.id_seq):
        raise Conflict(f"Ids must grow: {first_id} is not after {view.id_ms}-{view.id_seq}.", code="id_regression")
    if first_id.seq + messages - 1 > U64_MAX:
        raise Conflict(
            "The ids of the last messages would not fit into 64 bits. Start with a smaller seq.", code="id_overflow"
        )


def matches(machine: Machine, view: StreamRecord, header: str) -> bool:
    """Whether a conditional header names the state that the stream is in."""
    return names_state(header, format_stream_id(machine.incarnation, view.number), view.tail, view.closed)


def check_conditions(machine: Machine, view: StreamRecord, if_match: str | None, if_none_match: str | None) -> None:
    if if_match is not None and not matches(machine, view, if_match):
        raise PreconditionFailed(
            "The stream has changed since that ETag. Read it again, decide anew, and send the new ETag."
        )
    if if_none_match is not None and matches(machine, view, if_none_match):
        raise PreconditionFailed("The stream is there, in the state that If-None-Match excludes.")


def check_identity(machine: Machine, view: StreamRecord, stream_id: str) -> None:
    if stream_id != format_stream_id(machine.incarnation, view.number):
        raise stream_recreated()


def _receipt(outcome: Outcome, view: StreamRecord, tail: int, closed: bool, producer: Producer | None) -> Receipt:
    if producer is None:
        return Receipt(outcome, view.number, tail, closed, view.content_type)
    return Receipt(outcome, view.number, tail, closed, view.content_type, producer.epoch, producer.seq)


def _on_closed(machine: Machine, stream: Stream, view: StreamRecord, command: Append, close_only: bool) -> Receipt:
    said = command.producer
    closer = view.writers.closed_by if view.writers is not None else None
    is_closer = said is not None and closer is not None and _is_same(said, closer)
    if not is_closer and not close_only:
        raise StreamClosed("The stream is closed and takes no more data.", tail=view.tail)
    receipt = _receipt(Outcome.DUPLICATE if is_closer else Outcome.CLOSED, view, view.tail, True, None)
    if said is None:
        return receipt
    # The epoch is echoed; the sequence is the highest that was accepted in it, not the one that came too late.
    epoch, seq = machine.producer_state(stream, said.id) or (None, None)
    return replace(receipt, producer_epoch=said.epoch, producer_seq=seq if epoch == said.epoch else None)


def _close_late(
    machine: Machine, stream: Stream, command: Append, duplicate: Receipt, now_ms: int, changes: list[Change]
) -> Receipt:
    """The append is known, that it closes is new: just that is done."""
    check_conditions(machine, stream.view(), command.if_match, command.if_none_match)
    machine.admit(stream, Closed(duplicate.number, command.producer, is_repeated=True), now_ms, changes)
    return replace(duplicate, closed=True)


def _is_same(one: Producer, other: Producer) -> bool:
    return (one.id, one.epoch, one.seq) == (other.id, other.epoch, other.seq)


def _check_content_type(view: StreamRecord, content_type: str | None) -> str | None:
    """Whether the append may have this type; the type, if it becomes the stream's."""
    if content_type is None:
        raise BadRequest(
            f"An append needs a Content-Type; this stream's is '{view.content_type}'.",
            code="content_type_missing",
        )
    if view.awaits_type():
        return content_type
    if media_type(content_type) != media_type(view.content_type):
        raise Conflict(
            f"This stream holds '{view.content_type}', the append says '{content_type}'.",
            code="content_type_mismatch",
        )
    return None


def _check_producer(machine: Machine, stream: Stream, view: StreamRecord, said: Producer) -> Producer | Receipt:
    """The producer's stamp if the append is new, or the receipt of a duplicate."""
    known = machine.producer_state(stream, said.id)
    if known is None:
        if said.seq != 0:
            raise _gap(0, said.seq)
        count = view.writers.producer_count if view.writers is not None else 0
        if count >= machine.producers_max:
            raise TooMany(
                f"The stream remembers {count} producers, which is its limit (producers_max). Reuse a Producer-Id.",
                code="too_many_producers",
            )
        return Producer(said.id, said.epoch, said.seq, True)
    epoch, last = known
    if said.epoch < epoch:
        raise Fenced(
            f"Producer epoch {said.epoch} is stale, {epoch} is current. Start again with a higher epoch, seq 0.",
            epoch=epoch,
        )
    if said.epoch > epoch:
        if said.seq != 0:
            raise BadRequest("A new producer epoch starts with Producer-Seq 0.", code="bad_producer")
        return said
    if said.seq <= last:
        return Receipt(Outcome.DUPLICATE, view.number, view.tail, view.closed, view.content_type, epoch, last)
    if said.seq != last + 1:
        raise _gap(last + 1, said.seq)
    return said


def _gap(expected: int, received: int) -> SequenceGap:
    return SequenceGap(
        f"Producer-Seq {received} leaves a gap: {expected} is next. Send the missing batches first.",
        expected=expected,
        received=received,
    )


def _check_writer(machine: Machine, view: StreamRecord, command: Append) -> None:
    check_conditions(machine, view, command.if_match, command.if_none_match)
    stream_seq = command.stream_seq
    last = view.writers.stream_seq if view.writers is not None else None
    # Header values are decoded as Latin-1, so comparing text compares bytes, as the protocol asks.
    if last is not None and stream_seq is not None and stream_seq <= last:
        raise Conflict(
            f"Stream-Seq is a growing sequence: '{_shown(stream_seq)}' is not after '{_shown(last)}' in byte order.",
            code="stream_seq_regression",
        )


def _shown(value: str) -> str:
    """A header's value, of which only the bytes are known: those that are not ASCII, escaped."""
    return value.encode("latin-1").decode("ascii", "backslashreplace")
