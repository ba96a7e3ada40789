"""When a stream's time is up.

A TTL is counted in leases' time, and from the answer on: while a write that renews it is in flight it does not run out,
however long the disk takes. A fixed end goes by the wall clock, which may be set: but an end that somebody was told of
has come for good.
"""

from __future__ import annotations

from ..model.records import StreamRecord
from .state import Stream, Time

UNBORN = 1 << 62  # as `seen_ms`: its creation is in flight
OVER = -1  # as `seen_ms` of a stream with a fixed end: somebody was told that it has come


def is_over(stream: Stream, view: StreamRecord, time: Time) -> bool:
    """Whether the time of a stream that has a lease is up, as readers or decisions see it."""
    lease = view.lease
    assert lease is not None
    if lease.expires_at_ms is not None:
        if stream.seen_ms != OVER and time.wall_ms() < lease.expires_at_ms:
            return False
        stream.seen_ms = OVER
        return True
    return time.lease_ms() >= deadline_ms(stream, view) and not (lease.sliding and _is_in_use(stream))


def _is_in_use(stream: Stream) -> bool:
    """Whether something is in flight that will renew it. An end is decided about only where nothing else is in flight,
    so that what comes before a deletion are renewals."""
    pending = stream.pending
    if pending is None:
        return False
    return type(pending) is tuple or not pending.deleted or stream.inflight > 1  # type: ignore[union-attr]


def deadline_ms(stream: Stream, view: StreamRecord) -> int:
    """When the stream's time is up, in leases' time or by the wall clock; renewals that were not journaled count."""
    lease = view.lease
    assert lease is not None
    if lease.expires_at_ms is not None:
        return lease.expires_at_ms
    assert lease.ttl_s is not None
    return max(lease.renewed_ms, stream.seen_ms) + lease.ttl_s * 1000


def left_ms(stream: Stream, time: Time) -> int:
    assert stream.lease is not None
    now_ms = time.lease_ms() if stream.lease.expires_at_ms is None else time.wall_ms()
    return deadline_ms(stream, stream) - now_ms


def begin(stream: Stream, lease_ms: int) -> None:
    """The stream was created, and its creator is told now."""
    if stream.lease is not None and stream.lease.ttl_s is not None:
        stream.seen_ms = lease_ms


def renew(stream: Stream, lease_ms: int) -> None:
    """Somebody read or wrote the stream, and is answered now."""
    lease = stream.lease
    if lease is not None and lease.sliding and lease.ttl_s is not None and lease_ms > stream.seen_ms:
        stream.seen_ms = lease_ms
