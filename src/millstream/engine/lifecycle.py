"""The rules of creating, deleting, expiring and renewing streams (protocol sections 4, 5.1 and 5.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..model import facts
from ..model.commands import Create, Delete, Expire, Touch
from ..model.errors import BadRequest, Conflict, NotFound, PreconditionFailed, SequenceGap, stream_recreated
from ..model.facts import BucketSettings, Producer
from ..model.media import DEFAULT_CONTENT_TYPE, media_type
from ..model.names import split_key
from ..model.records import DEFAULT_BUCKET_SETTINGS, StreamRecord
from ..model.replies import Outcome, Receipt
from .appending import appended, check_conditions, check_identity

if TYPE_CHECKING:
    from .machine import Change, Machine


def decide_create(machine: Machine, command: Create, now_ms: int, changes: list[Change]) -> Receipt:
    bucket_name, _ = split_key(command.key)
    bucket = machine.live_bucket(bucket_name)
    if bucket is None and command.needs_bucket:
        raise NotFound("There is no such bucket. Create it with PUT first.", code="bucket_not_found")
    is_typed = command.content_type is not None
    if bucket is not None and bucket.settings is not DEFAULT_BUCKET_SETTINGS:
        command = _with_defaults(command, bucket.settings)
    stream = machine.find(command.key)
    if stream is not None and machine.is_live(stream):
        return _on_existing(machine, stream.view(), command, is_typed)
    if command.stream_id is not None:
        raise stream_recreated()
    if command.if_match is not None:
        raise PreconditionFailed("There is no stream to match that ETag. Create it without If-Match.")
    if command.producer is not None and command.producer.seq != 0:
        raise SequenceGap(
            "A new stream knows no producers: start with Producer-Seq 0.",
            expected=0,
            received=command.producer.seq,
        )
    if command.body.fault is not None:
        raise command.body.fault
    # Every check lies behind us: from here on facts are admitted, and a command's facts stand or fall together.
    if stream is not None and not stream.view().deleted:
        machine.admit(stream, facts.StreamExpired(stream.number), now_ms, changes)
    if bucket is None:
        # The flat surface needs no bucket to exist: one is recorded with its first stream.
        machine.admit_bucket_fact(facts.BucketCreated(bucket_name, implicit=True), now_ms, changes)
    return _create(machine, command, now_ms, changes)


def _with_defaults(command: Create, settings: BucketSettings) -> Create:
    """What the request leaves open, as the bucket has it."""
    if command.content_type is None and settings.content_type is not None and command.body.payload:
        raise BadRequest(
            f"Name the body's Content-Type: the bucket's default is '{settings.content_type}'.",
            code="content_type_missing",
        )
    ttl_s = command.ttl_s
    if ttl_s is None and command.expires_at_ms is None:
        ttl_s = settings.ttl_s
    return replace(command, content_type=command.content_type or settings.content_type, ttl_s=ttl_s)


def _create(machine: Machine, command: Create, now_ms: int, changes: list[Change]) -> Receipt:
    content_type = command.content_type or DEFAULT_CONTENT_TYPE
    body = command.body
    created = facts.StreamCreated(
        command.key,
        content_type,
        command.ttl_s,
        command.expires_at_ms,
        machine.ttl_renewal,
        command.client_ids,
        takes_type=command.content_type is None and not body.payload and body.upload is None,
    )
    stream = machine.admit_new(created, now_ms, changes)
    producer = command.producer
    if producer is not None:
        producer = Producer(producer.id, producer.epoch, producer.seq, True)
    first = _first_fact(stream.view(), command, producer, now_ms)
    if first is not None:
        machine.admit(stream, first, now_ms, changes)
    view = stream.view()
    receipt = Receipt(Outcome.CREATED, view.number, view.tail, view.closed, content_type)
    return receipt if producer is None else _echo(receipt, producer)


def _echo(receipt: Receipt, producer: Producer) -> Receipt:
    return replace(receipt, producer_epoch=producer.epoch, producer_seq=producer.seq)


def _first_fact(
    view: StreamRecord, command: Create, producer: Producer | None, now_ms: int
) -> facts.Appended | facts.Closed | None:
    """The initial content, the closing and the writer's marks: whatever the request had of them."""
    body = command.body
    if body.payload or body.upload is not None:
        return appended(view, body, command.closed, producer, command.stream_seq, now_ms)
    if producer is not None or command.stream_seq is not None:
        # Nothing to append, but marks to keep: an append of no messages carries them.
        return facts.Appended(
            view.number, 0, view.id_ms, view.id_seq, b"", [], command.closed, producer, command.stream_seq
        )
    return facts.Closed(view.number) if command.closed else None


def _on_existing(machine: Machine, view: StreamRecord, command: Create, is_typed: bool) -> Receipt:
    if command.must_be_new:
        raise Conflict("There is a stream of this name already. Use it, or delete it first.", code="stream_exists")
    if command.stream_id is not None:
        check_identity(machine, view, command.stream_id)
    check_conditions(machine, view, command.if_match, command.if_none_match)
    # Whoever created it without a type may ask for the same again, whatever type it has taken since.
    wanted = view.content_type if view.takes_type and not is_typed else command.content_type or DEFAULT_CONTENT_TYPE
    if media_type(wanted) != media_type(view.content_type):
        raise _differs(f"its content type is '{view.content_type}', not '{wanted}'")
    lease = view.lease
    if (lease.ttl_s if lease else None) != command.ttl_s:
        raise _differs("its TTL is another")
    if (lease.expires_at_ms if lease else None) != command.expires_at_ms:
        raise _differs("its expiry is another")
    if view.closed != command.closed:
        raise _differs("it is closed" if view.closed else "it is open")
    return Receipt(Outcome.EXISTED, view.number, view.tail, view.closed, view.content_type)


def _differs(how: str) -> Conflict:
    return Conflict(
        f"The stream exists with another configuration: {how}. Delete it first, or ask for what it is.",
        code="stream_exists",
    )


def decide_delete(machine: Machine, command: Delete, now_ms: int, changes: list[Change]) -> Receipt:
    stream = machine.existing(command.key)
    view = stream.view()
    if command.stream_id is not None:
        check_identity(machine, view, command.stream_id)
    check_conditions(machine, view, command.if_match, command.if_none_match)
    machine.admit(stream, facts.StreamDeleted(view.number), now_ms, changes)
    return Receipt(Outcome.DELETED, view.number, view.tail, view.closed, view.content_type)


def decide_expire(machine: Machine, command: Expire, now_ms: int, changes: list[Change]) -> Receipt:
    stream = machine.find(command.key)
    if stream is not None and stream.number == command.number:
        view = stream.view()
        if not view.deleted and not machine.is_live(stream):
            machine.admit(stream, facts.StreamExpired(view.number), now_ms, changes)
            return Receipt(Outcome.EXPIRED, view.number, view.tail, view.closed, view.content_type)
    return _NOTHING


def decide_touch(machine: Machine, command: Touch, now_ms: int, changes: list[Change]) -> Receipt:
    stream = machine.find(command.key)
    if stream is not None and stream.number == command.number and machine.is_live(stream):
        view = stream.view()
        lease = view.lease
        if lease is not None and lease.sliding and now_ms + machine.shift_ms - lease.renewed_ms >= lease.thinning_ms():
            machine.admit(stream, facts.Touched(view.number), now_ms, changes)
            return Receipt(Outcome.TOUCHED, view.number, view.tail, view.closed, view.content_type)
    return _NOTHING


_NOTHING = Receipt(Outcome.NOTHING, 0, 0, False, "")
