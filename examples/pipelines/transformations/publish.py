"""And back: every run that ends is announced in a stream, exactly once, for whoever follows it over HTTP."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark: SparkSession

dp.create_sink(
    "finished_runs",
    format="millstream",
    options={
        "url": os.environ.get("MILLSTREAM_URL", "http://127.0.0.1:4437"),
        "bucket": os.environ.get("MILLSTREAM_SINK_BUCKET", "announcements"),
        "stream": "finished-runs",
        "createStreams": "true",
        "contentType": "application/json",
        "orderBy": "at",
    },
)


@dp.append_flow(target="finished_runs")
def announce_finished_runs() -> DataFrame:
    finished = spark.readStream.table("silver_events").where(f.col("type") == "run_finished")
    return finished.select("at", f.to_json(f.struct("run", "outcome", "cost_cents")).alias("value"))
