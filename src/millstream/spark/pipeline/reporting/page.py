"""The report as one page of HTML that needs nothing else: style and plots are inside, there is no script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape

from .charts import Mark, bars, columns, round_scale
from .figures import Figures, Interval, StreamFigures

STYLE = """
:root { color-scheme: light dark; --ground: #faf9f6; --card: #fff; --ink: #20262b; --soft: #67727c; --line: #e4e1da;
  --mill: #2c7a8c; --mill-2: #b3672b; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181b; --card: #1c2226; --ink: #e6e9eb; --soft: #93a0a9;
  --line: #2e363c; --mill: #56b3c7; --mill-2: #e0954f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 20px 64px; }
h1 { font-size: 28px; margin: 0; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 12px; }
p.about { color: var(--soft); margin: 4px 0 28px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin-bottom: 16px; }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.tile { padding: 14px 16px; }
.tile b { display: block; font-size: 22px; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
section { padding: 18px 20px; margin-top: 16px; overflow-x: auto; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 16px; }
svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--line); } .tick { fill: var(--soft); font-size: 11px; }
.name { fill: var(--ink); font-size: 12px; }
.column { fill: var(--mill); } .second .column { fill: var(--mill-2); } .reach { fill: transparent; }
.mark:hover .column { opacity: .7; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { color: var(--soft); font-weight: 500; text-align: left; }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
tr:last-child td { border-bottom: 0; }
.none { color: var(--soft); margin: 0; }
@media print { body { background: #fff; } section, .tile { break-inside: avoid; } }
"""


def page(figures: Figures) -> str:
    """The whole document."""
    body = (
        f"<h1>{escape(figures.bucket)}</h1>",
        f'<p class="about">Report on a Millstream bucket, made {time_text(figures.made_at)}. {_span(figures)}</p>',
        _tiles(figures),
        '<div class="pair">',
        _card("Messages over time", _over_time(figures, "messages", count_text, lambda one: one.messages)),
        _card("Bytes over time", _over_time(figures, "bytes", bytes_text, lambda one: one.bytes), second=True),
        _card("Sizes of messages", _sizes(figures)),
        _card("Hottest streams", _hottest(figures), second=True),
        "</div>",
        _card("Hottest streams, in figures", _stream_table(figures.hottest, "No messages yet.")),
        _card(_silent_title(figures), _stream_table(figures.silent, "None: every stream was written lately.")),
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(figures.bucket)} · Millstream report</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _span(figures: Figures) -> str:
    totals = figures.totals
    if totals.first_at is None or totals.last_at is None:
        return "The bucket holds no messages."
    return f"Messages from {time_text(totals.first_at)} to {time_text(totals.last_at)}."


def _tiles(figures: Figures) -> str:
    totals = figures.totals
    per_s = totals.messages / max(1.0, totals.seconds)
    bytes_per_s = totals.bytes / max(1.0, totals.seconds)
    tiles = [
        (count_text(totals.messages), "messages"),
        (bytes_text(totals.bytes), "of payload"),
        (count_text(totals.streams), f"streams, {count_text(totals.closed)} closed"),
        (f"{rate_text(per_s)}/s", f"on average, {bytes_text(bytes_per_s)}/s"),
        (bytes_text(totals.median_bytes), f"median message, p99 {bytes_text(totals.p99_bytes)}"),
        (bytes_text(totals.largest_bytes), "largest message"),
    ]
    if totals.snapshots:
        tiles.append((count_text(totals.snapshots), "streams with a snapshot"))
    if totals.gaps:
        tiles.append((count_text(totals.gaps), "trimmed ranges, not counted"))
    inside = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>' for value, what in tiles
    )
    return f'<div class="tiles">{inside}</div>'


def _over_time(figures: Figures, what: str, text: Callable[[float], str], value: Callable[[Interval], float]) -> str:
    if not figures.intervals:
        return _none("Nothing was written yet.")
    marks = [
        Mark(
            label=axis_time_text(one.start, figures.interval_s),
            value=value(one),
            hint=f"{time_text(one.start)}: {text(value(one))}{' messages' if what == 'messages' else ''}",
        )
        for one in figures.intervals
    ]
    scale = [(line, text(line)) for line in round_scale(max(mark.value for mark in marks))]
    return columns(f"{what} in each {duration_text(figures.interval_s)}", marks, scale) + (
        f'<p class="none">One column is {duration_text(figures.interval_s)}.</p>'
    )


def _sizes(figures: Figures) -> str:
    if not figures.sizes:
        return _none("No messages yet.")
    marks = [
        Mark(
            label=bytes_text(one.low),
            value=one.messages,
            hint=f"{bytes_text(one.low)} to {bytes_text(one.high)}: {count_text(one.messages)} messages, "
            f"{bytes_text(one.bytes)} together",
        )
        for one in figures.sizes
    ]
    scale = [(line, count_text(line)) for line in round_scale(max(mark.value for mark in marks))]
    return columns("messages by size", marks, scale) + '<p class="none">Each column is twice as large as the last.</p>'


def _hottest(figures: Figures) -> str:
    if not figures.hottest:
        return _none("No messages yet.")
    marks = [
        Mark(
            label=one.stream,
            value=one.messages,
            hint=f"{one.stream}: {count_text(one.messages)} messages, {bytes_text(one.bytes)}",
            value_text=count_text(one.messages),
        )
        for one in figures.hottest
    ]
    return bars("streams with the most messages", marks)


def _silent_title(figures: Figures) -> str:
    after = duration_text(figures.silent_after_s)
    return f"Silent streams: {count_text(figures.silent_count)} open ones without a write for {after}"


def _stream_table(streams: Sequence[StreamFigures], none: str) -> str:
    if not streams:
        return _none(none)
    head = "".join(
        f'<th class="number">{title}</th>' if number else f"<th>{title}</th>"
        for title, number in (
            ("stream", False),
            ("type", False),
            ("messages", True),
            ("bytes", True),
            ("largest", True),
            ("per second", True),
            ("last write", True),
        )
    )
    rows = "".join(_stream_row(stream) for stream in streams)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _stream_row(stream: StreamFigures) -> str:
    numbers = (
        count_text(stream.messages),
        bytes_text(stream.bytes),
        bytes_text(stream.largest),
        rate_text(stream.messages_per_s),
        time_text(stream.written_at),
    )
    cells = "".join(f'<td class="number">{number}</td>' for number in numbers)
    return f"<tr><td>{escape(stream.stream)}</td><td>{escape(stream.content_type)}</td>{cells}</tr>"


def _card(title: str, inside: str, *, second: bool = False) -> str:
    return f"<section{' class=second' if second else ''}><h2>{escape(title)}</h2>{inside}</section>"


def _none(sentence: str) -> str:
    return f'<p class="none">{escape(sentence)}</p>'


# --- how numbers are written


def count_text(value: float) -> str:
    """1,234 up to a hundred thousand, then 123k, 1.2M."""
    if value < 100_000:
        return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
    return _scaled(value / 1000, ("k", "M", "G", "T"), "")


def bytes_text(value: float) -> str:
    return f"{value:.0f} B" if value < 1000 else _scaled(value / 1000, ("KB", "MB", "GB", "TB"), " ")


def _scaled(value: float, units: Sequence[str], between: str) -> str:
    """Three digits or so, and the unit that they need."""
    power = 0
    while value >= 1000 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    digits = f"{value:.0f}" if value >= 100 else f"{value:.1f}"
    return f"{digits}{between}{units[power]}"


def rate_text(value: float) -> str:
    return count_text(round(value)) if value >= 100 else f"{value:.2g}"


def time_text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def axis_time_text(moment: datetime, interval_s: int) -> str:
    if interval_s >= 86400:
        return f"{moment:%d %b}"
    if interval_s >= 1800:  # the whole axis may be days long
        return f"{moment:%d %b %H:%M}"
    return f"{moment:%H:%M}" if interval_s >= 60 else f"{moment:%H:%M:%S}"


def duration_text(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length and seconds % length == 0:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{seconds:g} second{'s' if seconds != 1 else ''}"
