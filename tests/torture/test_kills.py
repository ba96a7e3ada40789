"""A server under load, killed at random moments: everything acknowledged is there, once, in order."""

from __future__ import annotations

import asyncio
import os
import secrets

import pytest
from tests.torture.harness import Campaign, Victim

QUICK_SEED = 20_240_607
QUICK_KILLS = 8


def test_nothing_acknowledged_is_lost(victim: Victim) -> None:
    campaign = Campaign(victim, QUICK_SEED)
    run(campaign, QUICK_KILLS)
    assert campaign.ledger.acknowledged() > 500, campaign.story()


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_nothing_acknowledged_is_lost_for_long(victim: Victim, capsys: pytest.CaptureFixture[str]) -> None:
    """`MILLSTREAM_TORTURE_KILLS=1000 make torture`; `MILLSTREAM_TORTURE_SEED` brings back a run."""
    seed = int(os.environ.get("MILLSTREAM_TORTURE_SEED") or secrets.randbelow(10**9))
    kills = int(os.environ.get("MILLSTREAM_TORTURE_KILLS") or 300)
    with capsys.disabled():
        print(f"\nMILLSTREAM_TORTURE_SEED={seed} MILLSTREAM_TORTURE_KILLS={kills}", flush=True)
    campaign = Campaign(victim, seed)
    run(campaign, kills)
    with capsys.disabled():
        print(campaign.story())


def run(campaign: Campaign, kills: int) -> None:
    try:
        asyncio.run(campaign.run(kills))
    except BaseException:
        print(campaign.story())
        print(campaign.server.log()[-4000:])
        raise
