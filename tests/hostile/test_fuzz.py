"""Hostile inputs made at random from a seed: whatever comes in, what goes out is HTTP, soon, and never a fault of ours.

The quick form has a fixed seed. The long form sends a million and prints its seed:

    make torture ARGS="-k million_hostile_inputs"
    MILLSTREAM_TORTURE_SEED=7 MILLSTREAM_TORTURE_INPUTS=100000 make torture ARGS="-k million_hostile_inputs"
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import ServerProcess
from tests.hostile.conftest import SMALL, check_health
from tests.hostile.flood import DOCUMENTS, flood, flood_from_processes
from tests.hostile.memory import peak_mib
from tests.hostile.mutations import ODD_BUCKET, mutated_document
from tests.hostile.wire import Wire, ask, content, put, request

SEED = 7
QUICK = {"heads": 5000, "values": 15_000, "extensions": 3000, "documents": 5000}
# Of a million. A head needs a connection of its own, so these are the slowest.
SHARES = {"heads": 0.3, "values": 0.4, "extensions": 0.1, "documents": 0.2}
PATIENT: dict[str, object] = {
    **SMALL,
    # Every wait is short, so that an input that asks for one does not take long.
    "idle_timeout_s": 2.0,
    "long_poll_ms": 20,
    "long_poll_ms_max": 50,
    "sse_max_s": 0.3,
    # Everything that is kept in memory is small, so that what should not be kept shows.
    "inflight_bytes_max": "16MiB",
    "hot_bytes_max": "16MiB",
    "checkpoint_bytes": "2MiB",
    "read_bytes_max": "1MiB",
}
# A server takes 112 MiB for a moment when it starts, and 50 once it is up. Bodies in flight and the hot tail add what
# they may; the rest is the allocator's and the caches'. It is the same after a thousand inputs and after a million.
PEAK_MIB_MAX = 112 + 16 + 16 + 48


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path, PATIENT)
    server.start()
    put(server.port, "/v1/stream/fuzz/a")
    put(server.port, "/v1/stream/fuzz/json", "application/json")
    put(server.port, DOCUMENTS, "application/json")
    for bucket in ("fuzz-bucket", ODD_BUCKET):
        assert ask(server.port, request("PUT", f"/ds/{bucket}"), "PUT").status == 201
    yield server
    server.stop()


def check_unharmed(server: ServerProcess, tally: Counter[str]) -> None:
    """No answer of 500 or more: nothing that a client sends is a fault of the server, and this is no load."""
    assert not [status for status in tally if status >= "500" and status != "501"], tally
    check_health(server)
    assert peak_mib(server.pid) < PEAK_MIB_MAX


def check_worked(kind: str, inputs: int, tally: Counter[str]) -> None:
    assert tally.total() >= inputs * (0.7 if kind == "heads" else 1.0) > 0, tally  # half a head may get no answer


@pytest.mark.parametrize("kind", QUICK)
def test_hostile_inputs_get_well_formed_answers(patient: ServerProcess, kind: str) -> None:
    tally = flood(patient.port, kind, SEED, QUICK[kind])
    check_worked(kind, QUICK[kind], tally)
    check_unharmed(patient, tally)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_a_million_hostile_inputs_get_well_formed_answers(
    patient: ServerProcess, seed_and_inputs: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    seed, inputs = seed_and_inputs
    tally = Counter[str]()
    for kind, share in SHARES.items():
        count = int(share * inputs)
        told = flood_from_processes("tests.hostile.flood", patient.port, kind, seed, count)
        check_worked(kind, count, told)
        tally += told
        with capsys.disabled():
            print(f"{kind}: so far {tally.total()} answers, peak {peak_mib(patient.pid):.0f} MiB", flush=True)
    check_unharmed(patient, tally)
    with capsys.disabled():
        print(f"{inputs} hostile inputs, answers by status: {dict(sorted(tally.items()))}")


def test_no_mutated_document_spoils_a_json_stream(patient: ServerProcess) -> None:
    """Every reader gets all messages in one array, so a single bad one would be everybody's problem."""
    chance, documents = random.Random(SEED), 2000
    path = "/v1/stream/fuzz/documents"
    put(patient.port, path, "application/json")
    taken = []
    with Wire(patient.port) as wire:
        for _ in range(documents):
            data = mutated_document(chance)
            wire.send(request("POST", path, "Content-Type: application/json", body=data))
            status = wire.answer("POST").status
            assert status in (204, 400), data
            if status == 204:
                taken.append(data)
    assert 100 < len(taken) < documents - 100
    stored = content(patient.port, path)
    assert len(json.loads(stored, parse_constant=pytest.fail)) == len(taken)
    assert stored == b"[" + b",".join(data.strip(b" \t\r\n") for data in taken) + b"]"
