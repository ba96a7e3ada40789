"""What should be readable and is not: told once in the log, and counted for health and metrics."""

from __future__ import annotations

import logging

from ..model.errors import CorruptData

log = logging.getLogger(__name__)

_PLACES_MAX = 10_000


class DamageBook:
    """One line for each damaged place, however often somebody comes across it."""

    def __init__(self) -> None:
        self._places: set[str] = set()

    def note(self, place: str, what: str) -> None:
        """Safe in any thread."""
        if place not in self._places and len(self._places) < _PLACES_MAX:
            self._places.add(place)
            log.error("%s It is not served. Run 'millstream doctor'.", what)

    def found(self, error: CorruptData) -> CorruptData:
        """Note what is about to be raised."""
        self.note(error.place, error.message)
        return error

    @property
    def count(self) -> int:
        return len(self._places)
