"""Disk space comes back, and what was moved on the disk can be read wherever it is."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack

import pytest
from tests.hostile.wire import Wire, ask, post, put, request
from tests.torture.harness import Victim, eventually, metric
from tests.torture.test_crashes import whole_content

A = "/v1/stream/a"


@pytest.mark.parametrize("archive_bytes", [0, 1 << 20])
def test_overwritten_data_gives_its_space_back(victim: Victim, archive_bytes: int) -> None:
    """A data set written six times over by delete and create needs the space of one, or two: journal, catalog and all
    but what the archive may keep."""
    victim.settings["archive_bytes_max"] = archive_bytes
    victim.start()
    port, chance = victim.port, random.Random(7)
    paths = [f"/v1/stream/set/{index}" for index in range(20)]
    written: dict[str, bytes] = {}
    for _ in range(6):
        for path in paths:
            if path in written:
                assert ask(port, request("DELETE", path), "DELETE").status == 204
            put(port, path)
            written[path] = chance.randbytes(100_000)
            post(port, path, written[path])
    live = 20 * 100_000
    eventually(lambda: metric(port, "millstream_hot_bytes") == 0, "everything is checkpointed")
    eventually(lambda: victim.disk_bytes() < 2 * live + archive_bytes, "the disk holds no more than twice of it", 20.0)
    assert victim.disk_bytes() >= live
    for path in paths:
        assert whole_content(port, path) == written[path]


def test_a_deleted_data_set_leaves_nothing_behind(victim: Victim) -> None:
    victim.start()
    port = victim.port
    for index in range(10):
        put(port, f"{A}/{index}")
        post(port, f"{A}/{index}", b"x" * 20_000)
    eventually(lambda: victim.object_bytes() > 200_000, "everything is in objects")
    for index in range(10):
        assert ask(port, request("DELETE", f"{A}/{index}"), "DELETE").status == 204
    eventually(lambda: victim.object_bytes() == 0, "the objects are gone")


def test_the_journal_is_trimmed_behind_the_checkpoints(victim: Victim) -> None:
    victim.start()
    put(victim.port, A)
    for _ in range(40):
        post(victim.port, A, b"x" * 10_000)
    eventually(lambda: len(victim.journal_files) <= 2, "old journal files are removed")


def test_bodies_refused_half_way_do_not_hold_the_journal(victim: Victim) -> None:
    """Under pressure uploads are refused amid their parts; the parts must not be kept for ever."""
    victim.settings.update({"hot_bytes_max": "64KiB", "part_bytes": "4KiB", "checkpoint_age_s": 1.0})
    victim.settings.update({"checkpoint_bytes": "1GiB", "checkpoint_records": 10**6})
    victim.start()
    port = victim.port
    put(port, A)
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(port)) for _ in range(2)]
        for wire in wires:
            wire.send(request("POST", A, "Content-Type: text/plain", body=b"x" * 8_000_000))
        statuses = [wire.answer("POST").status for wire in wires]
    assert statuses == [503, 503], "their own parts are the pressure that they meet half-way"
    eventually(lambda: metric(port, "millstream_ready") == 1, "the pressure passes")
    post(port, A, b"x" * 10)
    eventually(lambda: len(victim.journal_files) <= 2, "the journal is trimmed")


def test_a_read_of_very_many_small_blocks_is_served(victim: Victim) -> None:
    victim.settings.update({"block_bytes": "1KiB", "read_bytes_max": "8MiB", "part_bytes": "512KiB"})
    victim.start()
    port = victim.port
    put(port, A, "application/json")
    messages = [b'"%05d%b"' % (index, b"x" * 993) for index in range(6000)]
    post(port, A, b"[" + b",".join(messages) + b"]", "application/json")
    eventually(lambda: metric(port, "millstream_hot_bytes") == 0, "everything is in blocks")
    first = ask(port, request("GET", A))
    assert first.status == 200, first
    assert json.loads(first.body)[0] == "00000" + "x" * 993
