"""The only reader of time. It is asked for three things, and has a reading for each (docs/decisions/0021):

    wall_ms    what the machine's clock says, which may be set: for moments that people name
    commit_ms  dates facts. Never goes back; where it is ahead of the wall clock it runs at half speed until that has
               caught up, so that ages grow all the same
    lease_ms   counts time that passes, and nothing else: for everything that lasts so and so long. Whoever sets the
               machine's clock does not move it, neither ahead nor back

All three are the same as long as nobody sets the machine's clock.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import msgspec

from ..model.timeline import Timeline

log = logging.getLogger(__name__)

_FILE = "clock.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = "/proc/self/ns/time"
_STEP_MS = 20  # what wall and running clock may part before it counts as a step
_TRIES = 100
_RUNNING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # a machine that sleeps grows older, too


class Clock:
    def __init__(self) -> None:
        self.go_on(Timeline())

    def go_on(self, timeline: Timeline, base_ms: int | None = None) -> None:
        """Continue where a log ends. Time without a process counts: by the running clock, if the machine has not been
        started since (`base_ms`), otherwise as far as the wall clock knows of it."""
        wall, running = self.wall_ms(), _running_ms()
        passed = wall + timeline.offset_ms if base_ms is None else running + base_ms
        self._last = max(passed, timeline.lease_ms)
        self._offset_ms = self._last - wall  # from the wall clock to leases' time
        self.base_ms = self._last - running  # from the running clock to leases' time
        self._committed = timeline.at_ms, timeline.lease_ms

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def lease_ms(self) -> int:
        return self._read()[1]

    def commit_ms(self) -> int:
        return self.now()[0]

    def now(self) -> tuple[int, int, int]:
        """Commit, leases' and wall time of one moment."""
        wall, lease = self._read()
        committed, committed_lease = self._committed
        slowed = committed + (lease - committed_lease) // 2
        if wall < slowed:
            return slowed, lease, wall
        self._committed = wall, lease
        return wall, lease, wall

    def _read(self) -> tuple[int, int]:
        wall = time.time_ns() // 1_000_000
        lease = wall + self._offset_ms
        parted = lease - self.base_ms - time.clock_gettime_ns(_RUNNING) // 1_000_000
        if not -_STEP_MS < parted < _STEP_MS or lease < self._last - _STEP_MS:
            wall, lease = self._step()
        if lease < self._last:
            lease = self._last
        self._last = lease
        return wall, lease

    def _step(self) -> tuple[int, int]:
        """The wall clock was set: from now on it is another way to leases' time."""
        for _ in range(_TRIES):
            running = _running_ms()
            wall = time.time_ns() // 1_000_000
            if _running_ms() - running < _STEP_MS // 2:
                break  # else we were stopped in between, and the two do not belong together
        self.base_ms = max(self.base_ms, self._last - running)  # no clock at all should go back
        if not -_STEP_MS < wall + self._offset_ms - self.base_ms - running < _STEP_MS:
            self._offset_ms = running + self.base_ms - wall
        return wall, wall + self._offset_ms


class _Boot(msgspec.Struct, frozen=True):
    """Which start of the machine it was, and how its running clock lay to leases' time."""

    boot_id: str
    base_ms: int


def base_of_this_boot(folder: Path) -> int | None:
    """From the running clock to leases' time, as the last server here had it; None if that was before a reboot."""
    try:
        noted = msgspec.json.decode((folder / _FILE).read_bytes(), type=_Boot)
        return noted.base_ms if noted.boot_id == _boot_id() else None
    except (OSError, msgspec.DecodeError):  # the first start, or a system that does not tell; it is not synced either
        return None


def note_base(folder: Path, base_ms: int) -> None:
    try:
        temporary = folder / f".tmp-{_FILE}"
        temporary.write_bytes(msgspec.json.encode(_Boot(_boot_id(), base_ms)) + b"\n")
        temporary.replace(folder / _FILE)
    except OSError as error:
        log.warning(
            "%s cannot be written: %s. A clock that is set while no server runs will be believed.", _FILE, error
        )


def _boot_id() -> str:
    """A container may have a running clock of its own: then it is another boot."""
    return f"{_BOOT_ID.read_text().strip()} {os.readlink(_TIME_NAMESPACE)}"


class HelpersClock:
    """Leases' time in a helper process. What it needs is told by its server."""

    def __init__(self, base_ms: int) -> None:
        self._base_ms = base_ms

    def lease_ms(self) -> int:
        return _running_ms() + self._base_ms


def _running_ms() -> int:
    return time.clock_gettime_ns(_RUNNING) // 1_000_000
