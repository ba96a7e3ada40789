"""The report on a bucket: figures by Spark, as Parquet and as one page of HTML."""
