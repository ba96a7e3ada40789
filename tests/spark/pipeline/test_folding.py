"""Folds over a whole bucket through Spark: all streams, in parallel, again and again."""

from __future__ import annotations

import json

import pytest

from millstream.spark.pipeline import FoldError, fold

JSON = "application/json"


def snapshot(bucket, stream: str):
    answer = bucket.http.get(f"{stream}/snapshot", follow_redirects=True)
    return json.loads(answer.content)


@pytest.fixture
def filled(bucket):
    source = bucket()
    for n in range(20):
        body = json.dumps([{"type": "call" if m % 3 else "reply", "n": m} for m in range(n + 1)]).encode()
        source.http.put(f"run-{n:02d}", content=body, headers={"Content-Type": JSON}).raise_for_status()
    return source


def test_every_stream_of_a_bucket_is_folded_and_only_news_again(spark, filled):
    where = (filled.server.url, filled.name, "counters")
    planned = fold(*where, dry_run=True)
    assert (planned.streams, planned.with_news, planned.folded) == (20, 20, 0)
    first = fold(*where, spark=spark)
    assert (first.folded, first.failed, first.messages) == (20, 0, sum(range(1, 21)))
    assert snapshot(filled, "run-06") == {"reply": 3, "call": 4}

    assert fold(*where).with_news == 0  # without a session: nothing to do needs no Spark
    filled.append("run-06", b'{"type":"call"}', kind=JSON)
    second = fold(*where, spark=spark)
    assert (second.with_news, second.folded, second.messages) == (1, 1, 1)
    assert snapshot(filled, "run-06") == {"reply": 3, "call": 5}


def test_a_fold_of_ones_own_travels_to_the_executors(spark, filled, tmp_path, monkeypatch):
    (tmp_path / "helpers.py").write_text("")
    (tmp_path / "sums.py").write_text(
        "STEP = 1\n\ndef total(state, messages, field='n'):\n"
        "    if any(message[field] == 15 for message in messages):\n        raise ValueError('fifteen is too much')\n"
        "    return (state or 0) + sum(message[field] * STEP for message in messages)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    result = fold(filled.server.url, filled.name, "sums:total", arguments={"field": "n"}, prefix="run-1", spark=spark)
    assert (result.streams, result.folded, result.failed) == (10, 5, 5)
    assert {failure.stream for failure in result.failures} == {f"run-{n}" for n in range(15, 20)}
    assert result.failures[0].error == "the fold raised ValueError: fifteen is too much"
    assert snapshot(filled, "run-14") == sum(range(15))


def test_history_is_kept_if_wanted(spark, filled):
    fold(filled.server.url, filled.name, "concatenation", keep_history=True, spark=spark)
    assert len(json.loads(filled.read("run-05"))) == 6
    assert len(snapshot(filled, "run-05")) == 6


def test_a_fold_that_is_not_there_is_found_out_before_anything_starts(filled):
    with pytest.raises(FoldError, match="built in are"):
        fold(filled.server.url, filled.name, "no-such-fold")
