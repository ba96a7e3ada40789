"""A driver of its own that copies streams; tests kill it. Arguments: URL, bucket, checkpoint, partitions."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.faults import Faults, FaultySource, start_copying


def main(
    url: str, bucket: str, checkpoint: str, partitions: str = "2", faults: str = "", master: str = "local[2]"
) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "600m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(FaultySource)
    where = {"url": url, "bucket": bucket}
    query = start_copying(
        spark,
        where,
        where,
        checkpoint=Path(checkpoint),
        faults=Faults(faults) if faults else None,
        partitions=int(partitions),
        per_trigger=20,
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
