"""The first test to use Spark waits for a JVM, which takes long on a busy machine."""

from __future__ import annotations

from pathlib import Path

import pytest

SPARK_TIMEOUT_S = 600
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))
