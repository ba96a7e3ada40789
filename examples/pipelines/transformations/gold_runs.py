"""Gold: one row for each run."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark: SparkSession


@dp.materialized_view(comment="How long each run took, what it used and how it ended")
def gold_runs() -> DataFrame:
    return (
        spark.read.table("silver_events")
        .groupBy("run")
        .agg(
            f.min("at").alias("started_at"),
            f.max("at").alias("last_event_at"),
            f.count("*").alias("events"),
            f.sum("tokens").alias("tokens"),
            f.count_if(f.col("type") == "tool_call").alias("tool_calls"),
            f.max("outcome").alias("outcome"),
            f.max("cost_cents").alias("cost_cents"),
        )
    )
