"""A progress bar on stderr for what takes longer than a second, where somebody is looking."""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

SHOW_AFTER_S = 1.0


class Meter(AbstractContextManager["Meter"]):
    """Counts bytes. The bar appears after a second, only if stderr is a terminal and (with `prints`) stdout is not
    one too; it is wiped away at the end. Without a total it shows how much, and for how long."""

    def __init__(self, what: str, total: int | None = None, *, prints: bool = False) -> None:
        self._what = what
        self._total = total
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._wanted = sys.stderr.isatty() and not (prints and sys.stdout.isatty())
        self.done = 0

    def __enter__(self) -> Meter:
        if self._wanted:
            self._timer = threading.Timer(SHOW_AFTER_S, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def advance(self, count: int) -> None:
        self.done += count
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done)

    def restart(self) -> None:
        self.advance(-self.done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._wanted = False
            if self._bar is not None:
                self._bar.stop()  # also gives the cursor back

    def _show(self) -> None:
        with self._lock:
            if self._wanted:
                bar = new_bar(known=self._total is not None)
                self._task = bar.add_task(self._what, total=self._total, completed=self.done)
                bar.start()
                self._bar = bar


def new_bar(*, known: bool) -> Progress:
    from rich import progress as rich
    from rich.console import Console

    columns: list[ProgressColumn] = [rich.SpinnerColumn(), rich.TextColumn("{task.description}")]
    columns += [rich.BarColumn()] if known else []
    columns += [rich.DownloadColumn(binary_units=True), rich.TransferSpeedColumn()]
    columns += [rich.TimeRemainingColumn()] if known else [rich.TimeElapsedColumn()]
    return rich.Progress(*columns, console=Console(file=sys.stderr), transient=True)
