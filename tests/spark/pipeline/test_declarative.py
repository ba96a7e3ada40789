"""The Declarative Pipelines project in examples/pipelines, as a user runs it: once, and twice in `make torture`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millstream.spark.pipeline.sample import agent_runs

ROOT = Path(__file__).parents[3]
RUN = ROOT / "examples" / "pipelines" / "run.py"
TIMEOUT_S = 900


def append_events(bucket, events: list[dict]) -> None:
    """Some events of all runs, in the order of time, each run in its stream."""
    by_run: dict[str, list[dict]] = {}
    for event in events:
        by_run.setdefault(event["run"], []).append(event)
    for run, some in by_run.items():
        bucket.http.put(run, headers={"Content-Type": "application/json"}).raise_for_status()
        bucket.append(run, json.dumps(some).encode(), kind="application/json")


def run_project(bucket, work: Path) -> None:
    command = [sys.executable, str(RUN), "--url", bucket.server.url, "--bucket", bucket.name]
    command += ["--sink-bucket", sink_of(bucket), "--work", str(work)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def sink_of(bucket) -> str:
    return f"{bucket.name}-out"


def table(work: Path, name: str) -> list[dict]:
    return pq.read_table(work / "spark-warehouse" / name).to_pylist()


def announced(bucket) -> list[str]:
    url = f"{bucket.server.url}/ds/{sink_of(bucket)}/finished-runs"
    return [message["run"] for message in bucket.http.get(url).raise_for_status().json()]


def check(bucket, work: Path, events: list[dict], rejected: int) -> None:
    assert len(table(work, "bronze_messages")) == len(events) + rejected
    assert len(table(work, "silver_events")) == len(events)
    assert len(table(work, "silver_rejected")) == rejected
    runs = {row["run"]: row["events"] for row in table(work, "gold_runs")}
    assert runs == Counter(event["run"] for event in events)
    calls = {row["tool"]: row["calls"] for row in table(work, "gold_tools") if row["calls"]}
    assert calls == Counter(event["tool"] for event in events if event["type"] == "tool_call")
    finished = [event["run"] for event in events if event["type"] == "run_finished"]
    assert Counter(announced(bucket)) == Counter(finished)


@pytest.mark.timeout(TIMEOUT_S)
def test_the_project_runs(java, bucket, tmp_path):
    source = bucket()
    events = list(agent_runs(6))
    append_events(source, events)
    source.create("odd", b'"no event"', kind="application/json")
    run_project(source, tmp_path)
    check(source, tmp_path, events, rejected=1)


@pytest.mark.torture
@pytest.mark.timeout(2 * TIMEOUT_S)
def test_a_second_run_takes_what_is_new_and_nothing_twice(java, bucket, tmp_path):
    source = bucket()
    events = list(agent_runs(12))
    half = len(events) // 2
    append_events(source, events[:half])
    run_project(source, tmp_path)
    check(source, tmp_path, events[:half], rejected=0)
    append_events(source, events[half:])
    run_project(source, tmp_path)
    check(source, tmp_path, events, rejected=0)
