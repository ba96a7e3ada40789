"""Sessions and progress: a session of the caller's is used, and the bar follows Spark's tasks."""

from __future__ import annotations

import io
import time

from rich.console import Console
from rich.progress import Progress

from millstream.spark.pipeline.session import Bar, progress_bar, session


def test_the_active_session_is_used(spark):
    assert session() is spark


def test_the_bar_follows_the_tasks_of_a_step(spark, monkeypatch):
    shown: list[float] = []
    monkeypatch.setattr(Bar, "_show", lambda self, done: shown.append(done))
    bar = Bar(spark, "test", 20, Progress(console=Console(file=io.StringIO())))
    for _ in range(2):
        with bar.step(10):
            spark.sparkContext.parallelize(range(8), 8).foreach(lambda _: time.sleep(0.4))
    assert shown == sorted(shown)
    assert shown[-1] == 20
    assert any(0 < done < 10 for done in shown)
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None


def test_without_somebody_to_look_nothing_is_drawn(spark, capsys):
    with progress_bar(spark, "test", 1, shown=False) as bar, bar.step(1):
        pass
    assert capsys.readouterr().err == ""
