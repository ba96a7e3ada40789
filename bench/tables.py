"""Samples of many rounds, their medians, and tables that show them beside the bars."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Item = TypeVar("Item")

# A value of many samples: how much of the machine others used meanwhile.
OTHERS_SHARE = "others_share"


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often to measure."""

    rounds: int = 7
    seconds: float = 1.5
    quick: bool = False
    peers_only: bool = False

    @property
    def warmup_s(self) -> float:
        return 0.2 if self.quick else 0.4

    def scaled(self, full: int, quick: int) -> int:
        """A size of the full figure, or a small one when only a quick look is wanted."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: which round, which server, which cell of the table."""

    round: int
    server: str
    cell: str
    values: Mapping[str, float]


@dataclass(slots=True)
class Samples:
    rows: list[Sample] = field(default_factory=list)

    def add(self, round_: int, server: str, cell: str, values: Mapping[str, float]) -> None:
        self.rows.append(Sample(round_, server, cell, values))

    def all(self, server: str, cell: str, key: str) -> list[float]:
        return [row.values[key] for row in self.rows if row.server == server and row.cell == cell and key in row.values]

    def median(self, server: str, cell: str, key: str) -> float | None:
        found = self.all(server, cell, key)
        return statistics.median(found) if found else None

    def of_all(self, key: str) -> list[float]:
        return [row.values[key] for row in self.rows if key in row.values]

    def worst(self, server: str, cell: str, key: str) -> float | None:
        return max(self.all(server, cell, key), default=None)


def in_turn(round_: int, items: Sequence[Item]) -> Iterator[Item]:
    """Forwards in one round, backwards in the next, so that none is always first."""
    return iter(items) if round_ % 2 == 0 else reversed(items)


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


# --- bars ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise: a measured value and the limit it must keep."""

    name: str
    value: float | None
    limit: float
    at_least: bool
    unit: str = ""

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def limit_text(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}{self.unit}"

    def value_text(self) -> str:
        return "-" if self.value is None else f"{number(self.value)}{self.unit}"

    def met_text(self) -> str:
        return {True: "ok", False: "NO", None: "-"}[self.met]


# --- tables ------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Three digits that matter, thousands apart."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def times(value: float | None) -> str:
    return "-" if value is None else f"{number(value)}x"


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    text_columns: int = 1

    def text(self) -> str:
        widths = [max(len(row[index]) for row in (self.columns, *self.rows)) for index in range(len(self.columns))]
        rule = "  ".join("-" * width for width in widths)
        lines = [self.title, "", self._aligned(self.columns, widths), rule]
        lines += [self._aligned(row, widths) for row in self.rows]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    def _aligned(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        """Text to the left, numbers to the right."""
        padded = (
            cell.ljust(width) if index < self.text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()


def bar_table(bars: Sequence[Bar]) -> Table:
    rows = [(bar.name, bar.value_text(), bar.limit_text(), bar.met_text()) for bar in bars]
    return Table("Bars", ("what", "measured", "bar", "ok"), rows)


@dataclass(frozen=True, slots=True)
class Figure:
    """What one benchmark found."""

    name: str
    tables: Sequence[Table]
    bars: Sequence[Bar]
    samples: Samples
