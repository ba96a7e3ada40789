"""The rules of snapshots and of trimming (extensions, section 2).

Checks come in this order: of another stream, older than what is kept, beyond the tail, not a boundary, If-Match, the
latest snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model import facts
from ..model.commands import PublishSnapshot, Trim
from ..model.errors import BadRequest, Conflict, Gone, PreconditionFailed, stream_recreated
from ..model.etags import is_among, snapshot_etag
from ..model.positions import format_stream_id
from ..model.records import StreamRecord
from ..model.replies import Outcome, Receipt

if TYPE_CHECKING:
    from .machine import Change, Machine


def decide_snapshot(machine: Machine, command: PublishSnapshot, now_ms: int, changes: list[Change]) -> Receipt:
    stream = machine.existing(command.key)
    view = stream.view()
    offset = command.offset
    if command.number not in (None, view.number):
        raise stream_recreated()
    if offset < view.earliest:
        raise Gone(
            f"A snapshot must not be older than what is kept, which begins at {view.earliest:020d}. "
            "Fold again from the latest snapshot.",
            code="snapshot_too_old",
            earliest=view.earliest,
        )
    if offset > view.tail:
        raise Conflict(
            f"The offset lies beyond the stream's tail, {view.tail:020d}. A snapshot holds what was appended already.",
            code="snapshot_beyond_tail",
        )
    if not command.is_boundary:
        raise BadRequest(
            "The offset lies inside a message. Use a Stream-Next-Offset value as it was returned.",
            code="offset_not_a_boundary",
        )
    if command.if_match is not None:
        _check_if_match(machine, view, command)
    if _is_known(view, command):
        return _receipt(Outcome.DUPLICATE, view)
    fact = facts.SnapshotPublished(
        view.number,
        offset,
        command.content_type,
        command.size,
        command.digest,
        command.payload,
        command.object,
        command.trims,
    )
    machine.admit(stream, fact, now_ms, changes)
    return _receipt(Outcome.PUBLISHED, view)


def _check_if_match(machine: Machine, view: StreamRecord, command: PublishSnapshot) -> None:
    latest = view.snapshot
    if latest is not None and latest.offset == command.offset:
        etag = snapshot_etag(format_stream_id(machine.incarnation, view.number), latest)
        if is_among(command.if_match or "", etag):
            return
    raise PreconditionFailed("The snapshot at this offset is another, or there is none. Publish without If-Match.")


def _is_known(view: StreamRecord, command: PublishSnapshot) -> bool:
    """Whether the very snapshot is published already; refuses what the latest one excludes."""
    latest = view.snapshot
    if latest is None or command.offset > latest.offset:
        return False
    if command.offset < latest.offset:
        raise Conflict(
            f"The latest snapshot, at {latest.offset:020d}, is newer. Fold again from there.",
            code="snapshot_superseded",
        )
    same = (command.digest, command.size, command.content_type) == (latest.digest, latest.size, latest.content_type)
    if not same:
        raise Conflict(
            "There is another snapshot at this offset. Read it, or fold up to a later offset.",
            code="snapshot_exists",
        )
    # The same bytes again; what was published without trimming may be asked to trim now.
    return not command.trims or view.earliest == command.offset


def decide_trim(machine: Machine, command: Trim, now_ms: int, changes: list[Change]) -> Receipt:
    stream = machine.existing(command.key)
    view = stream.view()
    offset = command.offset
    if command.number is not None and command.number != view.number:
        return _receipt(Outcome.NOTHING, view)
    if command.keeps_snapshot and view.snapshot is not None:
        offset = min(offset, view.snapshot.offset)
    if offset > view.tail:
        raise Conflict(f"The offset lies beyond the stream's tail, {view.tail:020d}.", code="trim_beyond_tail")
    if offset <= view.earliest:
        return _receipt(Outcome.NOTHING, view)
    machine.admit(stream, facts.Trimmed(view.number, offset), now_ms, changes)
    return _receipt(Outcome.TRIMMED, view)


def _receipt(outcome: Outcome, view: StreamRecord) -> Receipt:
    return Receipt(outcome, view.number, view.tail, view.closed, view.content_type)
