"""`millstream pipeline`: what the commands print, how they fail, what they hand over."""

from __future__ import annotations

import json

import pytest

from millstream.cli.main import run
from millstream.cli.pipeline import spark_reason


@pytest.fixture
def source(bucket):
    made = bucket()
    made.create("a", b"one", b"two")
    return made


def arguments(command: str, source, *more: str) -> list[str]:
    return ["pipeline", command, "--url", source.server.url, "--bucket", source.name, *more]


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("export", ["--to", "{folder}/table"], "Would export 2 messages (6 B)"),
        ("fold", ["--with", "concatenation"], "Would fold 1 of 1 streams, 6 B of news."),
        ("report", ["--to", "{folder}/report"], "Would read 2 messages (6 B)"),
        ("load", ["{folder}/a.jsonl", "--stream-column", "run"], "Would load 1 files"),
    ],
)
def test_a_dry_run_says_what_would_be_done(source, tmp_path, capsys, command, options, said):
    (tmp_path / "a.jsonl").write_text('{"run":"a"}\n')
    options = [option.format(folder=tmp_path) for option in options]
    assert run(arguments(command, source, *options, "--dry-run")) == 0
    assert said in capsys.readouterr().out
    assert run(arguments(command, source, *options, "--dry-run", "--json")) == 0
    assert isinstance(json.loads(capsys.readouterr().out), dict)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        ("fold", ["--with", "sums"], "built in are last-value"),
        ("fold", ["--with", "counters", "--arg", "key"], "--arg name=value"),
        ("fold", ["--with", "counters", "--arg", "colour=red"], "colour"),
        ("export", ["--to", "{folder}/table", "--format", "orc"], "parquet, delta, iceberg"),
        ("load", ["{folder}/none.jsonl", "--stream-column", "run"], "there is no file"),
        ("report", ["--conf", "spark.ui.enabled"], "--conf name=value"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(source, tmp_path, capsys, command, options, said):
    options = [option.format(folder=tmp_path) for option in options]
    assert run(arguments(command, source, *options)) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_bucket_that_is_not_there_is_named(source, capsys):
    options = ["--url", source.server.url, "--bucket", "not-there", "--with", "counters"]
    assert run(["pipeline", "fold", *options]) == 4
    assert "not-there" in capsys.readouterr().err


def test_a_fold_with_failures_names_them_and_exits_with_1(spark, source, capsys):
    assert run(arguments("fold", source, "--with", "counters")) == 1
    printed = capsys.readouterr()
    assert "Folded 0 of 1 streams" in printed.out
    assert "stream a was not folded: a message has no member 'type'" in printed.err


def test_commands_do_their_work(spark, source, tmp_path, capsys):
    """In the session that is active: with a --master of its own a command would start another JVM."""
    (tmp_path / "a.csv").write_text("run,n\nb,1\n")
    load = arguments("load", source, str(tmp_path / "a.csv"), "--stream-column", "run", "--json")
    assert run(load) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 1
    assert run(load) == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == 1
    assert run(arguments("export", source, "--to", str(tmp_path / "table"))) == 0
    assert "Exported 3 rows" in capsys.readouterr().out
    assert run(arguments("fold", source, "--with", "concatenation")) == 0
    assert "Folded 2 of 2 streams, 3 messages" in capsys.readouterr().out
    assert run(arguments("report", source, "--to", str(tmp_path / "report"))) == 0
    assert "report.html" in capsys.readouterr().out


def test_of_a_failure_in_an_executor_our_own_words_are_shown():
    trace = (
        "An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "millstream.spark.pipeline.source_files.LoadError: /data/a.jsonl, at byte 12: bad\n\tat org.apache.spark.X"
    )
    assert spark_reason(RuntimeError(trace)) == "/data/a.jsonl, at byte 12: bad"
    assert spark_reason(RuntimeError("[NO] such thing\nat org...")) == "Spark: [NO] such thing"
