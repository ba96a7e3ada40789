"""Figure: the Spark source and sink, beside a bare Python data source that makes the same rows in the same session.

Writing comes first: it fills the bucket that is then scanned from segments. Planning is measured without Spark, as the
driver's process does it; the rest on `local[2]`, warm.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from servers import BUILD, MILLSTREAM, ROOT, BenchError, Fleet, Server, settle
from tables import Bar, Figure, Plan, Samples, Table, number, progress, ratio

ROW_BYTES = 200
# Everything is flushed at once and nothing archived, so that a scan reads segments.
SEGMENTS_ONLY = {"checkpoint_age_s": 0.5, "archive_age_s": 0}
OURS, BARE = "millstream", "bare source"
WRITE, SCAN, LATENCY, FEW, MANY = "write", "scan", "append to foreachBatch", "plan, 10 streams", "plan, 10,000 streams"


def measure(plan: Plan) -> Figure:
    samples = Samples()
    with Fleet() as fleet:
        server = fleet.start(MILLSTREAM, SEGMENTS_ONLY)
        _measure_planning(plan, fleet.start(MILLSTREAM, {"checkpoint_age_s": 1.0}), samples)
        session = _session()
        try:
            rows = _measure_writing(plan, session, server, samples)
            _wait_for_segments(server)
            _measure_scanning(plan, session, server, samples, rows)
            _measure_latency(plan, session, fleet.start(MILLSTREAM), samples)
        finally:
            session.stop()
    return Figure("spark", [_table(samples)], _bars(samples), samples)


def _session():
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "bench")])
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def _bucket(server: Server, name: str) -> dict[str, str]:
    url = f"http://127.0.0.1:{server.port}"
    httpx.put(f"{url}/ds/{name}", timeout=30).raise_for_status()
    return {"url": url, "bucket": name}


# --- writing and scanning


def _measure_writing(plan: Plan, session, server: Server, samples: Samples) -> int:
    """Fills one bucket after the other; the last is scanned. The first write warms Spark up and does not count."""
    rows, streams = plan.scaled(1_000_000, 100_000), 1000
    rounds = 3
    for round_ in range(-1, rounds):
        where = _bucket(server, f"written-{round_ + 1}")
        table = session.range(0, rows if round_ >= 0 else rows // 10, 1, 8).selectExpr(
            f"concat('stream-', id % {streams}) AS stream",
            f"cast(rpad(cast(id AS STRING), {ROW_BYTES}, 'x') AS BINARY) AS value",
            "id AS n",
        )
        progress(f"spark: writing, round {round_ + 1} of {rounds}")
        began = time.perf_counter()
        sink = table.write.format("millstream").mode("append").options(**where, createStreams="true", orderBy="n")
        sink.save()
        taken = time.perf_counter() - began
        if round_ >= 0:
            samples.add(round_, OURS, WRITE, {"rows_per_s": rows / taken})
        settle([server])
    return rows


def _wait_for_segments(server: Server) -> None:
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        if server.metric("millstream_catalog_sequence") == server.metric("millstream_journal_sequence"):
            return
        time.sleep(0.2)
    raise BenchError("the server has not flushed in time")


def _measure_scanning(plan: Plan, session, server: Server, samples: Samples, rows: int) -> None:
    session.dataSource.register(_bare_source())
    where = {"url": f"http://127.0.0.1:{server.port}", "bucket": "written-3"}
    tables = {
        OURS: session.read.format("millstream").options(**where, readTier="direct", minPartitions="4"),
        BARE: session.read.format("bare").options(rows=str(rows), bytes=str(ROW_BYTES), partitions="4"),
    }
    found = tables[OURS].load().count()
    if found != rows:
        raise BenchError(f"{rows} rows were written, but {found} are read")
    for round_ in range(-1, plan.rounds):
        progress(f"spark: scanning, round {round_ + 1} of {plan.rounds}")
        for name, table in tables.items():
            began = time.perf_counter()
            table.load().write.format("noop").mode("overwrite").save()
            taken = time.perf_counter() - began
            if round_ >= 0:
                values = {"rows_per_s": rows / taken, "mb_per_s": rows * ROW_BYTES / taken / 1e6}
                samples.add(round_, name, SCAN, values)


def _bare_source():
    """A data source that does nothing but hand out the same batch again and again."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    batch_rows = 20_000

    class BareReader(DataSourceReader):
        def __init__(self, options) -> None:
            self.rows, self.bytes, self.parts = (int(options[name]) for name in ("rows", "bytes", "partitions"))

        def partitions(self):
            return [InputPartition(self.rows // self.parts) for _ in range(self.parts)]

        def read(self, partition) -> Iterator[pa.RecordBatch]:
            from millstream.spark.schema import ARROW_SCHEMA

            text = pa.repeat(pa.scalar("1b2c3d4e5f607182.12345"), batch_rows)
            numbers = pa.array(range(batch_rows), pa.int64())
            columns = {
                pa.string(): text,
                pa.int64(): numbers,
                pa.binary(): pa.repeat(pa.scalar(b"x" * self.bytes), batch_rows),
                pa.timestamp("us", tz="UTC"): numbers.cast(pa.timestamp("us", tz="UTC")),
            }
            batch = pa.RecordBatch.from_arrays([columns[field.type] for field in ARROW_SCHEMA], schema=ARROW_SCHEMA)
            left = partition.value
            while left > 0:
                yield batch.slice(0, min(left, batch_rows))
                left -= batch_rows

    class BareSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "bare"

        def schema(self):
            from millstream.spark.schema import SPARK_SCHEMA

            return SPARK_SCHEMA

        def reader(self, schema) -> BareReader:
            return BareReader(self.options)

    return BareSource


# --- planning and following


def _measure_planning(plan: Plan, server: Server, samples: Samples) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from millstream.spark.options import stream_read_options
    from millstream.spark.stream import StreamReader

    many = plan.scaled(10_000, 1000)
    made = {cell: _bucket(server, f"planned-{count}") for cell, count in ((FEW, 10), (MANY, many))}
    for cell, count in ((FEW, 10), (MANY, many)):
        progress(f"spark: {cell}")
        base = f"{made[cell]['url']}/ds/{made[cell]['bucket']}"
        with httpx.Client(timeout=30) as http:
            for index in range(count):
                http.put(f"{base}/s{index}", content=b"x", headers={"Content-Type": "text/plain"}).raise_for_status()
            _wait_for_segments(server)
            reader = StreamReader(stream_read_options(made[cell]))
            start = reader.initialOffset()
            for round_ in range(30):
                for index in range(10):
                    http.post(f"{base}/s{index}", content=b"more", headers={"Content-Type": "text/plain"})
                began = time.perf_counter()
                end = reader.latestOffset(start, ReadAllAvailable())
                partitions = reader.partitions(start, end)
                taken = time.perf_counter() - began
                if not partitions:
                    raise BenchError("a micro-batch was planned without partitions")
                reader.commit(end)
                start = end
                samples.add(round_, OURS, cell, {"ms": taken * 1000})
            reader.stop()


def _measure_latency(plan: Plan, session, server: Server, samples: Samples) -> None:
    where = _bucket(server, "followed")
    base = f"{where['url']}/ds/{where['bucket']}"
    arrived: list[float] = []

    def take(batch, _: int) -> None:
        sent = [float(bytes(row.value)) for row in batch.select("value").collect()]
        arrived.extend(time.time() - at for at in sent)

    # From the beginning: the query may start later than the first append.
    read = session.readStream.format("millstream").options(**where, startingOffsets="earliest").load()
    checkpoint = BUILD / "checkpoints" / str(os.getpid())
    query = read.writeStream.foreachBatch(take).option("checkpointLocation", str(Path(checkpoint))).start()
    try:
        with httpx.Client(timeout=30) as http:
            headers = {"Content-Type": "text/plain"}
            http.put(f"{base}/s", headers=headers).raise_for_status()
            for count in range(1, plan.scaled(60, 15) + 11):
                http.post(f"{base}/s", content=repr(time.time()).encode(), headers=headers).raise_for_status()
                give_up = time.monotonic() + 60
                while len(arrived) < count:
                    if query.exception() is not None or time.monotonic() > give_up:
                        raise BenchError(f"message {count} did not arrive: {query.exception()}")
                    time.sleep(0.01)
                if count % 20 == 0:
                    progress(f"spark: {count} messages followed")
    finally:
        query.stop()
    for round_, seconds in enumerate(arrived[10:]):  # the first ones find Spark cold
        samples.add(round_, OURS, LATENCY, {"s": seconds})


# --- what came out


def _table(samples: Samples) -> Table:
    def cell(server: str, name: str, key: str) -> str:
        return number(samples.median(server, name, key))

    latencies = sorted(samples.all(OURS, LATENCY, "s"))
    slow = latencies[int(len(latencies) * 0.99)] if latencies else None
    rows = [
        ("write, rows/s", cell(OURS, WRITE, "rows_per_s"), ""),
        ("scan from segments, rows/s", cell(OURS, SCAN, "rows_per_s"), cell(BARE, SCAN, "rows_per_s")),
        ("scan from segments, MB/s", cell(OURS, SCAN, "mb_per_s"), cell(BARE, SCAN, "mb_per_s")),
        ("plan a micro-batch, 10 streams, ms", cell(OURS, FEW, "ms"), ""),
        ("plan a micro-batch, 10,000 streams, ms", cell(OURS, MANY, "ms"), ""),
        ("append to foreachBatch, p50, s", cell(OURS, LATENCY, "s"), ""),
        ("append to foreachBatch, p99, s", number(slow), ""),
    ]
    return Table(f"Spark, local[2], rows of {ROW_BYTES} B", ("", OURS, BARE), rows)


def _bars(samples: Samples) -> list[Bar]:
    ours, bare = samples.median(OURS, SCAN, "rows_per_s"), samples.median(BARE, SCAN, "rows_per_s")
    few, many = samples.all(OURS, FEW, "ms"), samples.all(OURS, MANY, "ms")
    spread = statistics.median(many) / statistics.median(few) if few and many else None
    return [
        Bar("scan from segments / bare source, rows/s", ratio(ours, bare), 0.35, True, "x"),
        Bar("scan from segments", samples.median(OURS, SCAN, "mb_per_s"), 100, True, " MB/s"),
        Bar("planning with 10,000 streams / with 10", spread, 3, False, "x"),
        Bar("append to foreachBatch, p50", samples.median(OURS, LATENCY, "s"), 0.6, False, " s"),
        Bar(
            "write 1,000,000 rows over 1,000 streams",
            samples.median(OURS, WRITE, "rows_per_s"),
            50_000,
            True,
            " rows/s",
        ),
    ]
