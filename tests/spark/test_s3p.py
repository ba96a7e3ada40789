"""S3P and Spark on the same streams: what one writes, the other reads."""

from __future__ import annotations

from tests.conftest import ServerProcess

from millstream.client.s3p import S3pClient


def test_records_go_from_s3p_to_spark_and_back(spark, bucket):
    server: ServerProcess = bucket().server
    where = {"url": server.url, "bucket": "_s3p"}
    with S3pClient("127.0.0.1", server.s3p_port) as client:
        client.create("sensor")
        last = client.append("sensor", [b"one", b"two"])
        rows = spark.read.format("millstream").options(**where, subscribe="sensor").load().orderBy("offset").collect()
        assert [(row.id, bytes(row.value)) for row in rows][1] == (str(last), b"two")
        assert [bytes(row.value) for row in rows] == [b"one", b"two"]

        answer = spark.createDataFrame([("sensor", bytearray(b"three"), 1)], "stream string, value binary, n int")
        sink = answer.coalesce(1).write.format("millstream").options(**where, orderBy="n")
        sink.option("txnAppId", "s3p-and-back").option("txnVersion", "1").mode("append").save()
        found = client.read("sensor", after=last)
        assert [record.data for record in found] == [b"three"]
        assert found[0].id > last
