"""The process that stages and merges: whatever becomes of one, the next job gets an answer of its own."""

from __future__ import annotations

import os

import pytest

from millstream.model.errors import BadRequest, Unavailable
from millstream.node.staging_process import MergeJob
from millstream.node.staging_worker import StagingWorker
from millstream.storage.data_dir import DataDir
from millstream.storage.files import Files
from millstream.storage.objects import LocalObjects


@pytest.mark.parametrize(
    "last_words",
    [
        pytest.param("read job", id="killed before it answered"),
        pytest.param("read job; printf '{\"merg'", id="killed while it answered"),
        pytest.param("read job; head -c 3000000 /dev/zero", id="an answer without an end"),
    ],
)
async def test_a_process_that_dies_costs_one_job(tmp_path, monkeypatch, once_strange, last_words):
    place = DataDir(tmp_path)
    place.prepare(Files())
    LocalObjects(place.objects, Files()).prepare("transactions")
    monkeypatch.setattr("millstream.node.staging_worker._END_S", 0.2)
    strange = once_strange(last_words)
    with open(tmp_path / "lock", "wb") as lock:  # noqa: ASYNC230 - nothing else happens here
        worker = StagingWorker(tmp_path, lock.fileno(), 1 << 20)
        with pytest.raises(Unavailable):
            await worker.run(MergeJob(1, []))
        assert not strange
        report = await worker.run(MergeJob(2, []))
        assert report.merged is not None
        await worker.close()
    assert os.listdir(tmp_path / "objects" / "transactions") != []


async def test_a_process_that_works_is_waited_for(tmp_path, monkeypatch, once_strange):
    monkeypatch.setattr("millstream.node.staging_worker._STALL_S", 0.5)
    once_strange("""
        read job
        end=$(($(date +%s) + 3))
        while [ $(date +%s) -lt $end ]; do n=0; while [ $n -lt 20000 ]; do n=$((n + 1)); done; done
        printf '{"bad_request": "at last"}\\n'
        exec sleep 60
    """)
    with open(tmp_path / "lock", "wb") as lock:  # noqa: ASYNC230 - nothing else happens here
        worker = StagingWorker(tmp_path, lock.fileno(), 1 << 20)
        with pytest.raises(BadRequest, match="at last"):
            await worker.run(MergeJob(1, []))
        worker.kill()
        await worker.close()
