"""Ctrl-C and SIGTERM at moments of our choosing, so that they leave nothing half done."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NOTE = b"\nmillstream: finishing what is on its way; once more ends it at once\n"


class Interrupts(AbstractContextManager["Interrupts"]):
    """While this is open, a signal raises KeyboardInterrupt; inside `held` the first one only is remembered, and
    `check` raises it when all is well. The second one raises in any case."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._held = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            # A shell that starts us in the background has Ctrl-C ignored, and so it stays.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def held(self) -> Iterator[None]:
        """A step that is either done or not, and should not be cut in the middle."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def check(self) -> None:
        if self.received is not None:
            raise KeyboardInterrupt

    @property
    def exit_code(self) -> int:
        return 128 + (self.received or signal.SIGINT)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        first = self.received is None
        self.received = number
        if self._held and first:
            os.write(2, _NOTE)  # not print: the signal may have come in the middle of one
            return
        raise KeyboardInterrupt
