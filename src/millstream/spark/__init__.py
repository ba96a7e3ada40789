"""Spark: buckets as tables, streams as sinks, and the pipeline."""
