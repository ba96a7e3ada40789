"""`make demo`, small, and once more: the second time nothing is loaded twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

DEMO = Path(__file__).parents[3] / "examples" / "demo.py"
TIMEOUT_S = 600


def run_demo(folder: Path) -> str:
    command = [sys.executable, str(DEMO), "--folder", str(folder), "--runs", "5", "--documents", "3"]
    environment = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def messages_in(folder: Path) -> int:
    table = ds.dataset(folder / "table", format="parquet", partitioning="hive")
    return table.count_rows(filter=ds.field("kind") == "message")


@pytest.mark.torture
@pytest.mark.timeout(2 * TIMEOUT_S)
def test_the_demo_runs_and_may_be_repeated(java, tmp_path):
    said = run_demo(tmp_path)
    assert "5 runs have a new snapshot" in said
    assert "3 documents have a new snapshot" in said
    assert "Where to look" in said
    assert "<svg" in (tmp_path / "report" / "report.html").read_text()
    first = messages_in(tmp_path)
    lines = sum(len(path.read_text().splitlines()) for path in (tmp_path / "sample").iterdir())
    assert first == lines
    assert run_demo(tmp_path).count("all of it was there already") == 2
    assert messages_in(tmp_path) == first
