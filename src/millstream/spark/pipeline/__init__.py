"""The data pipeline on Spark: load files into streams, export streams to tables, fold them into snapshots, report."""
