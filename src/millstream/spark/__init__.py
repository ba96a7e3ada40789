"""Millstream on Spark: the data source `millstream`, and views on what it reads. See docs/spark.md.

It registers itself where this package is installed. With ``--py-files``, call `register(spark)` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .json_columns import JsonView, json_view
from .source import MillstreamSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JsonView", "MillstreamSource", "json_view", "register"]


def register(spark: SparkSession) -> None:
    """Make the data source known to a session."""
    spark.dataSource.register(MillstreamSource)
