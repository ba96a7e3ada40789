"""Fixtures of the kill tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.torture.harness import BUSY, Victim


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    """A server that rolls, checkpoints, merges and evicts all the time. Not started yet."""
    server = Victim(tmp_path, BUSY)
    yield server
    server.stop()
