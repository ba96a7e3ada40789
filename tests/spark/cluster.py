"""A standalone Spark cluster out of the wheel: one master, two workers, each a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest
from tests.conftest import free_port

ROOT = Path(__file__).parents[2]
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


class Cluster:
    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start("Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0")
        self._wait_for("the master listens", self._listens)
        for number in range(workers):
            work = folder / f"worker-{number}"
            options = ("--cores", "1", "--memory", "600m", "--work-dir", str(work), "--webui-port", "0")
            self._start("Worker", "--host", "127.0.0.1", *options, self.master)
        self._wait_for(
            "the workers have registered", lambda: self._log("Master").count("Registering worker") == workers
        )

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)

    def _start(self, role: str, *options: str) -> None:
        number = len(self._processes)
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_NO_DAEMONIZE": "1",
        }
        command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{role.lower()}.{role}", *options]
        with (self.folder / f"{role}-{number}.log").open("wb") as log:
            self._processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def _log(self, role: str) -> str:
        return "".join(path.read_text(errors="replace") for path in self.folder.glob(f"{role}-*.log"))

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _wait_for(self, what: str, is_so) -> None:
        give_up = time.monotonic() + 120
        while not is_so():
            dead = [process.args for process in self._processes if process.poll() is not None]
            if dead or time.monotonic() > give_up:
                self.stop()
                pytest.fail(f"Not so: {what}.\n{self._log('Master')[-2000:]}\n{self._log('Worker')[-2000:]}")
            time.sleep(0.1)


def run_job(*arguments: object, env_path: str | None = None, timeout_s: float = 400) -> str:
    """Run `copying_job.py` to its end; what it printed."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)]) if env_path is None else env_path
    command = [sys.executable, str(Path(__file__).parent / "copying_job.py"), *map(str, arguments)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


def run_fold(url: str, bucket: str, *options: object, env_path: str | None = None, timeout_s: float = 400) -> dict:
    """`millstream pipeline fold` with a fold that any stream can have, its history kept; what it says in JSON."""
    path = str(ROOT / "src") if env_path is None else env_path
    command = [sys.executable, "-m", "millstream", "pipeline", "fold", "--url", url, "--bucket", bucket]
    command += ["--with", "concatenation", "--keep-history", "--json", *map(str, options)]
    environment = {**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    result: dict = json.loads(done.stdout)
    return result


def on_cluster(cluster: Cluster, **settings: str) -> list[str]:
    """The job's options for this cluster."""
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        **settings,
    }
    options = ["--master", cluster.master]
    for name, value in settings.items():
        options += ["--conf", f"{name}={value}"]
    return options
