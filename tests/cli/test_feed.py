"""`millstream feed` against a real server."""

from __future__ import annotations

import json
import signal
import time
from datetime import UTC, datetime, timedelta

import pytest

from millstream.cli.feed import position_of
from millstream.cli.output import CommandError

ENOUGH_S = 20.0
A_MOMENT_S = 0.3  # what is printed when the signal comes would be printed again


@pytest.fixture
def busy(cli, request) -> str:
    """A bucket in which something happened."""
    bucket = request.node.name.replace("_", "-")[:60]
    cli("bucket", "create", bucket).ok()
    cli("stream", "create", f"{bucket}/a-json", "--type", "application/json").ok()
    cli("stream", "create", f"{bucket}/b-text", "--type", "text/plain", "-m", "words").ok()
    cli("stream", "append", f"{bucket}/a-json", "--json-lines", stdin=b"1\n[2]\n").ok()
    cli("stream", "close", f"{bucket}/b-text").ok()
    return bucket


def changes(outcome) -> list[tuple[str, str]]:
    return [(entry["stream"], entry["kind"]) for entry in outcome.ok().lines]


ALL = [
    ("a-json", "created"),
    ("b-text", "created"),
    ("b-text", "appended"),
    ("a-json", "appended"),
    ("b-text", "closed"),
]


def test_everything_in_the_order_it_happened(cli, busy):
    assert changes(cli("feed", busy, "--json")) == ALL
    plain = [line.split("\t") for line in cli("feed", busy).ok().text.splitlines()]
    assert [(columns[3], columns[2]) for columns in plain] == ALL
    assert [columns[4:] for columns in plain] == [["0", "0"], ["0", "0"], ["0", "5"], ["0", "4"], ["5", "5"]]


def test_only_some_streams_and_with_their_messages(cli, busy):
    entries = cli("feed", f"{busy}/a", "--data", "--json").ok().lines
    assert [entry.get("messages") for entry in entries] == [None, [1, [2]]]
    plain = cli("feed", f"{busy}/b", "--data").ok().text.splitlines()
    assert plain[1].split("\t")[-1] == '["d29yZHM="]'


def test_going_on_from_a_position_or_a_time(cli, busy):
    entries = cli("feed", busy, "--json").ok().lines
    assert changes(cli("feed", busy, "--from", entries[2]["position"], "--json")) == ALL[3:]
    assert cli("feed", busy, "--from", "now").ok().out == b""
    assert changes(cli("feed", busy, "--from", "1h", "--json")) == ALL
    ahead = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert cli("feed", busy, "--from", ahead).ok().out == b""
    assert cli("feed", busy, "--follow", "--idle", "0.2").ok().text.count("\n") == 5


def test_following_until_ctrl_c(cli, busy, started):
    before = cli("feed", busy, "--json").ok().lines[-1]["position"]
    process = started("feed", busy, "--from", before, "--follow", "--json", "--data")
    cli("stream", "append", f"{busy}/a-json", "-m", '"news"').ok()
    line = process.stdout.readline()
    assert json.loads(line)["messages"] == ["news"]
    time.sleep(A_MOMENT_S)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=ENOUGH_S)
    assert process.returncode == 130
    place = err.decode().split("--from ")[1].strip()
    cli("stream", "append", f"{busy}/a-json", "-m", '"more"').ok()
    (entry,) = cli("feed", busy, "--from", place, "--data", "--json").ok().lines
    assert entry["messages"] == ["more"]


def test_what_a_feed_does_not_take(cli, busy):
    assert cli("feed", "no-such-bucket").code == 4
    assert cli("feed", busy, "--from", "someday").code == 2
    assert cli("feed", busy, "--from", f"{'0' * 16}.1").code in (2, 6)


def test_places_in_a_feed():
    assert position_of("beginning") == position_of("earliest") == "earliest"
    assert position_of("now") == "now"
    assert position_of("1b2c3d4e5f607182.42") == "1b2c3d4e5f607182.42"
    assert position_of("2026-11-15T08:00:00+02:00") == "2026-11-15T06:00:00.000Z"
    with pytest.raises(CommandError, match="10m"):
        position_of("42")
