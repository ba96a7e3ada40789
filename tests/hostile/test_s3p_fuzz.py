"""Hostile S3P made at random from a seed: a reply of its kind, an error, or silence; soon, and at nobody else's cost.

The quick form has a fixed seed. The long form sends a million and prints its seed:

    make torture ARGS="-k million_hostile_s3p"
    MILLSTREAM_TORTURE_SEED=7 MILLSTREAM_TORTURE_INPUTS=100000 make torture ARGS="-k million_hostile_s3p"
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest
from tests.conftest import ServerProcess
from tests.hostile.conftest import check_health
from tests.hostile.flood import flood_from_processes
from tests.hostile.memory import descriptors, peak_mib
from tests.hostile.s3p_flood import LARGE, LIMITS, QUIET, REFUSALS, flood
from tests.hostile.test_fuzz import PATIENT, PEAK_MIB_MAX
from tests.hostile.wire import WAIT_S, ask, put, request
from tests.torture.harness import eventually, metric

from millstream.client.s3p import MessageId, S3pClient

SEED = 7
QUICK = {"frames": 3000, "commands": 4000, "manners": 120}
# Of a million. A connection without manners takes seconds of its own.
SHARES = {"frames": 0.3, "commands": 0.68, "manners": 0.02}
PATIENT_S3P: dict[str, object] = {
    **PATIENT,
    **{f"s3p.{name}": getattr(LIMITS, name) for name in LIMITS.__struct_fields__},
    "s3p.idle_timeout_s": 2.0,
    "s3p.buckets": True,  # names reach streams that S3P would not make: closed ones, JSON
}


class Bystander:
    """A client with manners, busy all the time: what it appends it reads back, and neither takes long."""

    def __init__(self, port: int) -> None:
        self.turns = 0
        self.slowest_s = 0.0
        self._port = port
        self._last = MessageId(0, 0)
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with S3pClient("127.0.0.1", self._port, timeout_s=30) as client:
                client.create("bystander")
                while not self._stopping.is_set():
                    self._turn(client)
                    time.sleep(0.002)
        except BaseException as error:
            self._failure = error

    def _turn(self, client: S3pClient) -> None:
        began = time.monotonic()
        records = [b"%d.%d" % (self.turns, index) for index in range(3)]
        last = client.append("bystander", records)
        assert [record.data for record in client.read("bystander", after=self._last)] == records
        self._last = last
        self.turns += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path, PATIENT_S3P)
    server.start()
    for name, kind in (("json", "application/json"), ("text", "text/plain")):
        put(server.port, f"/v1/stream/fuzz/{name}", kind)
    closed = request("PUT", "/v1/stream/fuzz/closed", "Stream-Closed: true")
    assert ask(server.port, closed, "PUT").status == 201
    with S3pClient("127.0.0.1", server.s3p_port) as client:
        for name in ("fuzz-a", "fuzz-quiet", QUIET, LARGE):
            client.create(name)
        client.append(LARGE, [b"x" * 20_000] * 10)
    yield server
    server.stop()


def check_unharmed(server: ServerProcess) -> None:
    """Nothing is left of what was refused or broken off: no connection, no bytes, no memory, no word in the log."""
    eventually(lambda: metric(server.port, "millstream_s3p_connections") == 0, "every connection is ended")
    eventually(lambda: metric(server.port, "millstream_s3p_inflight_bytes") == 0, "nothing is kept of half a command")
    check_health(server)
    assert peak_mib(server.pid) < PEAK_MIB_MAX
    assert descriptors(server.pid) < 120


def check_worked(kind: str, inputs: int, tally: Counter[str]) -> None:
    assert tally.total() >= inputs * (0.7 if kind == "frames" else 1.0) > 0, tally  # half a command gets no answer
    if kind == "commands":
        assert min(tally["ok"], *(tally[code] for code in REFUSALS)) > 10, tally  # they got everywhere


def check_bystander(bystander: Bystander) -> None:
    assert bystander.turns > 20
    assert bystander.slowest_s < WAIT_S


@pytest.mark.parametrize("kind", QUICK)
def test_hostile_s3p_is_answered_or_refused(patient: ServerProcess, kind: str) -> None:
    with Bystander(patient.s3p_port) as bystander:
        tally = flood(patient.s3p_port, kind, SEED, QUICK[kind])
    check_worked(kind, QUICK[kind], tally)
    check_bystander(bystander)
    check_unharmed(patient)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_a_million_hostile_s3p_inputs_are_answered_or_refused(
    patient: ServerProcess, seed_and_inputs: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    seed, inputs = seed_and_inputs
    tally = Counter[str]()
    with Bystander(patient.s3p_port) as bystander:
        for kind, share in SHARES.items():
            count = int(share * inputs)
            told = flood_from_processes("tests.hostile.s3p_flood", patient.s3p_port, kind, seed, count)
            check_worked(kind, count, told)
            tally += told
            with capsys.disabled():
                print(f"{kind}: so far {tally.total()} replies, peak {peak_mib(patient.pid):.0f} MiB", flush=True)
    check_bystander(bystander)
    check_unharmed(patient)
    with capsys.disabled():
        print(f"{inputs} hostile inputs, replies by kind: {dict(sorted(tally.items()))}")
        print(f"a client beside them: {bystander.turns} turns, the slowest took {bystander.slowest_s:.2f} s")
