"""Silver: events with columns. What is not an event is kept aside, not dropped."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark: SparkSession

EVENT = """
    at timestamp, type string, step int, agent string, model string, tool string, tokens long, outcome string,
    cost_cents double
"""


def parsed() -> DataFrame:
    messages = spark.readStream.table("bronze_messages").where(f.col("kind") == "message")
    return messages.withColumn("event", f.from_json(f.col("value").cast("string"), EVENT))


@dp.table(comment="One row for each event of an agent's run")
def silver_events() -> DataFrame:
    events = parsed().where("event.type IS NOT NULL")
    return events.select(f.col("stream").alias("run"), "offset", f.col("timestamp").alias("committed_at"), "event.*")


@dp.table(comment="Messages that are no events")
def silver_rejected() -> DataFrame:
    return parsed().where("event.type IS NULL").select("stream", "offset", "timestamp", "value")
