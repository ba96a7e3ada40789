"""What all tests stand on: a server that is ended after a test has ended well, or the test fails."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests import conftest
from tests.conftest import ServerProcess


@pytest.fixture
def started(tmp_path: Path) -> ServerProcess:
    process = ServerProcess(tmp_path, {})
    process.start()
    return process


def test_a_server_that_does_not_stop_fails_its_test(started, monkeypatch):
    monkeypatch.setattr(conftest, "STOP_TIMEOUT_S", 0.3)
    os.kill(started.pid, signal.SIGSTOP)
    with pytest.raises(pytest.fail.Exception, match="had not stopped"):
        started.stop()
    assert not started.is_running


def test_a_server_that_died_by_itself_fails_its_test(started):
    os.kill(started.pid, signal.SIGKILL)  # not by us: `kill()` would have known
    with pytest.raises(AssertionError, match="exited with -9"):
        started.stop()


def test_a_server_that_had_an_accident_fails_its_test(started):
    with started.log_path.open("a") as log:
        log.write("Traceback (most recent call last):\n")
    started.kill()
    with pytest.raises(AssertionError, match="most recent call"):
        started.stop()


def test_a_server_that_the_test_has_killed_is_no_failure(started):
    started.kill()
    started.stop()
    started.restart()
    assert started.stop() == 0
