"""One Spark session for all tests, as starting one takes long, and buckets on a real server."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest
from tests.conftest import ServerProcess

ROOT = Path(__file__).parents[2]
_names = count(1)

# Data leaves memory at once, into the archive.
ARCHIVING = {"checkpoint_age_s": 0.1}
# The archive keeps nothing, so that everything is read from segments.
SEGMENTS_ONLY = {"checkpoint_age_s": 0.1, "archive_age_s": 0}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for Spark, which takes a minute on a busy machine; a time-out would break its connection."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(600))


class Bucket:
    """A bucket of its own on a running server, and short words for what the tests do to it."""

    def __init__(self, server: ServerProcess, **settings: object) -> None:
        self.server = server
        self.name = f"bucket-{next(_names)}"
        self.http = httpx.Client(base_url=f"{server.url}/ds/{self.name}/", timeout=30)
        self.http.put(f"{server.url}/ds/{self.name}", json=settings).raise_for_status()

    @property
    def where(self) -> dict[str, str]:
        return {"url": self.server.url, "bucket": self.name}

    def create(self, stream: str, *messages: bytes, kind: str = "text/plain") -> None:
        self.http.put(stream, headers={"Content-Type": kind}).raise_for_status()
        self.append(stream, *messages, kind=kind)

    def append(self, stream: str, *messages: bytes, kind: str = "text/plain") -> None:
        for message in messages:
            self.http.post(stream, content=message, headers={"Content-Type": kind}).raise_for_status()

    def publish(self, stream: str, offset: int, state: bytes, *, trim: bool = True) -> None:
        url = f"{stream}/snapshot/{offset:020d}?trim={str(trim).lower()}"
        self.http.put(url, content=state, headers={"Content-Type": "text/plain"}).raise_for_status()

    def read(self, stream: str) -> bytes:
        return self.http.get(stream, params={"offset": "-1"}).raise_for_status().content

    def streams(self) -> list[str]:
        return [entry["stream_id"] for entry in self.http.get("streams").raise_for_status().json()["streams"]]

    def now(self) -> str:
        return str(self.http.get("streams/feed", params={"after": "now"}).json()["next_position"])

    def settle(self) -> None:
        """Wait until everything has left memory."""
        give_up = time.monotonic() + 20
        while True:
            lines = httpx.get(f"{self.server.url}/metrics").text.splitlines()
            metrics = dict(line.split(" ") for line in lines if line[:1] not in ("#", "p"))
            if metrics["millstream_catalog_sequence"] == metrics["millstream_journal_sequence"]:
                return
            assert time.monotonic() < give_up, "there was no checkpoint"
            time.sleep(0.02)


@pytest.fixture(scope="session")
def spark_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServerProcess]]:
    started: dict[str, ServerProcess] = {}
    yield started
    with contextlib.ExitStack() as stopping:
        for process in started.values():
            stopping.callback(process.stop)


@pytest.fixture
def bucket(spark_servers: dict[str, ServerProcess], tmp_path_factory: pytest.TempPathFactory):
    """`bucket()` on a server that all tests share; `bucket(SEGMENTS_ONLY)` on one with these settings."""

    made: list[Bucket] = []

    def make(settings: dict[str, object] | None = None, **defaults: object) -> Bucket:
        key = repr(settings)
        if key not in spark_servers:
            process = ServerProcess(tmp_path_factory.mktemp("server"), settings or {})
            process.start()
            spark_servers[key] = process
        made.append(Bucket(spark_servers[key], **defaults))
        return made[-1]

    yield make
    for used in made:
        used.http.close()


@pytest.fixture(scope="session")
def spark(java, tmp_path_factory: pytest.TempPathFactory):
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Workers import what tests define.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    session = (
        SparkSession.builder.master("local[2, 4]")  # four attempts for each task, as on a cluster
        .appName("millstream tests")
        .config("spark.driver.memory", "700m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder))
        .config("spark.sql.streaming.metricsEnabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


class Proxy:
    """Passes connections on to a server, counts what the server sends, and loses answers when told to."""

    def __init__(self, port: int) -> None:
        self.sent = 0
        self.answers_to_lose = 0  # of PUT and POST: the server has acted, the client does not learn of it
        self._port = port
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            writes = threading.Event()
            threading.Thread(target=self._pass_requests, args=(client, server, writes), daemon=True).start()
            threading.Thread(target=self._pass_answers, args=(server, client, writes), daemon=True).start()

    def _pass_requests(self, client: socket.socket, server: socket.socket, writes: threading.Event) -> None:
        with contextlib.suppress(OSError), client, server:
            while data := client.recv(1 << 16):
                if data.startswith((b"PUT ", b"POST ")):
                    writes.set()
                elif data.startswith((b"GET ", b"DELETE ")):
                    writes.clear()
                server.sendall(data)

    def _pass_answers(self, server: socket.socket, client: socket.socket, writes: threading.Event) -> None:
        with contextlib.suppress(OSError), client, server:
            while data := server.recv(1 << 16):
                if writes.is_set() and self._loses():
                    client.shutdown(socket.SHUT_RDWR)
                    return
                self.sent += len(data)
                client.sendall(data)

    def _loses(self) -> bool:
        with self._lock:
            loses = self.answers_to_lose > 0
            self.answers_to_lose -= loses
            return loses


@pytest.fixture
def proxy():
    """`proxy(port)` stands in front of a server."""
    started: list[Proxy] = []

    def start(port: int) -> Proxy:
        started.append(Proxy(port))
        return started[-1]

    yield start
    for one in started:
        one.close()
