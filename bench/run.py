"""Runs the benchmarks, prints their tables and writes .build/results.json.

python bench/run.py                      everything, as the bars ask for
python bench/run.py appends reads        some figures
python bench/run.py --quick              small sizes, few rounds: does it work?
python bench/run.py --peers-only         only the Node server: a check of this kit
python bench/run.py --check              exit 1 if a bar is missed
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict

import appends
import client
import creation_and_memory
import extensions
import fanout
import feed
import long_reads
import pipeline
import reads
import recovery
import s3p
import spark
import transactions
from loadgen import build
from servers import BUILD, DATA, LOGS, BenchError, install_node_peer
from tables import OTHERS_SHARE, Figure, Plan, bar_table

FIGURES: dict[str, Callable[[Plan], Figure]] = {
    "appends": appends.measure,
    "reads": reads.measure,
    "long_reads": long_reads.measure,
    "fanout": fanout.measure,
    "creation_and_memory": creation_and_memory.measure,
    "recovery": recovery.measure,
    "s3p": s3p.measure,
    "spark": spark.measure,
    "extensions": extensions.measure,
    "client": client.measure,
    "feed": feed.measure,
    "transactions": transactions.measure,
    "pipeline": pipeline.measure,
}


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Millstream's benchmarks beside the Node server.")
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=", ".join(FIGURES))
    parser.add_argument("--rounds", type=int, help="rounds, of which medians are shown (7)")
    parser.add_argument("--seconds", type=float, help="seconds per measurement (1.5)")
    parser.add_argument("--quick", action="store_true", help="small sizes, 3 rounds, 0.5 s")
    parser.add_argument("--peers-only", action="store_true", help="leave Millstream out")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    parsed = parser.parse_args(arguments)
    for name in parsed.figures:
        if name not in FIGURES:
            parser.error(f"no figure named {name!r}; there are: {', '.join(FIGURES)}")
    return parsed


def plan_from(arguments: argparse.Namespace) -> Plan:
    rounds = arguments.rounds or (3 if arguments.quick else 7)
    seconds = arguments.seconds or (0.5 if arguments.quick else 1.5)
    return Plan(rounds, seconds, arguments.quick, arguments.peers_only)


def disk_sync_us() -> float:
    """What durability costs here: the median of small writes, each with its fdatasync."""
    BUILD.mkdir(exist_ok=True)
    path = BUILD / "sync-probe"
    taken: list[int] = []
    with path.open("wb", buffering=0) as probe:
        for _ in range(200):
            began = time.perf_counter_ns()
            probe.write(b"x" * 300)
            os.fdatasync(probe.fileno())
            taken.append(time.perf_counter_ns() - began)
    path.unlink()
    return statistics.median(taken) / 1000


def machine() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average_before": os.getloadavg()[0],
        "disk_sync_us": disk_sync_us(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def figure_record(figure: Figure) -> dict[str, object]:
    return {
        "tables": [asdict(table) for table in figure.tables],
        "bars": [{**asdict(bar), "met": bar.met} for bar in figure.bars],
        "samples": [asdict(row) for row in figure.samples.rows],
    }


def print_figure(figure: Figure) -> None:
    for table in (*figure.tables, bar_table(figure.bars)):
        print(f"\n{table.text()}", flush=True)
    shares = figure.samples.of_all(OTHERS_SHARE)
    if shares:
        usual, most = statistics.median(shares), max(shares)
        print(f"\nOthers used {usual:.0%} of the machine meanwhile (median; at most {most:.0%}).")


def write_results(plan: Plan, about: dict[str, object], figures: Sequence[Figure]) -> None:
    """Written after every figure, so that an interrupted run keeps what it found."""
    record = {
        "machine": about,
        "plan": asdict(plan),
        "figures": {figure.name: figure_record(figure) for figure in figures},
    }
    (BUILD / "results.json").write_text(json.dumps(record, indent=1) + "\n")


def print_conditions(plan: Plan, about: dict[str, object]) -> None:
    size = "quick look at small sizes: no bar is proven by it" if plan.quick else "full sizes"
    print(f"{about['cores']} cores, load average {about['load_average_before']:.2f} before the start")
    print(f"one fdatasync of this disk: {about['disk_sync_us']:.0f} us (median)")
    print(f"{plan.rounds} rounds of {plan.seconds:g} s; {size}")


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Two runs at once would measure each other. Removes what an interrupted run left."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BenchError("another benchmark is running on this checkout") from None
        for folder in (DATA, LOGS):
            shutil.rmtree(folder, ignore_errors=True)
        yield


def measure_all(names: Iterable[str], plan: Plan) -> list[Figure]:
    about = machine()
    print_conditions(plan, about)
    figures: list[Figure] = []
    for name in names:
        figures.append(FIGURES[name](plan))
        print_figure(figures[-1])
        write_results(plan, about, figures)
    return figures


def main(arguments: Sequence[str]) -> int:
    # Ending by signal must still end the servers: leave through the context managers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parsed = parse_arguments(arguments)
    try:
        with alone():
            for program in ("load", "fanout", "s3p_load"):
                build(program)
            install_node_peer()
            figures = measure_all(parsed.figures or FIGURES, plan_from(parsed))
    except (BenchError, subprocess.CalledProcessError) as error:
        print(f"\nbenchmark failed: {error}", file=sys.stderr)
        return 2
    bars = [bar for figure in figures for bar in figure.bars]
    missed = [bar for bar in bars if bar.met is False]
    print(f"\n{sum(bar.met is True for bar in bars)} bars met, {len(missed)} missed")
    return 1 if parsed.check and missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
