"""The columns of a bucket as a table, for Spark and for Arrow. Both say the same, or Spark refuses the batches."""

from __future__ import annotations

from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from ..storage.archive.arrow import SCHEMA

MESSAGE, SNAPSHOT, GAP = "message", "snapshot", "gap"

SPARK_SCHEMA = StructType(
    [
        StructField("bucket", StringType()),
        StructField("stream", StringType()),
        StructField("offset", LongType()),
        StructField("next_offset", LongType()),
        StructField("position", StringType()),
        StructField("id", StringType()),
        StructField("timestamp", TimestampType()),
        StructField("content_type", StringType()),
        StructField("kind", StringType()),
        StructField("value", BinaryType()),
    ]
)

ARROW_SCHEMA = SCHEMA  # what the files and the server say already
