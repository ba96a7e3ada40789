"""Random sequences of all operations against a real server and against a dictionary: every answer must agree.

The server is killed or restarted in between, and moves what it has to segments and archive all the time.

    make torture ARGS="-k agrees"
    MILLSTREAM_TORTURE_SEED=7 MILLSTREAM_TORTURE_EXAMPLES=50 make torture ARGS="-k agrees"
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.conftest import ServerProcess, StartServer
from tests.extensions.lifetimes import RETENTION_EVERY_S, AllOperations

QUICK_EXAMPLES = 20
STEPS = 40
# What every run has to have come to.
SHOWN = ("restarts", "arrow", "lines", "lapsed", "defaults", "changed", "trimmed", "since", "long-poll", "sse")
SHOWN += ("news", "buckets")


@pytest.fixture
def running(server: StartServer) -> ServerProcess:
    return server(
        {
            "checkpoint_age_s": 0.2,
            "journal_file_bytes": "256KiB",
            "merge_segments_min": 3,
            "retention_every_s": RETENTION_EVERY_S,
        }
    )


def agree(running: ServerProcess, examples: int, seeded: int | None) -> Counter[str]:
    """Play so many examples; what was shown by them."""

    class Case(AllOperations):
        server = running
        done: ClassVar[Counter[str]] = Counter()

    if seeded is not None:
        seed(seeded)(Case)
    run_state_machine_as_test(
        Case,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=seeded is None,
            database=None,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.explicit],  # shrinking restarts servers for minutes; the steps are short
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert examples > 0
    assert min(Case.done[kind] for kind in SHOWN) >= max(1, examples // 100), Case.done
    return Case.done


@pytest.mark.timeout(600)
def test_every_answer_agrees_with_the_model(running: ServerProcess) -> None:
    print(agree(running, QUICK_EXAMPLES, None))


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_every_answer_agrees_with_the_model_for_long(
    running: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = int(os.environ.get("MILLSTREAM_TORTURE_EXAMPLES") or 300)
    seeded = int(os.environ.get("MILLSTREAM_TORTURE_SEED") or secrets.randbelow(10**9))
    with capsys.disabled():
        print(f"\nMILLSTREAM_TORTURE_SEED={seeded} MILLSTREAM_TORTURE_EXAMPLES={examples}", flush=True)
        print(f"{examples} examples agree with the model: {dict(agree(running, examples, seeded))}")
