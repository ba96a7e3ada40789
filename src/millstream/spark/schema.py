"""The columns of a bucket as a table, for Spark and for Arrow. Both say the same, or Spark refuses the batches."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

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

ARROW_SCHEMA = pa.schema(
    [
        ("bucket", pa.string()),
        ("stream", pa.string()),
        ("offset", pa.int64()),
        ("next_offset", pa.int64()),
        ("position", pa.string()),
        ("id", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("content_type", pa.string()),
        ("kind", pa.string()),
        ("value", pa.binary()),
    ]
)
