"""Spark under faults, with drivers that are really killed: twenty rounds over one checkpoint, then byte by byte.

Also what `make test` has no time for: speculative tasks on a cluster, and the package shipped with --py-files.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from tests.spark.cluster import ROOT, Cluster, on_cluster, run_fold, run_job
from tests.spark.conftest import Bucket, Proxy
from tests.spark.faults import (
    AFTER_COMMIT,
    AFTER_STAGING,
    BEFORE_COMMIT,
    BEFORE_STAGING,
    HANGS,
    STAGED_TWICE,
    Faults,
)

pytestmark = [pytest.mark.torture, pytest.mark.timeout(3600)]
STREAMS = 5
KILLED = [BEFORE_STAGING, AFTER_STAGING, BEFORE_COMMIT, AFTER_COMMIT, "any time"]
SURVIVED = [BEFORE_STAGING, AFTER_STAGING, STAGED_TWICE, "lost answers", "server killed"]
ROUNDS = [(name, True) for name in KILLED] * 2 + [(name, False) for name in SURVIVED] * 2


@pytest.fixture
def made(server):
    running = server({"checkpoint_age_s": 0.5})
    bucket = Bucket(running)
    yield bucket
    bucket.http.close()


def append_some(made: Bucket, chance: random.Random, round_: int) -> None:
    for stream in range(STREAMS):
        if round_ == 0:
            made.create(f"in-{stream}")
        for number in range(chance.randint(5, 25)):
            made.append(f"in-{stream}", b"%d/%d/%d " % (stream, round_, number))


def assert_nothing_twice(made: Bucket, *, complete: bool) -> None:
    """What is copied is the beginning of what there was, always; at the end, all of it."""
    copied = made.streams()
    for stream in range(STREAMS):
        original = made.read(f"in-{stream}")
        copy = made.read(f"out-{stream}") if f"out-{stream}" in copied else b""
        assert original.startswith(copy), f"stream {stream} differs"
        assert not complete or copy == original


def start_driver(*arguments: object) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, str(ROOT / "tests" / "spark" / "copying_job.py"), *map(str, arguments)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=quiet, stderr=quiet, start_new_session=True
    )


def test_twenty_faults(java, made, tmp_path):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    rounds = list(ROUNDS)
    chance.shuffle(rounds)
    checkpoint, faults = tmp_path / "checkpoint", Faults(str(tmp_path / "faults"))
    proxy = Proxy(made.server.port)
    for round_, (fault, is_killed) in enumerate(rounds):
        append_some(made, chance, round_)
        arguments = [made.server.url, made.name, checkpoint, "--faults", tmp_path / "faults"]
        arguments += ["--partitions", chance.randint(1, 4), "--per-trigger", chance.randint(10, 60)]
        if fault == "lost answers":
            lost = proxy.answers_to_lose = chance.randint(1, 6)
            arguments += ["--target-url", proxy.url]
        elif fault not in ("any time", "server killed"):
            faults.arm(fault, hangs=is_killed)
        driver = start_driver(*arguments)
        if is_killed:
            kill_in_time(driver, faults, chance, None if fault == "any time" else fault)
        else:
            if fault == "server killed":
                time.sleep(chance.uniform(5, 30))
                made.server.kill()
                made.server.start()
            assert driver.wait(400) in (0, 1)  # a task that fails on a driver without retries ends the query
            assert fault != "lost answers" or proxy.answers_to_lose < lost, "no answer was lost"
        assert not faults.left(), f"nobody came to the fault {fault}"
        shutil.rmtree(tmp_path / "faults", ignore_errors=True)
        assert_nothing_twice(made, complete=False)
    proxy.close()
    run_job(made.server.url, made.name, checkpoint, "--partitions", 3)
    assert_nothing_twice(made, complete=True)


def kill_in_time(driver: subprocess.Popen[bytes], faults: Faults, chance: random.Random, fault: str | None) -> None:
    if fault is None:
        time.sleep(chance.uniform(5, 40))
    else:
        give_up = time.monotonic() + 200
        while HANGS in faults.left() and driver.poll() is None:
            assert time.monotonic() < give_up, "the driver never came to the fault"
            time.sleep(0.02)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(30)


def test_speculative_tasks_on_a_cluster(java, made, tmp_path):
    """One task of every stage is slow enough that Spark starts a second one beside it."""
    append_some(made, random.Random(1), 0)
    cluster = Cluster(tmp_path)
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "10ms",
    }
    try:
        job = (made.server.url, made.name, tmp_path / "checkpoint", "--partitions", 4, "--per-trigger", 15)
        run_job(*job, *on_cluster(cluster, **settings))
    finally:
        cluster.stop()
    assert_nothing_twice(made, complete=True)


def test_the_package_shipped_with_py_files(java, made, tmp_path):
    append_some(made, random.Random(2), 0)
    package = tmp_path / "shipped.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for folder in ("millstream", "pyspark_millstream"):
            for path in sorted((ROOT / "src" / folder).rglob("*.py")):
                archive.write(path, path.relative_to(ROOT / "src"))
        for folder in ("tests", "tests/spark"):
            archive.mkdir(folder)  # what makes a package of a folder in a zip
        archive.write(ROOT / "tests" / "spark" / "faults.py", "tests/spark/faults.py")
    cluster = Cluster(tmp_path)
    try:
        job = (made.server.url, made.name, tmp_path / "checkpoint", "--register")
        settings = {"spark.submit.pyFiles": str(package), "spark.executorEnv.PYTHONPATH": ""}
        said = run_job(*job, *on_cluster(cluster, **settings), env_path=str(Path(package)))
        folded = run_fold(made.server.url, made.name, *on_cluster(cluster, **settings), env_path=str(package))
    finally:
        cluster.stop()
    assert "shipped.zip" in said.partition("imported ")[2]
    assert folded["failed"] == 0
    assert folded["folded"] == folded["streams"] > 0
    assert_nothing_twice(made, complete=True)
