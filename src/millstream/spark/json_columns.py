"""JSON messages as columns."""

from __future__ import annotations

import json
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, StringType, StructField, StructType, _parse_datatype_string

from .errors import BadColumns
from .schema import MESSAGE, SPARK_SCHEMA

SAMPLE_ROWS = 1000
_BAD = "_bad"
_PARSED = "_parsed"


class JsonView(NamedTuple):
    """`rows` has the parsed messages, `bad` those that are no such JSON, with their bytes; together they are all.
    `schema` is that of the JSON."""

    rows: DataFrame
    bad: DataFrame
    schema: StructType


def json_view(df: DataFrame, schema: StructType | str | None = None, *, sample: int = SAMPLE_ROWS) -> JsonView:
    """The JSON messages of what the data source has read, as columns.

    `schema` says what to take out of each message, as a `StructType` or such as ``"user STRING, at TIMESTAMP"``;
    without it, it is inferred from up to `sample` messages, which a streaming data frame does not allow. The source's
    own columns come first, under names with an underscore (`_stream`, `_offset`, `_timestamp` and so on).

    A message that is not a JSON object, or whose fields are not of the wanted types, is in `bad` with the columns it
    was read with. Rows of other kinds than `message` are in neither.

    >>> rows, bad, schema = json_view(spark.read.format("millstream").options(url=url, bucket="agents").load())
    """
    messages = df.where(f.col("kind") == MESSAGE)
    wanted = _struct(schema) if schema is not None else _inferred(messages, sample)
    own = [name for name in SPARK_SCHEMA.fieldNames() if name != "value"]
    taken = {f"_{name}" for name in own} | {_BAD}
    if clashing := sorted(taken & set(wanted.fieldNames())):
        raise BadColumns(f"Fields of the JSON have names that the view uses itself: {', '.join(clashing)}.")
    reading = StructType([*wanted.fields, StructField(_BAD, StringType())])
    text = f.col("value").cast("string")
    parsed = messages.withColumn(
        _PARSED, f.from_json(text, reading, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD})
    )
    # What is no object (a number, a list, null) parses to nothing at all, without being called corrupt.
    is_bad = f.col(_PARSED).isNull() | f.col(f"{_PARSED}.{_BAD}").isNotNull() | ~f.ltrim(text).startswith("{")
    rows = parsed.where(~is_bad).select(
        *[f.col(name).alias(f"_{name}") for name in own],
        *[f.col(_PARSED).getField(name).alias(name) for name in wanted.fieldNames()],
    )
    return JsonView(rows, parsed.where(is_bad).drop(_PARSED), wanted)


def _struct(schema: StructType | str) -> StructType:
    parsed = _parse_datatype_string(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType):
        raise BadColumns(f"The schema must name columns, such as 'user STRING, at TIMESTAMP'; it is {parsed}.")
    return parsed


def _inferred(messages: DataFrame, sample: int) -> StructType:
    if messages.isStreaming:
        raise BadColumns(
            "A streaming data frame has no messages yet to infer a schema from. Give one, such as that of a batch "
            "read: json_view(spark.read...load()).schema."
        )
    texts = [bytes(row.value).decode("utf-8", "replace") for row in messages.select("value").limit(sample).collect()]
    objects = [text for text in texts if _is_object(text)]
    if not objects:
        raise BadColumns(f"None of {len(texts)} messages is a JSON object, so there is nothing to infer a schema from.")
    # Spark merges the types of a list's elements, which is just what is wanted of messages.
    found = messages.sparkSession.range(1).select(f.schema_of_json(f.lit(f"[{','.join(objects)}]"))).head()
    assert found is not None
    inferred = _parse_datatype_string(found[0])
    assert isinstance(inferred, ArrayType)
    element = inferred.elementType
    if not isinstance(element, StructType) or not element.fields:
        raise BadColumns("The sampled messages are JSON objects without fields; give a schema.")
    return element


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
