"""The report's figures, by Spark: one scan of the bucket, joined with its listing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as f

from ..target import Target
from .figures import Figures, Interval, StreamFigures, Totals, interval_for, size_class, without_gaps

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

LISTED_SCHEMA = pa.schema(
    [
        ("stream", pa.string()),
        ("content_type", pa.string()),
        ("closed", pa.bool_()),
        ("snapshot", pa.bool_()),
        ("tail_offset", pa.int64()),
        ("last_ms", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of the page, and all streams as a table."""

    figures: Figures
    streams: DataFrame


@contextmanager
def measured(
    spark: SparkSession, target: Target, silent_after_s: float, rows: int, now: datetime
) -> Iterator[Measured]:
    """Read the bucket once and hold what is needed of each message (stream, time, size) while the figures are made."""
    scanned = target.read(spark, {}).select(
        "stream",
        "kind",
        (f.unix_micros("timestamp") / 1_000_000).alias("at_s"),
        f.coalesce(f.length("value"), f.lit(0)).alias("size"),
    )
    held = scanned.persist()
    try:
        messages = held.where(f.col("kind") == "message")
        streams = _streams(spark, target, messages).persist()
        try:
            yield Measured(_figures(target, held, messages, streams, silent_after_s, rows, now), streams)
        finally:
            streams.unpersist()
    finally:
        held.unpersist()


def _streams(spark: SparkSession, target: Target, messages: DataFrame) -> DataFrame:
    """One row for each stream that exists, those without messages included."""
    with target.client() as client:
        listed = [
            {
                "stream": entry.stream_id,
                "content_type": entry.content_type,
                "closed": entry.closed,
                "snapshot": entry.snapshot_offset is not None,
                "tail_offset": entry.tail_offset,
                "last_ms": entry.last_write_at_ms,
            }
            for entry in client.bucket(target.bucket).streams(target.prefix)
        ]
    found = messages.groupBy("stream").agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.max("size").alias("largest"),
        f.min("at_s").alias("first_s"),
        f.max("at_s").alias("last_message_s"),
    )
    table = spark.createDataFrame(pa.Table.from_pylist(listed, schema=LISTED_SCHEMA))
    return table.join(found, "stream", "left").select(
        "stream",
        "content_type",
        "closed",
        "snapshot",
        "tail_offset",
        *(f.coalesce(f.col(name), f.lit(0)).alias(name) for name in ("messages", "bytes", "largest")),
        f.timestamp_micros((f.col("first_s") * 1_000_000).cast("long")).alias("first_message_at"),
        f.timestamp_micros((f.col("last_message_s") * 1_000_000).cast("long")).alias("last_message_at"),
        f.timestamp_millis("last_ms").alias("last_write_at"),
    )


def _figures(
    target: Target,
    held: DataFrame,
    messages: DataFrame,
    streams: DataFrame,
    silent_after_s: float,
    rows: int,
    now: datetime,
) -> Figures:
    totals = _totals(held, messages, streams)
    interval_s = interval_for(totals.seconds)
    is_silent = ~f.col("closed") & (f.unix_millis("last_write_at") < f.lit((now.timestamp() - silent_after_s) * 1000))
    silent = streams.where(is_silent)
    hottest = streams.where("messages > 0").orderBy(f.desc("messages"), "stream").limit(rows)
    return Figures(
        bucket=target.source,
        made_at=now,
        totals=totals,
        interval_s=interval_s,
        intervals=without_gaps(_intervals(messages, interval_s), interval_s),
        sizes=_sizes(messages),
        hottest=[_stream(row) for row in hottest.collect()],
        silent=[_stream(row) for row in silent.orderBy("last_write_at", "stream").limit(rows).collect()],
        silent_after_s=silent_after_s,
        silent_count=silent.count(),
    )


def _totals(held: DataFrame, messages: DataFrame, streams: DataFrame) -> Totals:
    sums = _first(
        messages.agg(
            f.count("*").alias("messages"),
            f.coalesce(f.sum("size"), f.lit(0)).alias("bytes"),
            f.coalesce(f.max("size"), f.lit(0)).alias("largest"),
            f.percentile_approx("size", [0.5, 0.99]).alias("percentiles"),
            f.min("at_s").alias("first_s"),
            f.max("at_s").alias("last_s"),
        )
    )
    listed = _first(streams.agg(f.count("*").alias("all"), _count_if("closed"), _count_if("snapshot")))
    median, p99 = sums["percentiles"] or (0, 0)
    return Totals(
        streams=listed["all"],
        closed=listed["closed"],
        messages=sums["messages"],
        bytes=sums["bytes"],
        gaps=held.where(f.col("kind") == "gap").count(),
        snapshots=listed["snapshot"],
        median_bytes=median,
        p99_bytes=p99,
        largest_bytes=sums["largest"],
        first_at=_moment(sums["first_s"]),
        last_at=_moment(sums["last_s"]),
    )


def _intervals(messages: DataFrame, interval_s: int) -> list[Interval]:
    start = (f.floor(f.col("at_s") / interval_s) * interval_s).alias("start_s")
    found = messages.groupBy(start).agg(f.count("*").alias("messages"), f.sum("size").alias("bytes")).collect()
    return [Interval(datetime.fromtimestamp(row["start_s"], UTC), row["messages"], row["bytes"]) for row in found]


def _sizes(messages: DataFrame) -> list[Any]:
    """Classes by the number of binary digits, without holes between the smallest and the largest."""
    power = f.when(f.col("size") == 0, 0).otherwise(f.floor(f.log2("size")) + 1).cast("int").alias("power")
    found = {
        row["power"]: (row["messages"], row["bytes"])
        for row in messages.groupBy(power).agg(f.count("*").alias("messages"), f.sum("size").alias("bytes")).collect()
    }
    if not found:
        return []
    return [size_class(power, *found.get(power, (0, 0))) for power in range(min(found), max(found) + 1)]


def _stream(row: Row) -> StreamFigures:
    return StreamFigures(
        stream=row["stream"],
        content_type=row["content_type"],
        closed=row["closed"],
        messages=row["messages"],
        bytes=row["bytes"],
        largest=row["largest"],
        first_at=_aware(row["first_message_at"]),
        last_at=_aware(row["last_message_at"] or row["last_write_at"]) or datetime.fromtimestamp(0, UTC),
    )


def _count_if(name: str) -> Column:
    return f.count_if(f.col(name)).alias(name)


def _first(frame: DataFrame) -> dict[str, Any]:
    row = frame.first()
    assert row is not None, "an aggregate has one row"
    return row.asDict()


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _aware(moment: datetime | None) -> datetime | None:
    """Spark gives local times without a zone."""
    return None if moment is None else moment.astimezone(UTC)
