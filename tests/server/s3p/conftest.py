"""One server with low limits for the tests of commands; those of other subjects start their own."""

from __future__ import annotations

import pytest
from tests.conftest import ServerProcess
from tests.server.s3p.wire import Wire

LIMITS = {
    "s3p.name_bytes_max": 40,
    "s3p.append_records_max": 20,
    "s3p.append_bytes_max": "200KiB",
    "s3p.record_bytes_max": "150KiB",
    "s3p.count_default": 10,
    "s3p.count_max": 50,
    "s3p.block_ms_max": 5000,
    "s3p.read_bytes_max": "256KiB",
    "part_bytes": "64KiB",
}


@pytest.fixture(scope="module")
def running(module_server) -> ServerProcess:
    return module_server(LIMITS)


@pytest.fixture
def wire(running):
    with Wire(running.s3p_port) as wire:
        yield wire


@pytest.fixture
def name(request) -> bytes:
    """A stream name of the test's own."""
    return f"s{abs(hash(request.node.name)):x}"[:30].encode()
