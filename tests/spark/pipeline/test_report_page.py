"""The page of a report: whole, safe with any name, self-contained; and how its numbers and axes are made."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from millstream.spark.pipeline.reporting.charts import labelled, round_scale
from millstream.spark.pipeline.reporting.figures import (
    Figures,
    Interval,
    StreamFigures,
    Totals,
    interval_for,
    size_class,
    without_gaps,
)
from millstream.spark.pipeline.reporting.page import axis_time_text, bytes_text, count_text, duration_text, page

NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
HOSTILE = 'a"><script>alert(1)</script>&'
VOID = {"meta", "rect", "line", "path"}


def stream(name: str, messages: int = 10) -> StreamFigures:
    return StreamFigures(
        name, "text/plain", False, messages, messages * 100, 400, NOON, NOON + timedelta(seconds=5), NOON
    )


def figures(**changes) -> Figures:
    values = {
        "bucket": "agents",
        "made_at": NOON,
        "totals": Totals(3, 1, 12_345, 6_000_000, 2, 1, 480, 9_000, 120_000, NOON, NOON + timedelta(hours=2)),
        "interval_s": 300,
        "intervals": [Interval(NOON + timedelta(minutes=5 * n), n * 7, n * 7000) for n in range(24)],
        "sizes": [size_class(power, power * 3, power * 999) for power in range(6, 14)],
        "hottest": [stream(f"run-{n}", 100 - n) for n in range(10)],
        "silent": [stream("quiet", 0)],
        "silent_after_s": 3600.0,
        "silent_count": 1,
    }
    return Figures(**(values | changes))


class Structure(HTMLParser):
    """Opens and closes every element, and collects what a browser would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("script", "link", "img", "iframe", "object"):
            self.outside.append(tag)
        self.outside += [f"{name}={value}" for name, value in attrs if name in ("src", "href") or name.startswith("on")]

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def checked(text: str) -> Structure:
    structure = Structure()
    structure.feed(text)
    structure.close()
    assert structure.open == []
    return structure


def test_the_page_is_whole_and_needs_nothing_else():
    text = page(figures())
    assert checked(text).outside == []
    assert "url(" not in text
    assert "http" not in text
    assert "prefers-color-scheme: dark" in text
    for said in ("12,345", "6.0 MB", "run-9", "quiet", "Silent streams: 1 open ones without a write for 1 hour"):
        assert said in text


def test_every_plot_is_well_formed_and_says_what_it_is():
    plots = re.findall(r"<svg.*?</svg>", page(figures()), re.S)
    assert len(plots) == 4
    for plot in plots:
        assert ElementTree.fromstring(plot).attrib["aria-label"]


def test_names_cannot_break_the_page():
    text = page(figures(bucket=HOSTILE, hottest=[stream(HOSTILE)], silent=[stream(HOSTILE)]))
    assert checked(text).outside == []
    assert "<script" not in text


def test_an_empty_bucket_has_a_page_too():
    nothing = Totals(0, 0, 0, 0, 0, 0, 0, 0, 0, None, None)
    text = page(figures(totals=nothing, intervals=[], sizes=[], hottest=[], silent=[], silent_count=0))
    checked(text)
    assert "holds no messages" in text
    assert "<svg" not in text


@pytest.mark.parametrize("top", [0, 0.3, 1, 2, 7, 10, 99, 100, 101, 12_345, 1e9])
def test_a_scale_covers_its_values_with_few_lines(top):
    scale = round_scale(top)
    assert scale[0] == 0
    assert scale[-1] >= top
    assert 2 <= len(scale) <= 7
    assert scale == sorted(set(scale))


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 96])
def test_an_axis_has_few_labels_and_starts_with_one(count):
    chosen = labelled(count)
    assert len(chosen) <= 7
    assert chosen[:1] == ([0] if count else [])


def test_intervals_without_messages_are_shown_as_such():
    found = without_gaps([Interval(NOON, 1, 1), Interval(NOON + timedelta(seconds=180), 2, 2)], 60)
    assert [interval.messages for interval in found] == [1, 0, 0, 2]


@pytest.mark.parametrize(
    ("seconds", "length"), [(0, 1), (96, 1), (97, 5), (86400, 900), (10 * 365 * 86400, 365 * 86400)]
)
def test_an_interval_is_chosen_so_that_few_columns_are_enough(seconds, length):
    assert interval_for(seconds) == length


def test_numbers_read_well():
    assert [count_text(n) for n in (0, 999, 99_999, 100_000, 1_250_000, 3e15)] == [
        "0",
        "999",
        "99,999",
        "100k",
        "1.2M",
        "3000T",
    ]
    assert [bytes_text(n) for n in (0, 999, 1000, 123_456, 5e9)] == ["0 B", "999 B", "1.0 KB", "123 KB", "5.0 GB"]
    assert [duration_text(n) for n in (1, 5, 60, 90, 7200, 86400)] == [
        "1 second",
        "5 seconds",
        "1 minute",
        "90 seconds",
        "2 hours",
        "1 day",
    ]


def test_an_axis_that_may_be_days_long_has_dates():
    moment = datetime(2030, 1, 31, 9, 30, tzinfo=UTC)
    assert axis_time_text(moment, 86400) == "31 Jan"
    assert axis_time_text(moment, 3600) == "31 Jan 09:30"
    assert axis_time_text(moment, 60) == "09:30"
    assert axis_time_text(moment, 5) == "09:30:00"
