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

import httpx
import pytest
from tests.conftest import ServerProcess, StartServer

_names = count(1)

# Data leaves memory at once, into the archive.
ARCHIVING = {"checkpoint_age_s": 0.1}
# The archive keeps nothing, so that everything is read from segments.
SEGMENTS_ONLY = {"checkpoint_age_s": 0.1, "archive_age_s": 0}


class Bucket:
    """A bucket of its own on a running server, and short words for what the tests do to it."""

    def __init__(self, server: ServerProcess, **settings: object) -> None:
        self.server = server
        self.name = f"bucket-{next(_names)}"
        self.http = httpx.Client(base_url=f"{server.url}/ds/{self.name}/", timeout=30)
        self.http.put("", json=settings).raise_for_status()

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
    for process in started.values():
        process.stop()


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


class CountingProxy:
    """Passes connections on to a server and counts what the server sends."""

    def __init__(self, port: int) -> None:
        self.sent = 0
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

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
            threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                self.sent += len(data) if counted else 0
                target.sendall(data)


@pytest.fixture
def counting_proxy():
    @contextlib.contextmanager
    def start(port: int) -> Iterator[CountingProxy]:
        proxy = CountingProxy(port)
        try:
            yield proxy
        finally:
            proxy.close()

    return start


__all__ = ["ARCHIVING", "SEGMENTS_ONLY", "Bucket", "StartServer"]
