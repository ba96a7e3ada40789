"""Bronze: everything that comes into the bucket, as it comes."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark: SparkSession  # given by Spark to every file of definitions


@dp.table(comment="All messages of the bucket, with stream, offset, position and commit time")
def bronze_messages() -> DataFrame:
    return (
        spark.readStream.format("millstream")
        .option("url", os.environ.get("MILLSTREAM_URL", "http://127.0.0.1:4437"))
        .option("bucket", os.environ.get("MILLSTREAM_BUCKET", "agents"))
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "false")  # trimmed history comes as rows of kind `gap`
        .load()
    )
