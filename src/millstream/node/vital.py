"""Work that goes on as long as the server does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable

log = logging.getLogger(__name__)


def vital_task(work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
    """A task that nobody waits for: if it fails, the log says so at once, as nothing else would."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_tell_failure)
    return task


async def end_task(task: asyncio.Task[None] | None) -> None:
    """Stop a task and wait for its end, whatever that is."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


def failed_work(tasks: Iterable[asyncio.Task[None]]) -> str | None:
    """Which of these tasks have failed, if any."""
    failed = [task.get_name() for task in tasks if task.done() and not task.cancelled() and task.exception()]
    if not failed:
        return None
    return f"The background work '{', '.join(failed)}' has failed; the server's log has more. Restart the server."


def _tell_failure(task: asyncio.Task[None]) -> None:
    if task.cancelled() or task.exception() is None:
        return
    log.critical(
        "The background work '%s' has failed in a way it must not. What it does stays undone until a restart.",
        task.get_name(),
        exc_info=task.exception(),
    )
