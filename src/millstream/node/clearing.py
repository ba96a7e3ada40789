"""Removing objects that are of no more use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ..storage.objects import LocalObjects

log = logging.getLogger(__name__)


async def clear_away(objects: LocalObjects, names: Sequence[str]) -> None:
    """Remove objects of one folder that nothing names. Nobody's answer depends on it."""
    if names:
        try:
            await asyncio.to_thread(objects.remove, names)
        except OSError as error:
            log.error("Objects cannot be cleared away: %s. The next start does it.", error)
