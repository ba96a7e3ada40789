"""Work that goes on as long as the server does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

log = logging.getLogger(__name__)


def vital_task(work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
    """A task that nobody waits for: if it fails, the log says so at once, as nothing else would."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_tell_failure)
    return task


def _tell_failure(task: asyncio.Task[None]) -> None:
    if task.cancelled() or task.exception() is None:
        return
    log.critical(
        "The background work '%s' has failed in a way it must not. What it does stays undone until a restart.",
        task.get_name(),
        exc_info=task.exception(),
    )
