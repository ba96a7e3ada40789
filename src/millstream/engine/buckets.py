"""The rules of buckets (extension section 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model import facts
from ..model.commands import BucketCommand, ChangeBucket, CreateBucket, DeleteBucket
from ..model.errors import Conflict, NotFound
from ..model.names import HAND_OFF_BUCKETS
from ..model.replies import Outcome, Receipt

if TYPE_CHECKING:
    from .machine import Change, Machine


def decide_bucket(machine: Machine, command: BucketCommand, now_ms: int, changes: list[Change]) -> Receipt:
    if command.bucket in HAND_OFF_BUCKETS:
        raise Conflict(f"The bucket '{command.bucket}' belongs to the server.", code="bucket_reserved")
    if isinstance(command, CreateBucket):
        return _create(machine, command, now_ms, changes)
    bucket = machine.live_bucket(command.bucket)
    if bucket is None or (isinstance(command, DeleteBucket) and command.number not in (None, bucket.number)):
        raise NotFound("There is no such bucket. Create it with PUT.", code="bucket_not_found")
    if isinstance(command, ChangeBucket):
        machine.admit_bucket_fact(facts.BucketChanged(command.bucket, command.settings), now_ms, changes)
        return _receipt(Outcome.CHANGED)
    if bucket.streams:
        raise Conflict(f"The bucket holds {bucket.streams} streams. Delete them first.", code="bucket_not_empty")
    machine.admit_bucket_fact(facts.BucketDeleted(command.bucket), now_ms, changes)
    return _receipt(Outcome.DELETED)


def _create(machine: Machine, command: CreateBucket, now_ms: int, changes: list[Change]) -> Receipt:
    if machine.live_bucket(command.bucket) is not None:
        raise Conflict("The bucket exists already. Change its settings with PATCH.", code="bucket_exists")
    fact = facts.BucketCreated(command.bucket, settings=command.settings)
    machine.admit_bucket_fact(fact, now_ms, changes)
    return _receipt(Outcome.CREATED)


def _receipt(outcome: Outcome) -> Receipt:
    return Receipt(outcome, 0, 0, False, "")
