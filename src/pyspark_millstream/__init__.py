"""Spark finds data sources in top-level modules named ``pyspark_*``: this one is how it finds ours."""

from millstream.spark.source import MillstreamSource as DefaultSource

__all__ = ["DefaultSource"]
