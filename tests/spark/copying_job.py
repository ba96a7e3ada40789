"""A driver of its own that copies streams: for tests that kill it, or run it on a cluster.

It prints what the cluster's workers import the package from, and how many rows a batch read gives.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.faults import Faults, FaultySource, start_copying

from millstream.spark import register


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("bucket")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--target-url")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--per-trigger", type=int, default=20)
    parser.add_argument("--faults")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("--register", action="store_true", help="as one must where Spark does not find the source")
    return parser.parse_args(arguments)


def session(arguments: argparse.Namespace) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master(arguments.master)
        .config("spark.driver.memory", "600m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
    )
    for setting in arguments.conf:
        name, _, value = setting.partition("=")
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def imported_from(_: object) -> str:
    import millstream

    return str(millstream.__file__)


def main(arguments: argparse.Namespace) -> None:
    spark = session(arguments)
    if arguments.register:
        register(spark)
    if arguments.faults:
        spark.dataSource.register(FaultySource)
    where = {"url": arguments.url, "bucket": arguments.bucket}
    query = start_copying(
        spark,
        where,
        {**where, "url": arguments.target_url or arguments.url},
        checkpoint=arguments.checkpoint,
        faults=Faults(arguments.faults) if arguments.faults else None,
        partitions=arguments.partitions,
        per_trigger=arguments.per_trigger,
    )
    query.awaitTermination()
    print("rows", spark.read.format("millstream").options(**where, prefix="out-", minPartitions="2").load().count())
    print("imported", *spark.sparkContext.parallelize([0, 1], 2).map(imported_from).distinct().collect())
    spark.stop()


if __name__ == "__main__":
    main(parsed(sys.argv[1:]))
