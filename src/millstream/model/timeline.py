"""What a log says of time: how its facts' times relate to the time in which leases are counted, and to the wall clock.

Facts are dated by a clock that follows the wall clock ahead and never goes back (`node.clock`). Where somebody has set
the machine's clock, the difference between two facts' times is therefore more than what has passed between them, or
less. The log notes each such step with a `ClockRead`, and whoever applies it learns here what has passed in truth.
"""

from __future__ import annotations

import msgspec

from .facts import ClockRead

_GAPS_MAX = 16


class Gap(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Commit times that were stepped over: from here to there no time has passed."""

    from_ms: int
    to_ms: int


class Timeline(msgspec.Struct):
    at_ms: int = 0  # of the last batch
    shift_ms: int = 0  # from commit times to leases' time, now
    offset_ms: int = 0  # from the wall clock to leases' time, now
    gaps: list[Gap] = []

    @property
    def lease_ms(self) -> int:
        """When the last batch was decided, in leases' time."""
        return self.at_ms + self.shift_ms

    def take(self, fact: ClockRead, at_ms: int) -> None:
        """A batch of this time begins with the fact."""
        shift_ms = fact.lease_ms - at_ms
        if shift_ms < self.shift_ms:
            self.gaps = _bounded([*self.gaps, Gap(at_ms - (self.shift_ms - shift_ms), at_ms)])
        self.at_ms, self.shift_ms, self.offset_ms = at_ms, shift_ms, fact.lease_ms - fact.wall_ms

    def older_than(self, age_ms: int, lease_ms: int) -> int:
        """The commit time before which everything is older than this age at a moment in leases' time. Never too late a
        time; too early, if the commit clock has been slowed since then, by as much as has passed at most."""
        cut_ms = self.at_ms + (lease_ms - self.lease_ms) - age_ms
        for gap in reversed(self.gaps):
            if cut_ms >= gap.to_ms:
                break
            cut_ms -= gap.to_ms - gap.from_ms
        return cut_ms


def _bounded(gaps: list[Gap]) -> list[Gap]:
    """The two oldest become one, as if nothing had passed between them either: what is that old goes a little later."""
    if len(gaps) > _GAPS_MAX:
        gaps[:2] = [Gap(gaps[0].from_ms, gaps[1].to_ms)]
    return gaps
