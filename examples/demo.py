"""The whole pipeline in about a minute: `make demo`.

Starts a server, loads a sample of agent runs and document edits, folds them into snapshots, exports them to a table,
reports on them, and says where to look. Everything is in build/demo; run it again and nothing is loaded twice.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
RUNS, DOCUMENTS = "agent-runs", "documents"

screen = Console(highlight=False, soft_wrap=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="The pipeline in one command.")
    parser.add_argument("--folder", type=Path, default=Path("build/demo"), help="where everything is put")
    parser.add_argument("--runs", type=int, default=200, help="how many agent runs")
    parser.add_argument("--documents", type=int, default=100, help="how many documents")
    parser.add_argument("--master", default="local[*]", help="where Spark runs")
    chosen = parser.parse_args(arguments)
    folder: Path = chosen.folder
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with serving(folder) as url:
        run_pipeline(url, folder, chosen.runs, chosen.documents, chosen.master)
    screen.print(f"\n[bold]Done in {time.monotonic() - began:.0f} s.[/bold] Where to look:\n")
    screen.print(f"  {folder}/report/report.html        the report, for a browser")
    screen.print(f"  {folder}/table                     the table: any tool that reads Parquet, such as")
    screen.print(f"     python -c \"import pandas; print(pandas.read_parquet('{folder}/table'))\"")
    screen.print(f"  millstream serve --data-dir {folder}/data    the streams themselves; then")
    screen.print(f"     curl -L http://127.0.0.1:4437/ds/{DOCUMENTS}/doc-0001/snapshot")
    screen.print("  docs/pipelines.md                  what was done here, step by step")
    return 0


def run_pipeline(url: str, folder: Path, runs: int, documents: int, master: str) -> None:
    # Imported here: the first lines of a demo should not wait for Spark.
    from millstream.spark.pipeline import export, fold, load, report
    from millstream.spark.pipeline.sample import write_sample
    from millstream.spark.pipeline.session import session

    sample = write_sample(folder / "sample", runs=runs, documents=documents)
    told("Made a sample", f"{sample.run_events:,} events of {runs} runs, {sample.edit_events:,} edits")
    with step("Starting Spark"):
        spark = session(master)
    with step("Loading agent runs"):
        loaded = load(url, RUNS, [sample.runs], "run", spark=spark)
    told("", f"{loaded.messages:,} messages" if loaded.messages else "all of it was there already")
    with step("Loading document edits"):
        loaded = load(url, DOCUMENTS, [sample.edits], "document", value_column="patch", spark=spark)
    told("", f"{loaded.messages:,} messages" if loaded.messages else "all of it was there already")
    with step("Folding documents: edits are merge patches"):
        folded = fold(url, DOCUMENTS, "merge-patch", keep_history=True, spark=spark)
    told("", f"{folded.folded} documents have a new snapshot")
    with step("Folding runs: events counted by type"):
        folded = fold(url, RUNS, "counters", keep_history=True, spark=spark)
    told("", f"{folded.folded} runs have a new snapshot")
    with step("Exporting both to a table, with snapshots"):
        rows = [
            export(url, bucket, folder / "table", include_snapshots=True, spark=spark).rows
            for bucket in (RUNS, DOCUMENTS)
        ]
    told("", f"{rows[0]:,} and {rows[1]:,} new rows")
    with step("Reporting on agent runs"):
        report(url, RUNS, folder / "report", time_member="at", spark=spark)
    spark.stop()


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A server on a port of its own, for as long as this takes."""
    port, s3p_port = free_port(), free_port()
    command = [sys.executable, "-m", "millstream", "serve", "--data-dir", str(folder / "data")]
    command += ["--listen", f"127.0.0.1:{port}", "--s3p-listen", f"127.0.0.1:{s3p_port}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")}
    log_path = folder / "server.log"
    with log_path.open("ab") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        with step(f"Starting a server on port {port}"):
            wait_until_ready(port, server, log_path)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(STOP_TIMEOUT_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(port: int, server: subprocess.Popen[bytes], log_path: Path) -> None:
    give_up = time.monotonic() + READY_TIMEOUT_S
    while not is_ready(port):
        if server.poll() is not None or time.monotonic() > give_up:
            raise SystemExit(f"The server did not start; {log_path} says why.")
        time.sleep(0.05)


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/readyz/local")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    began = time.monotonic()
    with screen.status(f"{title} ..."):
        yield
    told(title, f"{time.monotonic() - began:.1f} s")


def told(title: str, figure: str) -> None:
    screen.print(f"[cyan]{title:<44}[/cyan]{figure}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
