"""The report's figures, by Spark: one scan of the bucket, three small aggregates, joined with the listing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from ..target import Target
from .figures import (
    Figures,
    Interval,
    SizeClass,
    StreamFigures,
    Totals,
    interval_for,
    size_class,
    without_gaps,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of the page, and those of every stream."""

    figures: Figures
    streams: Sequence[StreamFigures]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a report should go by: `time_member` is a member of JSON messages that holds their time."""

    silent_after_s: float
    time_member: str | None
    rows: int


def measure(spark: SparkSession, target: Target, wishes: Wishes, now: datetime) -> Measured:
    """Read the bucket once; what is needed of each message (stream, time, size) is held while the figures are made."""
    scanned = target.read(spark, {}).select(
        "stream",
        "kind",
        (f.unix_micros(_time(wishes.time_member)) / 1_000_000).alias("at_s"),
        f.coalesce(f.length("value"), f.lit(0)).alias("size"),
    )
    held = scanned.persist()
    try:
        streams, gaps, snapshots = _streams(target, held)
        messages = held.where(f.col("kind") == "message")
        totals = _totals(messages, streams, gaps, snapshots)
        interval_s = interval_for(totals.seconds)
        intervals, sizes = _histograms(messages, interval_s)
    finally:
        held.unpersist()
    silent = [
        one for one in streams if not one.closed and (now - one.written_at).total_seconds() > wishes.silent_after_s
    ]
    return Measured(
        Figures(
            bucket=target.source,
            made_at=now,
            totals=totals,
            interval_s=interval_s,
            intervals=intervals,
            sizes=sizes,
            hottest=sorted((one for one in streams if one.messages), key=_heat)[: wishes.rows],
            silent=sorted(silent, key=lambda one: one.written_at)[: wishes.rows],
            silent_after_s=wishes.silent_after_s,
            silent_count=len(silent),
        ),
        streams,
    )


def _time(member: str | None) -> Column:
    """When a message was committed; or the time that it says itself, where it says one."""
    committed = f.col("timestamp")
    if member is None:
        return committed
    said = f.get_json_object(f.col("value").cast("string"), f"$['{member}']")
    return f.coalesce(f.try_to_timestamp(said), committed)


def _heat(stream: StreamFigures) -> tuple[int, int, str]:
    return -stream.messages, -stream.bytes, stream.stream


def _streams(target: Target, held: DataFrame) -> tuple[list[StreamFigures], int, int]:
    """Every stream that exists, those without messages included; and how many gaps and snapshots there are."""
    is_message = f.col("kind") == "message"
    found = held.groupBy("stream").agg(
        f.count_if(is_message).alias("messages"),
        f.count_if(f.col("kind") == "gap").alias("gaps"),
        f.sum(f.when(is_message, f.col("size"))).alias("bytes"),
        f.max(f.when(is_message, f.col("size"))).alias("largest"),
        f.min(f.when(is_message, f.col("at_s"))).alias("first_s"),
        f.max(f.when(is_message, f.col("at_s"))).alias("last_s"),
    )
    rows: dict[str, Row] = {row["stream"]: row for row in found.collect()}
    streams: list[StreamFigures] = []
    snapshots = 0
    with target.client() as client:
        for listed in client.bucket(target.bucket).streams(target.prefix):
            snapshots += listed.snapshot_offset is not None
            row = rows.get(listed.stream_id)
            streams.append(
                StreamFigures(
                    stream=listed.stream_id,
                    content_type=listed.content_type,
                    closed=listed.closed,
                    messages=row["messages"] if row else 0,
                    bytes=(row["bytes"] if row else 0) or 0,
                    largest=(row["largest"] if row else 0) or 0,
                    first_at=_moment(row["first_s"]) if row else None,
                    last_at=_moment(row["last_s"]) if row else None,
                    written_at=datetime.fromtimestamp(listed.last_write_at_ms / 1000, UTC),
                )
            )
    return streams, sum(row["gaps"] for row in rows.values()), snapshots


def _totals(messages: DataFrame, streams: Sequence[StreamFigures], gaps: int, snapshots: int) -> Totals:
    """Of all messages, those of streams that were deleted meanwhile included."""
    row = messages.agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.max("size").alias("largest"),
        f.percentile_approx("size", [0.5, 0.99]).alias("percentiles"),
        f.min("at_s").alias("first_s"),
        f.max("at_s").alias("last_s"),
    ).first()
    assert row is not None, "an aggregate has one row"
    median, p99 = row["percentiles"] or (0, 0)
    return Totals(
        streams=len(streams),
        closed=sum(one.closed for one in streams),
        messages=row["messages"],
        bytes=row["bytes"] or 0,
        gaps=gaps,
        snapshots=snapshots,
        median_bytes=median,
        p99_bytes=p99,
        largest_bytes=row["largest"] or 0,
        first_at=_moment(row["first_s"]),
        last_at=_moment(row["last_s"]),
    )


def _histograms(messages: DataFrame, interval_s: int) -> tuple[list[Interval], list[SizeClass]]:
    """By time and by size, out of one aggregate over both. Sizes are classed by their number of binary digits."""
    start = (f.floor(f.col("at_s") / interval_s) * interval_s).alias("start_s")
    power = f.when(f.col("size") == 0, 0).otherwise(f.floor(f.log2("size")) + 1).cast("int").alias("power")
    found = messages.groupBy(start, power).agg(f.count("*").alias("messages"), f.sum("size").alias("bytes")).collect()
    times, sizes = _summed(found, "start_s"), _summed(found, "power")
    intervals = [Interval(datetime.fromtimestamp(start_s, UTC), *sums) for start_s, sums in times.items()]
    classes = range(min(sizes), max(sizes) + 1) if sizes else ()
    return without_gaps(intervals, interval_s), [size_class(n, *sizes.get(n, (0, 0))) for n in classes]


def _summed(rows: Sequence[Row], key: str) -> dict[Any, tuple[int, int]]:
    messages: Counter[Any] = Counter()
    size: Counter[Any] = Counter()
    for row in rows:
        messages[row[key]] += row["messages"]
        size[row[key]] += row["bytes"]
    return {value: (messages[value], size[value]) for value in messages}


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
