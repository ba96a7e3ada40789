"""Runs the project beside this file: bronze, silver, gold, and announcements back into a stream.

python examples/pipelines/run.py --url http://127.0.0.1:4437 --bucket agents --work build/pipeline

Run it again and only what is new is processed. Needs `pip install 'millstream[pipelines]'`. The tables are in
`spark-warehouse` in the work folder, as Parquet.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from millstream.client import AlreadyExists, Client

HERE = Path(__file__).resolve().parent
CONNECT_PORT = 15002
PORT_WAIT_S = 300.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Run the example pipeline once.")
    parser.add_argument("--url", default="http://127.0.0.1:4437", help="the server")
    parser.add_argument("--bucket", default="agents", help="where the runs are")
    parser.add_argument("--sink-bucket", default="announcements", help="where finished runs are announced")
    parser.add_argument("--work", type=Path, default=Path("build/pipeline"), help="folder for tables and checkpoints")
    parser.add_argument("--remote", default="local[2]", help="where Spark runs")
    chosen = parser.parse_args(arguments)
    create_bucket(chosen.url, chosen.sink_bucket)
    work = chosen.work.absolute()
    spec = prepared(work)
    environment = os.environ | {
        "MILLSTREAM_URL": chosen.url,
        "MILLSTREAM_BUCKET": chosen.bucket,
        "MILLSTREAM_SINK_BUCKET": chosen.sink_bucket,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
    }
    command = [str(Path(sys.executable).parent / "spark-pipelines"), "run", "--spec", str(spec)]
    command += ["--remote", chosen.remote]
    # Without a lasting catalog the second run would not know the tables of the first one.
    command += ["--conf", "spark.sql.catalogImplementation=hive", "--conf", "spark.ui.enabled=false"]
    # Seen with Spark 4.3: once a table is in the catalog, a flow that reads it may be resolved against the catalog
    # before the flow that fills it is known, and then starts beside that one instead of behind it. What it misses comes
    # with the next run; filling bronze by itself first leaves nothing to miss.
    steps = [["--refresh", "bronze_messages"], []] if (work / "spark-warehouse" / "bronze_messages").exists() else [[]]
    for step in steps:
        if chosen.remote.startswith("local"):
            wait_for_port()
        done = subprocess.run([*command, *step], cwd=work, env=environment, check=False)
        if done.returncode:
            return done.returncode
    return 0


def wait_for_port() -> None:
    """A local run listens on a port that Spark does not let one choose, so two of them take turns."""
    give_up = time.monotonic() + PORT_WAIT_S
    waiting = False
    while is_taken(CONNECT_PORT):
        if time.monotonic() > give_up:
            raise SystemExit(f"Port {CONNECT_PORT} is in use by another Spark session; stop that one first.")
        if not waiting:
            print(f"Waiting for port {CONNECT_PORT}, which another Spark session uses ...", flush=True)
        waiting = True
        time.sleep(1)


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def create_bucket(url: str, name: str) -> None:
    with Client(url) as client:
        try:
            client.bucket(name).create()
        except AlreadyExists:
            return


def prepared(work: Path) -> Path:
    """The project in the work folder, with an absolute folder for checkpoints: Spark takes no other."""
    project, storage = work / "project", work / "storage"
    storage.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(HERE / "transformations", project / "transformations", ignore=shutil.ignore_patterns("__pycache__"))
    spec = project / "spark-pipeline.yml"
    spec.write_text((HERE / spec.name).read_text().replace("storage: storage\n", f"storage: {storage.as_uri()}\n"))
    return spec


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
