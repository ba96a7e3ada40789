"""The public durable-streams suite, run by vitest against a real server."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
VITEST = HERE / "node_modules" / "vitest" / "vitest.mjs"

# Forks are a later extension and the suite has no switch for them, so they are left out by name.
WITHOUT_FORKS = "^(?!.*Fork - )"
TESTS_WITHOUT_FORKS = 250

# Below the suite's own 5 s limit per test, and short because many tests wait for one to end.
LONG_POLL_MS = 500
SUITE_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Outcome:
    passed: int
    failures: tuple[str, ...]

    def described(self) -> str:
        return "\n".join((f"{self.passed} passed, {len(self.failures)} failed:", *self.failures))


def run_suite(node: Path, base_url: str, folder: Path, pattern: str = WITHOUT_FORKS) -> Outcome:
    report = folder / "report.json"
    command = [str(node), str(VITEST), "run", "-t", pattern, "--reporter=json", f"--outputFile={report}"]
    environment = {
        **os.environ,
        "CONFORMANCE_BASE_URL": base_url,
        "CONFORMANCE_LONG_POLL_MS": str(LONG_POLL_MS),
    }
    done = subprocess.run(
        command,
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SUITE_TIMEOUT_S,
        check=False,
    )
    if not report.exists():
        pytest.fail(f"vitest wrote no report; it said:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return read_report(json.loads(report.read_text()))


def read_report(report: dict) -> Outcome:
    """vitest's JSON report. A file that cannot even be loaded counts as a failure with its message."""
    failures: list[str] = []
    for file in report["testResults"]:
        if file["status"] == "failed" and not file["assertionResults"]:
            failures.append(file["message"])
        failures += [described_failure(test) for test in file["assertionResults"] if test["status"] == "failed"]
    return Outcome(report["numPassedTests"], tuple(failures))


def described_failure(test: dict) -> str:
    messages = test["failureMessages"]
    reason = messages[0].splitlines()[0] if messages and messages[0] else "no message"
    return f"- {test['fullName']}\n    {reason}"


@pytest.mark.timeout(SUITE_TIMEOUT_S + 60)
def test_the_server_passes_the_public_suite(server, node, tmp_path):
    if not VITEST.exists():
        pytest.fail("vitest is not installed; run `npm ci` in tests/conformance, or `make test`.")
    running = server({"long_poll_ms": LONG_POLL_MS})
    outcome = run_suite(node, running.url, tmp_path)
    assert not outcome.failures, outcome.described()
    assert outcome.passed == TESTS_WITHOUT_FORKS
