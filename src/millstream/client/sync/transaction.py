"""One transaction, for threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import bulk, transacting
from ..operations import Target
from ..transacting import Committed, Rows, Staged, TransactionState
from .driver import Driver


class Transaction:
    """Appends to many streams of a bucket, all or nothing and exactly once: stage parts, then commit them."""

    def __init__(self, driver: Driver, target: Target, app: str, version: int) -> None:
        self._driver = driver
        self._target = target
        self.app = app
        self.version = version

    def __repr__(self) -> str:
        return f"Transaction({self.app!r}, {self.version})"

    def stage(self, part: str, rows: Rows) -> Staged:
        """Stage a part: rows with ``stream``, ``value`` or ``json``, and perhaps ``order``. Again replaces it."""
        body = transacting.encode_rows(rows)
        return self._driver.run(transacting.stage(self._target, self.app, self.version, part, body, bulk.NDJSON))

    def stage_arrow(self, part: str, table: Any) -> Staged:
        """Stage a part from a pyarrow Table or record batches with the columns ``stream``, ``value``, perhaps
        ``order``."""
        body = transacting.encode_arrow(table)
        return self._driver.run(transacting.stage(self._target, self.app, self.version, part, body, bulk.ARROW))

    def commit(
        self, parts: Sequence[str | Staged], *, create: bool = False, content_type: str | None = None
    ) -> Committed:
        """Make the parts visible, in this order; `create` makes streams that do not exist. May be repeated."""
        return self._driver.run(transacting.commit(self._target, self.app, self.version, parts, create, content_type))

    def state(self) -> TransactionState:
        return self._driver.run(transacting.state(self._target, self.app, self.version))

    def drop(self) -> None:
        """Drop what is staged; a committed version stays committed."""
        self._driver.run(transacting.drop(self._target, self.app, self.version))
