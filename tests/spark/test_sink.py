"""The sink on Spark: what it writes, what it refuses, and that every micro-batch is written exactly once whatever
goes wrong. Each fault is injected for real, and the bytes are compared."""

from __future__ import annotations

import shutil

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as f
from tests.spark.faults import (
    AFTER_COMMIT,
    AFTER_STAGING,
    BEFORE_COMMIT,
    BEFORE_STAGING,
    STAGED_TWICE,
    Faults,
    FaultySource,
    start_copying,
)

from millstream.spark.writing import BATCH_ID, QUERY_ID

WAIT_S = 300  # a machine with much else to do
STREAMS, MESSAGES = 4, 40  # of 40 messages, four batches are made


@pytest.fixture(scope="module", autouse=True)
def faulty(spark):
    spark.dataSource.register(FaultySource)


def sink(df, bucket, **options):
    return df.write.format("millstream").mode("append").options(**bucket.where, **options)


def words(spark, count: int, streams: int, partitions: int = 3):
    return spark.range(0, count, 1, partitions).select(
        f.concat(f.lit("s"), f.col("id") % streams).alias("stream"),
        f.format_string("%05d ", "id").alias("value"),
        f.col("id").alias("n"),
    )


def expected(count: int, streams: int, stream: int) -> bytes:
    return b"".join(b"%05d " % number for number in range(stream, count, streams))


# --- df.write


def test_rows_become_messages_of_their_streams(spark, bucket):
    made = bucket()
    sink(words(spark, 100, 3), made, createStreams="true", contentType="text/plain", orderBy="n").save()
    assert made.streams() == ["s0", "s1", "s2"]
    assert [made.read(f"s{number}") for number in range(3)] == [expected(100, 3, number) for number in range(3)]
    assert made.http.head("s0").headers["Content-Type"] == "text/plain"
    rows = spark.read.format("millstream").options(**made.where).load()
    assert rows.count() == 100  # one row, one message
    # The application that was made up for this write is forgotten again.
    assert rows.select("position").distinct().count() >= 1


def test_the_order_is_that_of_the_column_whatever_its_type(spark, bucket):
    made = bucket()
    rows = words(spark, 60, 1).orderBy(f.rand())
    for stream, order in (
        ("numbers", f.col("n").cast("int")),
        ("texts", f.format_string("%05d", "n")),
        ("times", f.timestamp_seconds(f.col("n") + 1_000_000)),
    ):
        options = {"createStreams": "true", "stream": stream, "orderBy": "at"}
        sink(rows.select("value", order.alias("at")), made, **options).save()
        assert made.read(stream) == expected(60, 1, 0)


def test_without_an_order_partitions_and_rows_keep_theirs(spark, bucket):
    made = bucket()
    sink(words(spark, 90, 1, partitions=4), made, createStreams="true").save()
    assert made.read("s0") == expected(90, 1, 0)


def test_a_version_is_written_once(spark, bucket):
    made = bucket()
    made.create("s0")
    rows = words(spark, 10, 1)
    for version in ("7", "7", "8"):
        sink(rows, made, orderBy="n", txnAppId="etl", txnVersion=version).save()
    assert made.read("s0") == expected(10, 1, 0) * 2
    with pytest.raises(Exception, match="A later version of 'etl' than 7 is committed"):
        sink(rows, made, orderBy="n", txnAppId="etl", txnVersion="7").save()
    assert made.read("s0") == expected(10, 1, 0) * 2


def test_all_or_nothing(spark, bucket):
    made = bucket()
    made.create("s0")
    with pytest.raises(AnalysisException, match="createStreams to true"):
        sink(words(spark, 10, 2), made).save()
    assert made.read("s0") == b""
    assert made.streams() == ["s0"]


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["n"], {}, "needs a column value of type binary or string, but has n (bigint)"),
        (["value"], {}, "needs to know the stream"),
        (["stream", "value"], {"orderBy": "m"}, "The option orderBy is 'm'. Allowed is a column with whole numbers"),
        (["stream", "value"], {"colour": "red"}, "There is no option colour"),
        (["stream", "value"], {"createStreams": "maybe"}, "The option createStreams is 'maybe'"),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(spark, bucket, columns, options, said):
    made = bucket()
    with pytest.raises(AnalysisException) as refused:
        sink(words(spark, 5, 1).select(*columns), made, **options).save()
    assert said in str(refused.value)
    assert made.streams() == []


def test_streams_are_append_only(spark, bucket):
    made = bucket()
    with pytest.raises(AnalysisException, match="Streams are append-only"):
        sink(words(spark, 5, 1), made).mode("overwrite").save()


def test_rows_without_a_value_are_refused(spark, bucket):
    made = bucket()
    rows = words(spark, 5, 1).withColumn("value", f.when(f.col("n") != 3, f.col("value")))
    with pytest.raises(Exception, match="The column value is null in 1 of"):
        sink(rows, made, createStreams="true").save()
    assert made.streams() == []


# --- df.writeStream, exactly once


@pytest.fixture
def filled(bucket):
    made = bucket()
    for number in range(MESSAGES):
        for stream in range(STREAMS):
            if number == 0:
                made.create(f"in-{stream}")
            made.append(f"in-{stream}", b"%d/%d " % (stream, number))
    return made


@pytest.fixture
def faults(tmp_path):
    return Faults(str(tmp_path / "faults"))


