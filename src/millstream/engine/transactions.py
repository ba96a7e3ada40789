"""The rules of transactions: many streams of one bucket at once, all or nothing and exactly once.

An application numbers its transactions; the number it committed last is kept with the bucket. The same one again is a
duplicate, a lower one comes from somebody who does not know that he has been replaced. Everything is checked before the
first fact, and every reason is told, not only the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model import facts
from ..model.commands import Addition, CommitTransaction, ForgetTransactions
from ..model.errors import Conflict, NotFound, Reason, TooMany, TransactionRefused
from ..model.facts import Appended
from ..model.media import DEFAULT_CONTENT_TYPE, is_json
from ..model.names import fault_in_new_name
from ..model.records import Application, BucketRecord, StreamRecord
from ..model.replies import Outcome, Receipt
from .appending import next_id
from .state import Stream

if TYPE_CHECKING:
    from .machine import Change, Machine

REASONS_MAX = 100

Found = tuple[Stream | None, bool]


def decide_transaction(machine: Machine, command: CommitTransaction, now_ms: int, changes: list[Change]) -> Receipt:
    bucket = _existing_bucket(machine, command.bucket)
    if command.number not in (None, bucket.number):
        raise NotFound(
            "The bucket in which the parts were staged was deleted. Stage them again in the one there is now.",
            code="bucket_not_found",
        )
    if is_duplicate(command.app, command.version, bucket.apps):
        return _receipt(Outcome.DUPLICATE)
    if command.app not in (bucket.apps or ()) and len(bucket.apps or ()) >= machine.apps_max:
        raise TooMany(
            f"The bucket remembers {machine.apps_max} applications, which is its limit (transaction_apps_max). "
            "Forget one with DELETE.",
            code="too_many_apps",
        )
    content_type = command.content_type or bucket.settings.content_type or DEFAULT_CONTENT_TYPE
    streams = _checked_streams(machine, command, content_type)
    # Every check lies behind us: from here on facts are admitted, and a command's facts stand or fall together.
    created = 0
    for addition, (stream, is_live) in zip(command.additions, streams, strict=True):
        if stream is None or not is_live:
            key = f"{command.bucket}/{addition.stream}"
            stream = _create(machine, key, stream, content_type, bucket.settings.ttl_s, now_ms, changes)
            created += 1
        taken_type = _taken_type(stream.view(), command.content_type)
        if taken_type is not None:
            machine.admit(stream, facts.ContentTypeTaken(stream.number, taken_type), now_ms, changes)
        _append(machine, stream, addition, now_ms, changes)
    figures = (command.messages, command.bytes, len(streams), created, command.object)
    fact = facts.TransactionCommitted(command.bucket, command.app, command.version, *figures)
    machine.admit_bucket_fact(fact, now_ms, changes)
    return _receipt(Outcome.COMMITTED)


def decide_forget(machine: Machine, command: ForgetTransactions, now_ms: int, changes: list[Change]) -> Receipt:
    bucket = _existing_bucket(machine, command.bucket)
    if command.app not in (bucket.apps or ()):
        return _receipt(Outcome.NOTHING)
    machine.admit_bucket_fact(facts.TransactionsForgotten(command.bucket, command.app), now_ms, changes)
    return _receipt(Outcome.CHANGED)


def is_duplicate(app: str, version: int, apps: dict[str, Application] | None) -> bool:
    """Whether this very version is the last one committed. Raises when a later one is."""
    known = (apps or {}).get(app)
    if known is None or version > known.version:
        return False
    if version < known.version:
        raise Conflict(
            f"Version {known.version} of '{app}' is committed already; {version} comes too late, "
            "or from a writer that has been replaced.",
            code="transaction_fenced",
        )
    return True


def _existing_bucket(machine: Machine, name: str) -> BucketRecord:
    bucket = machine.live_bucket(name)
    if bucket is None:
        raise NotFound("There is no such bucket. Create it with PUT.", code="bucket_not_found")
    return bucket


def _checked_streams(machine: Machine, command: CommitTransaction, content_type: str) -> list[Found]:
    """The streams to append to, and whether each is alive; otherwise it has to be created."""
    streams: list[Found] = []
    reasons: list[Reason] = []
    refused = 0
    for addition in command.additions:
        stream = machine.find(f"{command.bucket}/{addition.stream}")
        is_live = stream is not None and machine.is_live(stream)  # asked once: time goes on
        streams.append((stream, is_live))
        if stream is None or not is_live:
            reason = _objection_to_new(command, addition, content_type)
        else:
            reason = _objection(stream.view(), addition, command.content_type)
            stream.used = machine.coarse_s
        if reason is not None:
            refused += 1
            if len(reasons) < REASONS_MAX:
                reasons.append(reason)
    if refused:
        raise TransactionRefused(reasons, refused)
    return streams


def _objection(view: StreamRecord, addition: Addition, given_type: str | None) -> Reason | None:
    if view.closed:
        return Reason("stream_closed", f"The stream '{addition.stream}' is closed.", stream=addition.stream)
    if view.client_ids:
        why = f"The stream '{addition.stream}' takes its ids from its writers, over S3P."
        return Reason("ids_are_the_clients", why, stream=addition.stream)
    if addition.fault is not None and is_json(_taken_type(view, given_type) or view.content_type):
        return Reason("invalid_json", _no_json(addition), stream=addition.stream)
    return None


def _taken_type(view: StreamRecord, given_type: str | None) -> str | None:
    """The content type that a stream without one takes with the transaction, if that names one."""
    return given_type if view.awaits_type() else None


def _objection_to_new(command: CommitTransaction, addition: Addition, content_type: str) -> Reason | None:
    name = addition.stream
    if not command.create:
        return Reason("stream_not_found", f"There is no stream '{name}', and 'create' is not set.", stream=name)
    fault = fault_in_new_name(command.bucket, name)
    if fault is not None:
        return Reason("bad_name", fault, stream=name)
    if addition.fault is not None and is_json(content_type):
        return Reason("invalid_json", _no_json(addition), stream=name)
    return None


def _no_json(addition: Addition) -> str:
    return f"The stream '{addition.stream}' holds JSON, and a message for it is none: {addition.fault}."


def _create(
    machine: Machine,
    key: str,
    former: Stream | None,
    content_type: str,
    ttl_s: int | None,
    now_ms: int,
    changes: list[Change],
) -> Stream:
    if former is not None and not former.view().deleted:
        machine.admit(former, facts.StreamExpired(former.number), now_ms, changes)
    return machine.admit_new(facts.StreamCreated(key, content_type, ttl_s, None, machine.ttl_renewal), now_ms, changes)


def _append(machine: Machine, stream: Stream, addition: Addition, now_ms: int, changes: list[Change]) -> None:
    for piece in addition.slices:
        view = stream.view()
        fact = Appended(view.number, view.tail, *next_id(view, now_ms), b"", piece.lengths, stored=piece.stored)
        machine.admit(stream, fact, now_ms, changes)


def _receipt(outcome: Outcome) -> Receipt:
    return Receipt(outcome, 0, 0, False, "")
