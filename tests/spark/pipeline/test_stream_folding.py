"""Folding single streams against a real server: snapshots and tails, retries, conflicts, failures that stay alone."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.client import Client
from millstream.spark.pipeline import stream_folding as folding
from millstream.spark.pipeline.folding import streams_with_news
from millstream.spark.pipeline.folds import Fold, find_fold
from millstream.spark.pipeline.stream_folding import FoldOrder, StreamWithNews, fold_streams, shared_out
from millstream.spark.pipeline.target import Target

JSON = "application/json"


@pytest.fixture(scope="module")
def running(module_server):
    return module_server({"read_bytes_max": "64KiB", "checkpoint_age_s": 0.3, "retention_every_s": 0.2})


@pytest.fixture
def bucket(running, request):
    with Client(running.url) as client:
        bucket = client.bucket(f"b-{abs(hash(request.node.name)) % 10**12}")
        bucket.create()
        yield bucket


def name_of(bucket) -> str:
    return bucket.url.rpartition("/")[2]


def order(running, bucket, fold="concatenation", trim=True, **arguments) -> FoldOrder:
    chosen = fold if isinstance(fold, Fold) else find_fold(fold, arguments)
    return FoldOrder(Target(running.url, name_of(bucket)), chosen, trim)


def filled(bucket, name, *messages, content_type=JSON):
    stream = bucket.stream(name)
    stream.create(content_type)
    for message in messages:
        stream.append(message)
    return stream


def news(running, bucket) -> list[StreamWithNews]:
    return streams_with_news(Target(running.url, name_of(bucket)))[1]


def fold_all(running, bucket, **options):
    return fold_streams(news(running, bucket), order(running, bucket, **options))


def state_of(stream):
    snapshot = stream.read_snapshot()
    return json.loads(snapshot.data) if snapshot.content_type.startswith(JSON) else snapshot.data


def test_a_stream_becomes_its_state_and_goes_on_from_it(running, bucket):
    stream = filled(bucket, "doc", {"a": 1}, {"b": {"c": 2}})
    assert fold_all(running, bucket, fold="merge-patch").streams == {"folded": 1}
    assert state_of(stream) == {"a": 1, "b": {"c": 2}}
    assert news(running, bucket) == []

    stream.append({"a": None, "b": {"d": 3}})
    tally = fold_all(running, bucket, fold="merge-patch")
    assert (tally.streams, tally.messages) == ({"folded": 1}, 1)
    assert state_of(stream) == {"b": {"c": 2, "d": 3}}
    assert stream.read_snapshot().up_to_date


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream"])
def test_messages_of_other_streams_come_one_by_one(running, bucket, content_type):
    def lengths(state, messages):
        return (state or []) + [len(message) for message in messages]

    fold = Fold("lengths", lengths)
    stream = filled(bucket, "log", b"one", b"three", content_type=content_type)
    fold_all(running, bucket, fold=fold)
    assert state_of(stream) == [3, 5]
    stream.append(b"seven!!")
    fold_all(running, bucket, fold=fold)
    assert state_of(stream) == [3, 5, 7]


def test_bytes_are_joined_over_many_batches(running, bucket, monkeypatch):
    monkeypatch.setattr(folding, "BATCH_MESSAGES", 7)
    words = [b"word %d;" % n for n in range(40)]
    stream = filled(bucket, "log", *words, content_type="text/plain")
    fold_all(running, bucket)
    snapshot = stream.read_snapshot()
    assert snapshot.data == b"".join(words)
    assert snapshot.content_type == 'text/plain; fold="concatenation"'


def test_a_long_json_stream_comes_in_many_answers(running, bucket):
    stream = filled(bucket, "long")
    for first in range(0, 4000, 1000):
        stream.append_many([{"n": n, "text": "x" * 80} for n in range(first, first + 1000)])
    batches = []

    def seen(state, messages):
        batches.append(len(messages))
        return (state or 0) + sum(message["n"] for message in messages)

    tally = fold_all(running, bucket, fold=Fold("sum", seen))
    assert state_of(stream) == sum(range(4000))
    assert tally.messages == 4000
    assert len(batches) > 3


def test_publishing_trims_unless_history_is_kept(running, bucket):
    kept, trimmed = filled(bucket, "kept", 1, 2), filled(bucket, "trimmed", 1, 2)
    kept_news, trimmed_news = news(running, bucket)
    fold_streams([kept_news], order(running, bucket, trim=False))
    fold_streams([trimmed_news], order(running, bucket))
    assert list(kept.read().json()) == [1, 2]
    assert list(trimmed.read(trimmed.latest_snapshot()).json()) == []
    with pytest.raises(folding.Trimmed):
        list(trimmed.read())


def test_with_history_kept_folds_still_go_on_from_the_snapshot(running, bucket):
    stream = filled(bucket, "kept", 1, 2)
    fold_all(running, bucket, trim=False)
    stream.append(3)
    assert fold_all(running, bucket, trim=False).messages == 1
    assert state_of(stream) == [1, 2, 3]


def test_a_fold_that_raises_names_the_stream_and_leaves_the_others_done(running, bucket):
    good = [filled(bucket, f"good-{n}", {"type": "a"}) for n in range(5)]
    bad = filled(bucket, "bad", {"type": "a"}, {"no type": 1})
    raising = filled(bucket, "raising", {"type": [1]})
    tally = fold_all(running, bucket, fold=Fold("counts", lambda state, messages: {m["type"]: 1 for m in messages}))
    assert tally.streams == {"folded": 5, "failed": 2}
    assert {failure.stream for failure in tally.failures} == {"bad", "raising"}
    assert "the fold raised KeyError: 'type'" in {failure.error for failure in tally.failures}
    assert all(state_of(stream) == {"a": 1} for stream in good)
    assert bad.latest_snapshot() is None
    assert raising.latest_snapshot() is None


def test_a_newer_snapshot_of_somebody_else_stays(running, bucket):
    stream = filled(bucket, "race", 1, 2)
    (listed,) = news(running, bucket)

    def overtaken(state, messages):
        other = bucket.stream("race")
        offset = other.append(3).offset
        other.publish_snapshot(offset, b"newer")
        return "ours"

    assert fold_streams([listed], order(running, bucket, fold=Fold("late", overtaken))).streams == {"superseded": 1}
    assert stream.read_snapshot().data == b"newer"


def test_a_snapshot_published_while_we_read_is_gone_on_from(running, bucket):
    """The listing is old: the history that it promises has been trimmed."""
    stream = filled(bucket, "race", 1, 2)
    (listed,) = news(running, bucket)
    fold_all(running, bucket)
    end = stream.append(3).offset
    assert fold_streams([replace(listed, tail=int(end))], order(running, bucket)).streams == {"folded": 1}
    assert state_of(stream) == [1, 2, 3]


def test_folding_what_is_current_changes_nothing(running, bucket):
    stream = filled(bucket, "same", 1, 2)
    (listed,) = news(running, bucket)
    fold_all(running, bucket)
    before = stream.read_snapshot()
    stale = replace(listed, snapshot_offset=listed.tail)
    assert fold_streams([stale], order(running, bucket)).streams == {"current": 1}
    assert stream.read_snapshot() == before


def test_a_task_that_is_repeated_publishes_the_same(running, bucket):
    stream = filled(bucket, "same", 1, 2)
    listed = news(running, bucket)
    again = order(running, bucket, trim=False)
    assert fold_streams(listed, again).streams == {"folded": 1}
    assert fold_streams(listed, again).streams == {"folded": 1}
    assert state_of(stream) == [1, 2]


def test_a_stream_of_another_fold_is_refused(running, bucket):
    stream = filled(bucket, "doc", {"type": "a"})
    fold_all(running, bucket, fold="merge-patch")
    stream.append({"type": "b"})
    tally = fold_all(running, bucket, fold="counters")
    assert tally.streams == {"failed": 1}
    assert "made by the fold 'merge-patch'" in tally.failures[0].error


def test_a_stream_that_was_deleted_meanwhile_is_no_failure(running, bucket):
    stream = filled(bucket, "short-lived", 1)
    listed = news(running, bucket)
    stream.delete()
    assert fold_streams(listed, order(running, bucket)).streams == {"gone": 1}


def test_a_server_that_is_away_fails_the_task(running, bucket, monkeypatch):
    away = replace(order(running, bucket), target=Target("http://127.0.0.1:9", name_of(bucket)))
    monkeypatch.setattr("millstream.client.retry.Retry.allows", lambda self, failures: False)
    with pytest.raises(folding.ConnectionLost):
        fold_streams([StreamWithNews("any", JSON, 10, None)], away)


def test_history_that_retention_took_is_not_waited_for(running, bucket):
    stream = filled(bucket, "old")
    for n in range(0, 60, 10):
        stream.append_many([[n + more, "x" * 10_000] for more in range(10)])
    listed = news(running, bucket)
    bucket.change(retention_bytes=1)
    give_up = time.monotonic() + 60
    while next(bucket.streams()).earliest_offset == 0:
        assert time.monotonic() < give_up, "retention took nothing"
        time.sleep(0.1)
    fold_streams(listed, order(running, bucket))
    kept = [n for n, _ in state_of(stream)]
    assert 0 < len(kept) < 60
    assert kept == list(range(kept[0], 60))


@pytest.mark.parametrize("content_type", [JSON, "application/octet-stream"])
def test_a_long_stream_takes_the_memory_of_a_batch(running, bucket, content_type):
    stream = filled(bucket, "long", content_type=content_type)
    piece = "x" * 16_000
    for _ in range(30):
        if content_type == JSON:
            stream.append_many([piece] * 250)
        else:
            stream.append(piece.encode() * 250)
    resident: list[int] = []

    def watching(state, messages):
        resident.append(resident_bytes())
        return (state or 0) + sum(map(len, messages))

    fold_all(running, bucket, fold=Fold("watching", watching))
    assert state_of(stream) == 30 * 250 * 16_000  # 120 MB
    assert max(resident) - resident[0] < 48_000_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_work_is_shared_out_evenly_and_completely():
    streams = [
        StreamWithNews(f"s{n}", JSON, size, None) for n, size in enumerate([900_000, 500_000, 400_000] + [10] * 60)
    ]
    groups = list(shared_out(streams, 3))
    assert sorted(stream.name for group in groups for stream in group) == sorted(stream.name for stream in streams)
    assert len(groups) == 3
    assert [group[0].tail for group in groups] == [900_000, 500_000, 400_000]
    work = [sum(stream.tail + folding.STREAM_COST for stream in group) for group in groups]
    assert max(work) < 1.5 * min(work)
    assert [len(group) for group in shared_out(streams[:2], 5)] == [1, 1]
