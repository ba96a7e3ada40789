"""The data source `millstream`: a bucket as a table that can be read, followed and written."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .batch import BatchReader
from .errors import BadColumns
from .options import (
    batch_read_options,
    batch_write_options,
    refuse_nonsense,
    stream_read_options,
    stream_write_options,
)
from .schema import SPARK_SCHEMA
from .stream import StreamReader
from .writing import BatchWriter, StreamWriter


class MillstreamSource(DataSource):
    """Reads and writes the streams of one bucket. docs/spark.md has every option.

    Columns: bucket, stream, offset, next_offset, position, id, timestamp, content_type, kind, value.

    Examples
    --------
    Read everything that is in a bucket:

    >>> spark.read.format("millstream").option("url", "http://127.0.0.1:4437").option("bucket", "agents").load()

    Follow it:

    >>> spark.readStream.format("millstream").options(url=url, bucket="agents", startingOffsets="earliest").load()

    Append rows with the columns `stream` and `value`:

    >>> df.write.format("millstream").options(url=url, bucket="agents", createStreams="true").mode("append").save()
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        refuse_nonsense(options)

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def schema(self) -> StructType:
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        _check_schema(schema)
        return BatchReader(batch_read_options(self.options))

    def streamReader(self, schema: StructType) -> StreamReader:
        _check_schema(schema)
        return StreamReader(stream_read_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(batch_write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(stream_write_options(self.options), schema, overwrite)


def _check_schema(schema: StructType) -> None:
    wanted = [(field.name, field.dataType) for field in SPARK_SCHEMA]
    if [(field.name, field.dataType) for field in schema] != wanted:
        raise BadColumns(
            f"The columns are fixed: {', '.join(SPARK_SCHEMA.fieldNames())}. Leave schema() out and select what you "
            "need; millstream.spark.json_view makes columns of JSON values."
        )
