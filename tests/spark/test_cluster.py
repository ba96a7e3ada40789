"""Source, sink and fold beyond one process: a real master with two workers."""

from __future__ import annotations

import pytest
from tests.spark.cluster import Cluster, on_cluster, run_fold, run_job


@pytest.mark.timeout(900)
def test_source_sink_and_fold_on_two_workers(java, bucket, tmp_path):
    """The package is in the workers' environment, so nothing has to be registered or shipped."""
    made = bucket({"checkpoint_age_s": 0.1})
    for stream in range(3):
        made.create(f"in-{stream}", *(b"%d/%d " % (stream, number) for number in range(20)))
    made.settle()
    cluster = Cluster(tmp_path)
    try:
        said = run_job(
            *(made.server.url, made.name, tmp_path / "checkpoint", "--partitions", 3, "--per-trigger", 30),
            *on_cluster(cluster),
        )
        folded = run_fold(made.server.url, made.name, *on_cluster(cluster))
    finally:
        cluster.stop()
    assert "rows 60\n" in said
    for stream in range(3):
        assert made.read(f"out-{stream}") == made.read(f"in-{stream}")
        assert made.http.get(f"in-{stream}/snapshot", follow_redirects=True).content == made.read(f"in-{stream}")
    assert (folded["folded"], folded["failed"]) == (6, 0)