def assert_copied(made) -> None:
    for stream in range(STREAMS):
        assert made.read(f"out-{stream}") == made.read(f"in-{stream}"), f"stream {stream} differs"


def finish(query) -> None:
    query.awaitTermination(WAIT_S)
    assert not query.isActive, "the query hangs"


def copy(*arguments, **options):
    """Copy everything. Spark gives a new Python process 10 s to answer; on a busy machine it may need another try."""
    for _ in range(5):
        query = start_copying(*arguments, **options)
        try:
            finish(query)
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
        else:
            return query
    pytest.fail("Spark could not start its Python processes")


def test_spark_says_which_batch_a_task_belongs_to(spark, filled, tmp_path):
    """The keys are Spark's own and undocumented; the sink cannot do without them."""

    def told(batches):
        import pyarrow as pa
        from pyspark import TaskContext

        for _ in batches:
            pass
        context = TaskContext.get()
        yield pa.record_batch(
            {"batch": [context.getLocalProperty(BATCH_ID)], "query": [context.getLocalProperty(QUERY_ID)]}
        )

    read = spark.readStream.format("millstream").options(**filled.where, startingOffsets="earliest")
    rows = read.option("maxOffsetsPerTrigger", "80").load().mapInArrow(told, "batch STRING, query STRING")
    query = rows.writeStream.format("memory").queryName("told").trigger(availableNow=True)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    finish(query)
    found = {(row.batch, row.query) for row in spark.table("told").collect()}
    assert found == {("0", query.id), ("1", query.id)}


def test_a_copy_is_byte_exact(spark, filled, tmp_path):
    query = copy(spark, filled.where, filled.where, checkpoint=tmp_path / "checkpoint")
    assert query.lastProgress["batchId"] >= 3
    assert_copied(filled)


@pytest.mark.parametrize("fault", [BEFORE_STAGING, AFTER_STAGING, STAGED_TWICE])
def test_tasks_that_are_repeated(spark, filled, tmp_path, faults, fault):
    """A task fails before or after it has staged, or runs twice as with speculation: the query does not notice."""
    faults.arm(fault)
    copy(spark, filled.where, filled.where, checkpoint=tmp_path / "checkpoint", faults=faults)
    assert faults.left() == []
    assert_copied(filled)


def test_answers_that_get_lost(spark, filled, tmp_path, proxy):
    between = proxy(filled.server.port)
    between.answers_to_lose = 5  # some of staging, some of a commit
    target = {**filled.where, "url": between.url}
    copy(spark, filled.where, target, checkpoint=tmp_path / "checkpoint")
    assert between.answers_to_lose == 0
    assert_copied(filled)


@pytest.mark.parametrize("fault", [BEFORE_COMMIT, AFTER_COMMIT])
def test_a_driver_that_dies_around_the_commit(spark, filled, tmp_path, faults, fault):
    """The restart has another number of partitions, and another shuffle puts the rows into another order."""
    checkpoint = tmp_path / "checkpoint"
    copy(spark, filled.where, filled.where, checkpoint=checkpoint, faults=faults, partitions=2)
    for partitions in (1, 3):
        for stream in range(STREAMS):
            filled.append(f"in-{stream}", *(b"more %d " % number for number in range(15)))
        faults.arm(fault)
        with pytest.raises(StreamingQueryException, match=fault):
            copy(spark, filled.where, filled.where, checkpoint=checkpoint, faults=faults, partitions=partitions)
        assert faults.left() == []
    copy(spark, filled.where, filled.where, checkpoint=checkpoint, faults=faults, partitions=5)
    assert_copied(filled)


def test_a_zombie_driver_is_fenced(spark, filled, tmp_path):
    """Two drivers go on from one checkpoint: what one has committed, the other does not commit again."""
    checkpoint, stale = tmp_path / "checkpoint", tmp_path / "stale"
    copy(spark, filled.where, filled.where, checkpoint=checkpoint)
    shutil.copytree(checkpoint, stale)
    for stream in range(STREAMS):
        filled.append(f"in-{stream}", *(b"more %d " % number for number in range(25)))
    copy(spark, filled.where, filled.where, checkpoint=checkpoint)
    assert_copied(filled)
    with pytest.raises(StreamingQueryException, match="another run of this query is ahead"):
        copy(spark, filled.where, filled.where, checkpoint=stale, partitions=3)
    assert_copied(filled)


def test_a_zombie_of_the_same_batch_changes_nothing(spark, filled, tmp_path):
    checkpoint, stale = tmp_path / "checkpoint", tmp_path / "stale"
    copy(spark, filled.where, filled.where, checkpoint=checkpoint)
    shutil.copytree(checkpoint, stale)
    filled.append("in-0", b"one more")
    copy(spark, filled.where, filled.where, checkpoint=checkpoint)
    copy(spark, filled.where, filled.where, checkpoint=stale)  # the same batch once more
    assert_copied(filled)


def test_a_name_for_the_query_survives_a_new_checkpoint(spark, filled, tmp_path):
    """Who names the application and starts over must not be taken for someone new."""
    target = {**filled.where, "txnAppId": "copier"}
    copy(spark, filled.where, target, checkpoint=tmp_path / "first")
    assert_copied(filled)
    with pytest.raises(StreamingQueryException, match="or its checkpoint was deleted"):
        copy(spark, filled.where, target, checkpoint=tmp_path / "second")
    assert_copied(filled)
