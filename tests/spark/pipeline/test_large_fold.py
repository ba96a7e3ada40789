"""One stream of 1 GB folds inside an executor of 1 GB."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from millstream.client import Client

GIGABYTE = 1 << 30
PIECE = "x" * 16_000
PIECES_IN_ONE = 400
MEMORY = "1g"
FOLD = """
import resource

def total(state, messages):
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if not 0 < limit <= 1 << 30:
        raise RuntimeError(f"the worker is not held to a gigabyte, but to {limit} bytes")
    return (state or 0) + sum(map(len, messages))
"""


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("content_type", ["application/json", "application/octet-stream"])
def test_a_gigabyte_folds_inside_a_gigabyte(java, bucket, tmp_path, content_type):
    source = bucket()
    is_json = content_type == "application/json"
    per_append = len(PIECE) * PIECES_IN_ONE
    appends = GIGABYTE // per_append + 1
    with Client(source.server.url) as client:  # it waits and tries again where the server asks for that
        stream = client.bucket(source.name).stream("long")
        stream.create(content_type)
        for _ in range(appends):
            if is_json:
                stream.append_many([PIECE] * PIECES_IN_ONE)
            else:
                stream.append(PIECE * PIECES_IN_ONE)
    (tmp_path / "lengths.py").write_text(FOLD)
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
    assert int(snapshot.content) == appends * per_append >= GIGABYTE
