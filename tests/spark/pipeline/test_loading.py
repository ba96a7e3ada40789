"""Loads through Spark into a real server: every row once and in order, also after interruptions."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.cli.pipeline import spark_reason
from millstream.spark.pipeline import LoadError, load, loading, source_files
from millstream.spark.pipeline.sample import agent_runs, write_sample


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(source_files, "PIECE_BYTES", 20_000)


def messages(bucket, stream: str) -> list:
    return json.loads(bucket.read(stream))


def test_a_sample_is_loaded_stream_by_stream_in_order(spark, bucket, tmp_path, small_pieces):
    source = bucket()
    sample = write_sample(tmp_path, runs=8, documents=4)
    result = load(source.server.url, source.name, [sample.runs], "run", spark=spark)
    assert (result.messages, result.skipped, result.files) == (sample.run_events, 0, 1)
    for name in ("run-00000", "run-00007"):
        assert messages(source, name) == [event for event in agent_runs(8) if event["run"] == name]
    assert len(source.streams()) == 8

    again = load(source.server.url, source.name, [sample.runs], "run", spark=spark)
    assert (again.name, again.messages, again.skipped) == (result.name, 0, again.transactions)
    assert len(messages(source, "run-00000")) == sum(event["run"] == "run-00000" for event in agent_runs(8))


def test_csv_and_parquet_make_the_same_streams(spark, bucket, tmp_path):
    rows = [{"device": f"d{n % 3}", "reading": str(n)} for n in range(30)]
    (tmp_path / "a.csv").write_text("device,reading\n" + "".join(f"{r['device']},{r['reading']}\n" for r in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for kind in ("csv", "parquet"):
        source = bucket()
        load(source.server.url, source.name, [tmp_path / f"a.{kind}"], "device", spark=spark)
        assert messages(source, "d1") == [row for row in rows if row["device"] == "d1"]


def test_text_streams_get_the_value_as_it_is(spark, bucket, tmp_path):
    source = bucket()
    (tmp_path / "notes.jsonl").write_text('{"to":"a","text":"one\\n"}\n{"to":"a","text":"two\\n"}\n')
    files = [tmp_path / "notes.jsonl"]
    load(source.server.url, source.name, files, "to", value_column="text", content_type="text/plain", spark=spark)
    assert source.read("a") == b"one\ntwo\n"


def test_an_interrupted_load_goes_on_where_it_stopped(spark, bucket, tmp_path, small_pieces, monkeypatch):
    source = bucket()
    path = tmp_path / "events.jsonl"
    lines = [json.dumps({"run": f"r{n % 5}", "n": n, "text": "x" * 100}) for n in range(1000)]
    path.write_text("\n".join(lines))
    options = {"transaction_bytes": 40_000, "spark": spark}
    written = loading.Loader._write

    def fails_at_the_third(self, rows, version):
        written(self, rows, version)
        if version == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loading.Loader, "_write", fails_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            load(source.server.url, source.name, [path], "run", **options)
    planned = load(source.server.url, source.name, [path], "run", dry_run=True, **options)
    assert planned.skipped == 2
    assert planned.transactions > 2
    finished = load(source.server.url, source.name, [path], "run", **options)
    assert finished.skipped == 2
    for number in range(5):
        assert [message["n"] for message in messages(source, f"r{number}")] == list(range(number, 1000, 5))


def test_a_bad_line_is_named_and_nothing_of_its_transaction_is_there(spark, bucket, tmp_path):
    source = bucket()
    path = tmp_path / "events.jsonl"
    path.write_text('{"run":"a"}\n{"run":\n')
    with pytest.raises(Exception, match="at byte 12") as raised:
        load(source.server.url, source.name, [path], "run", spark=spark)
    assert spark_reason(raised.value).startswith(f"{path}, at byte 12")
    assert source.streams() == []


def test_a_name_that_belongs_to_a_longer_load_is_refused(spark, bucket, tmp_path, small_pieces):
    source = bucket()
    path = tmp_path / "events.jsonl"
    path.write_text('{"run":"a","text":"%s"}\n' % ("x" * 500) * 100)
    load(source.server.url, source.name, [path], "run", name="mine", transaction_bytes=20_000, spark=spark)
    path.write_text('{"run":"a"}\n')
    with pytest.raises(LoadError, match="another --name"):
        load(source.server.url, source.name, [path], "run", name="mine", spark=spark)


def test_a_dry_run_needs_no_bucket_and_makes_none(bucket, tmp_path):
    server = bucket().server
    (tmp_path / "a.jsonl").write_text('{"run":"a"}\n')
    result = load(server.url, "not-there-yet", [tmp_path], "run", dry_run=True)
    assert (result.files, result.transactions, result.skipped, result.messages) == (1, 1, 0, 0)
    with pytest.raises(Exception, match="not-there-yet"):
        load(server.url, "not-there-yet", [tmp_path], "run", create_bucket=False)
