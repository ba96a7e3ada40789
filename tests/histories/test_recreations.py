"""What is under way when a name or a bucket is deleted and made again gets to the old one, or to none."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import Counter

import pytest
from tests.torture.harness import BUSY, Victim

from .recreations import Town

QUICK_SEED = 3
QUICK_TOWNS = 8
# Large enough reads for whole streams; large enough bodies to be sent in parts.
SETTINGS = {**BUSY, "read_bytes_max": "8MiB", "hot_streams_max": 1000}


@pytest.fixture
def victim(tmp_path):
    server = Victim(tmp_path, SETTINGS)
    server.start()
    yield server
    server.stop()


def live_through(server: Victim, first: int, towns: int) -> Counter[str]:
    done = Counter[str]()
    for seed in range(first, first + towns):
        town = Town(server, seed)
        try:
            asyncio.run(town.live_through(deletes_bucket=seed % 2 == 1))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        done += town.done
    assert towns > 0
    assert min(done["published"], done["refused"], done["committed"]) >= towns // 2, done
    return done


def test_what_is_under_way_gets_to_no_other_stream_of_that_name(victim: Victim) -> None:
    live_through(victim, QUICK_SEED, QUICK_TOWNS)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_what_is_under_way_gets_to_no_other_stream_of_that_name_for_long(
    victim: Victim, capsys: pytest.CaptureFixture[str]
) -> None:
    """`MILLSTREAM_TORTURE_TOWNS=1000 make torture`; `MILLSTREAM_TORTURE_SEED` brings back the same clients."""
    towns = int(os.environ.get("MILLSTREAM_TORTURE_TOWNS") or 200)
    first = int(os.environ.get("MILLSTREAM_TORTURE_SEED") or secrets.randbelow(10**9))
    with capsys.disabled():
        print(f"\nMILLSTREAM_TORTURE_SEED={first} MILLSTREAM_TORTURE_TOWNS={towns}", flush=True)
        print(f"{towns} towns: {dict(live_through(victim, first, towns))}")
