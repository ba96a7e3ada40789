"""Plots as inline SVG: columns and bars, without script. Colours come from the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 14, 30
AXIS_LABELS_MAX = 7
BAR_HEIGHT, BAR_NAME_WIDTH, BAR_VALUE_WIDTH = 24, 220, 96
NAME_CHARS_MAX = 32


@dataclass(frozen=True, slots=True)
class Mark:
    """One column or bar: its label on the axis, its height, and what a pointer over it reads."""

    label: str
    value: float
    hint: str
    value_text: str = ""


def columns(title: str, marks: Sequence[Mark], scale: Sequence[tuple[float, str]]) -> str:
    """A column chart. `scale` has the lines across it, with their texts; the last one is the top."""
    top = scale[-1][0] or 1.0
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    step = inner_width / max(1, len(marks))
    parts = [_opening(title, WIDTH, HEIGHT)]
    for value, text in scale:
        y = TOP + inner_height * (1 - value / top)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for index, mark in enumerate(marks):
        height = inner_height * min(1.0, mark.value / top)
        if mark.value > 0:
            height = max(height, 1.5)  # what is there can be seen
        x, y = LEFT + index * step, TOP + inner_height - height
        width = max(1.0, step - min(2.0, step / 4))
        parts.append(
            f'<g class="mark"><title>{escape(mark.hint)}</title>'
            f'<rect class="reach" x="{x:.1f}" y="{TOP}" width="{step:.1f}" height="{inner_height}"/>'
            f'<rect class="column" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5"/></g>'
        )
    parts += [
        f'<text class="tick" x="{LEFT + (index + 0.5) * step:.1f}" y="{HEIGHT - 10}" text-anchor="middle">'
        f"{escape(marks[index].label)}</text>"
        for index in labelled(len(marks))
    ]
    return "".join((*parts, "</svg>"))


def bars(title: str, marks: Sequence[Mark]) -> str:
    """A chart of horizontal bars with names to the left and values to the right."""
    top = max((mark.value for mark in marks), default=0.0) or 1.0
    inner_width = WIDTH - BAR_NAME_WIDTH - BAR_VALUE_WIDTH
    height = BAR_HEIGHT * len(marks) + 4
    parts = [_opening(title, WIDTH, height)]
    for index, mark in enumerate(marks):
        y = index * BAR_HEIGHT + 4
        width = max(1.5, inner_width * mark.value / top)
        middle = y + BAR_HEIGHT / 2 + 2
        parts.append(
            f'<g class="mark"><title>{escape(mark.hint)}</title>'
            f'<text class="name" x="{BAR_NAME_WIDTH - 10}" y="{middle:.1f}" text-anchor="end">'
            f"{escape(shortened(mark.label))}</text>"
            f'<rect class="column" x="{BAR_NAME_WIDTH}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{BAR_HEIGHT - 6}" rx="3"/>'
            f'<text class="tick" x="{BAR_NAME_WIDTH + width + 8:.1f}" y="{middle:.1f}">'
            f"{escape(mark.value_text)}</text></g>"
        )
    return "".join((*parts, "</svg>"))


def round_scale(top: float) -> list[float]:
    """Three to six values from 0 to at least `top` that read well: 0, 20, 40, 60."""
    if top <= 0:
        return [0.0, 1.0]
    power = 1.0
    while power * 10 <= top:
        power *= 10
    while power > top:
        power /= 10
    step = next(power * factor for factor in (0.2, 0.5, 1, 2, 5) if top / (power * factor) <= 5)
    values, value = [0.0], 0.0
    while value < top:
        value = round(value + step, 12)
        values.append(value)
    return values


def labelled(count: int) -> list[int]:
    """Which of so many columns get a label: evenly spread, never more than fit."""
    every = max(1, -(-count // AXIS_LABELS_MAX))
    return list(range(0, count, every))


def shortened(name: str) -> str:
    return name if len(name) <= NAME_CHARS_MAX else f"{name[: NAME_CHARS_MAX - 1]}…"


def _opening(title: str, width: int, height: float) -> str:
    return f'<svg viewBox="0 0 {width} {height:g}" role="img" aria-label="{escape(title, quote=True)}">'
