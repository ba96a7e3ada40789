"""One stream of 1 GB folds inside an executor of 1 GB."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

GIGABYTE = 1 << 30
PIECE = "x" * 16_000
PIECES_IN_ONE = 400
MEMORY = "1g"


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("content_type", ["application/json", "application/octet-stream"])
def test_a_gigabyte_folds_inside_a_gigabyte(java, bucket, tmp_path, content_type):
    source = bucket({"checkpoint_age_s": 1})
    source.http.put("long", headers={"Content-Type": content_type}).raise_for_status()
    is_json = content_type == "application/json"
    body = json.dumps([PIECE] * PIECES_IN_ONE).encode() if is_json else PIECE.encode() * 64
    appends = GIGABYTE // (len(PIECE) * PIECES_IN_ONE if is_json else len(body)) + 1
    for _ in range(appends):
        source.append("long", body, kind=content_type)
    (tmp_path / "lengths.py").write_text(
        "def total(state, messages):\n    return (state or 0) + sum(map(len, messages))\n"
    )
    command = [sys.executable, "-m", "millstream", "pipeline", "fold", "--url", source.server.url, "--json"]
    command += ["--bucket", source.name, "--with", "lengths:total", "--master", "local[1]"]
    # Spark holds each Python worker to it with a limit on its address space.
    command += ["--conf", f"spark.executor.pyspark.memory={MEMORY}", "--conf", "spark.driver.memory=1g"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1700, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    result = json.loads(done.stdout)
    assert (result["folded"], result["failed"]) == (1, 0)
    snapshot = source.http.get("long/snapshot", follow_redirects=True)
    per_append = len(PIECE) * PIECES_IN_ONE if is_json else len(body)
    assert int(snapshot.content) == appends * per_append >= GIGABYTE
