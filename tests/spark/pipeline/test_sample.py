"""The sample: the same every time, in the order of time, and of the shape that it promises."""

from __future__ import annotations

import json
from collections import Counter

from millstream.spark.pipeline.folds import merge_patch
from millstream.spark.pipeline.sample import agent_runs, document_edits, write_sample


def test_the_sample_is_the_same_every_time(tmp_path):
    first, second = (write_sample(tmp_path / name, runs=20, documents=10) for name in "ab")
    assert first.runs.read_bytes() == second.runs.read_bytes()
    assert first.edits.read_bytes() == second.edits.read_bytes()
    assert len(first.runs.read_text().splitlines()) == first.run_events
    assert len(first.edits.read_text().splitlines()) == first.edit_events


def test_events_come_in_the_order_of_time():
    for events in (agent_runs(30), document_edits(30)):
        times = [event["at"] for event in events]
        assert times == sorted(times)


def test_every_run_starts_and_finishes_once():
    kinds: dict[str, list[str]] = {}
    for event in agent_runs(50):
        kinds.setdefault(event["run"], []).append(event["type"])
    assert len(kinds) == 50
    for types in kinds.values():
        assert types[0] == "run_started"
        assert types[-1] == "run_finished"
        assert Counter(types)["run_started"] == 1


def test_lengths_are_heavy_tailed():
    lengths = sorted(Counter(event["run"] for event in agent_runs(200)).values())
    assert lengths[-1] > 5 * lengths[len(lengths) // 2]


def test_the_edits_of_a_document_add_up_to_one():
    edits = [edit["patch"] for edit in document_edits(5) if edit["document"] == "doc-0003"]
    document = merge_patch(None, json.loads(json.dumps(edits)))
    assert document["title"]
    assert document["edited_at"] == edits[-1]["edited_at"]
    assert None not in document["sections"].values()
