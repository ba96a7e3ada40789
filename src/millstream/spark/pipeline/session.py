"""The Spark session that the pipeline's commands share, and progress of its jobs."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .. import register

DEFAULT_MASTER = "local[*]"
POLL_S = 0.2


def session(master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The active session, or a new one on `master`. A session of the caller's is used as it is."""
    active = SparkSession.getActiveSession()
    if active is not None and master is None and not conf:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = master or DEFAULT_MASTER
    builder = SparkSession.builder.appName("millstream").master(master)
    for name, value in {**_defaults(master), **(conf or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def _defaults(master: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",  # the commands have a bar of their own
        "spark.sql.session.timeZone": "UTC",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    logging = Path(__file__).with_name("log4j2.properties")
    if logging.exists():  # not where the package is shipped as a zip
        settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={logging.as_uri()}"
    return settings


class Bar:
    """A progress bar over steps of known weight; inside a step it follows the tasks of Spark's jobs."""

    def __init__(self, spark: SparkSession, title: str, total: float, progress: Progress | None) -> None:
        self._spark = spark
        self._progress = progress
        self._task = progress.add_task(title, total=max(total, 1)) if progress is not None else None
        self._done = 0.0

    @contextmanager
    def step(self, weight: float) -> Iterator[None]:
        """Everything Spark does inside counts as `weight`."""
        if self._progress is None:
            yield
            return
        context = self._spark.sparkContext
        group = f"millstream-{uuid.uuid4().hex}"
        context.setJobGroup(group, "millstream pipeline")
        stop = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(group, weight, stop), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # null takes it away
        self._done += weight
        self._show(self._done)

    def _watch(self, group: str, weight: float, stop: threading.Event) -> None:
        while not stop.wait(POLL_S):
            self._show(self._done + weight * self._share_done(group))

    def _share_done(self, group: str) -> float:
        tracker = self._spark.sparkContext.statusTracker()
        tasks = completed = 0
        for job_id in tracker.getJobIdsForGroup(group):
            job = tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job is not None else ():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    tasks += stage.numTasks
                    completed += stage.numCompletedTasks
        return completed / tasks if tasks else 0.0

    def _show(self, done: float) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done)


@contextmanager
def progress_bar(spark: SparkSession, title: str, total: float, *, shown: bool) -> Iterator[Bar]:
    """A bar on stderr, if it is wanted; nothing is drawn where stderr is no terminal."""
    if not shown:
        yield Bar(spark, title, total, None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=Console(stderr=True)) as progress:
        yield Bar(spark, title, total, progress)
