"""The data source with faults in it, and the job that the fault tests run: it copies streams.

A fault is a file in the folder that the option `faults` names; whoever takes it away has to fail. So each happens once,
in whatever process gets there first.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from millstream.spark import MillstreamSource
from millstream.spark.options import stream_write_options
from millstream.spark.writing import StagedParts, StreamWriter

BEFORE_STAGING = "before-staging"
AFTER_STAGING = "after-staging"
STAGED_TWICE = "staged-twice"
BEFORE_COMMIT = "before-commit"
AFTER_COMMIT = "after-commit"
HANGS = "hangs"


class Fault(Exception):
    pass


class Faults:
    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def arm(self, name: str, *, hangs: bool = False) -> None:
        """Have someone fail there, or hang there until he is killed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / HANGS).unlink(missing_ok=True)
        if hangs:
            (self._folder / HANGS).touch()
        (self._folder / name).touch()

    def left(self) -> list[str]:
        return sorted(path.name for path in self._folder.iterdir()) if self._folder.exists() else []

    def takes(self, name: str) -> bool:
        try:
            (self._folder / name).unlink()
        except FileNotFoundError:
            return False
        return True

    def strike(self, name: str) -> None:
        if not self.takes(name):
            return
        if self.takes(HANGS):
            time.sleep(120)
        raise Fault(name)


class FaultyWriter(StreamWriter):
    def __init__(self, source: FaultySource, schema: StructType, overwrite: bool) -> None:
        super().__init__(stream_write_options(source.options), schema, overwrite)
        self._faults = Faults(source.faults)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedParts:
        self._faults.strike(BEFORE_STAGING)
        batches = list(iterator)
        if self._faults.takes(STAGED_TWICE):  # as a speculative task does whose twin is quicker
            super().write(iter(batches))
        staged = super().write(iter(batches))
        self._faults.strike(AFTER_STAGING)
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._faults.strike(BEFORE_COMMIT)
        super().commit(messages, batchId)
        self._faults.strike(AFTER_COMMIT)


class FaultySource(MillstreamSource):
    def __init__(self, options) -> None:
        options = dict(options)
        self.faults = options.pop("faults", "")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "millstream-faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> FaultyWriter:
        return FaultyWriter(self, schema, overwrite)


def start_copying(
    spark: SparkSession,
    source: dict[str, str],
    target: dict[str, str],
    *,
    checkpoint: Path,
    faults: Faults | None = None,
    partitions: int = 2,
    per_trigger: int = 40,
):
    """Copy the streams `in-*` to `out-*`, a few messages at a time, after a shuffle; ends when all is copied."""
    read = spark.readStream.format("millstream").options(
        **source, prefix="in-", startingOffsets="earliest", maxOffsetsPerTrigger=str(per_trigger)
    )
    rows = shuffled(read.load(), partitions).select(
        f.concat(f.lit("out-"), f.substring("stream", 4, 100)).alias("stream"), "value", "offset"
    )
    write = rows.writeStream.format("millstream-faulty" if faults else "millstream").options(
        **target, createStreams="true", contentType="text/plain", orderBy="offset", checkpointLocation=str(checkpoint)
    )
    if faults:
        write = write.option("faults", str(faults._folder))
    return write.trigger(availableNow=True).start()


def shuffled(df: DataFrame, partitions: int) -> DataFrame:
    """Rows in an order that changes from run to run, spread over partitions."""
    return df.withColumn("_key", f.rand()).repartition(partitions, "_key").drop("_key").mapInArrow(_mixed, df.schema)


def _mixed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        order = list(range(batch.num_rows))
        random.shuffle(order)
        yield batch.take(pa.array(order, pa.int64()))
