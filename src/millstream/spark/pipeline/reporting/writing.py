"""`report`: a bucket in figures, as Parquet for further work and as one page of HTML for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from ...asking import Asker, Extent
from ..target import Target
from .figures import Figures
from .page import page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = "report.html"
SILENT_AFTER_S = 3600.0
ROWS = 15
TIME = pa.timestamp("ms", tz="UTC")
STREAMS = pa.schema(
    [
        ("stream", pa.string()),
        ("content_type", pa.string()),
        ("closed", pa.bool_()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("largest", pa.int64()),
        ("first_at", TIME),
        ("last_at", TIME),
        ("written_at", TIME),
    ]
)
INTERVALS = pa.schema([("start", TIME), ("messages", pa.int64()), ("bytes", pa.int64())])
SIZES = pa.schema([("low", pa.int64()), ("high", pa.int64()), ("messages", pa.int64()), ("bytes", pa.int64())])


@dataclass(frozen=True, slots=True)
class ReportResult:
    """Where the report is, and what it says. A dry run has only the sums of what would be read."""

    messages: int
    bytes: int
    page: Path | None = None
    figures: Figures | None = None
    dry_run: bool = False


def report(
    url: str,
    bucket: str,
    path: str | Path,
    *,
    prefix: str = "",
    silent_after_s: float = SILENT_AFTER_S,
    time_member: str | None = None,
    token: str | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    dry_run: bool = False,
    show_progress: bool = False,
) -> ReportResult:
    """Volumes, rates, sizes, the hottest and the silent streams of a bucket.

    Writes into `path`: `report.html`, a page that needs nothing else; `streams.parquet` with a row for each stream;
    `intervals.parquet` and `sizes.parquet`, what the plots show. A report that is there is replaced. A stream is silent
    when it is open and was not written for `silent_after_s` seconds. Times are those of the commits, or with
    `time_member` what that member of JSON messages says.

        report("http://127.0.0.1:4437", "agents", "report")
    """
    if time_member is not None and set("'\\") & set(time_member):
        raise ValueError(f"{time_member!r} cannot be the name of a member here: it has a quote or a backslash")
    target = Target(url, bucket, prefix, token)
    with Asker(target.server) as asker:
        plan = asker.plan(Extent("earliest", "now", prefix))
        asker.release(plan.lease.url)
    if dry_run:
        return ReportResult(plan.messages, plan.bytes, dry_run=True)
    from ..session import progress_bar, session  # here, so that a dry run does not wait for a JVM
    from .measure import Wishes, measure

    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    spark = spark or session(master, conf)
    with (
        progress_bar(spark, f"Reporting on {target.source}", 1, shown=show_progress) as bar,
        bar.step(1),
    ):
        measured = measure(spark, target, Wishes(silent_after_s, time_member, ROWS), datetime.now(UTC))
    figures = measured.figures
    _write(folder / "streams.parquet", [asdict(one) for one in measured.streams], STREAMS)
    _write(folder / "intervals.parquet", [asdict(one) for one in figures.intervals], INTERVALS)
    _write(folder / "sizes.parquet", [asdict(one) for one in figures.sizes], SIZES)
    written = folder / PAGE
    written.write_text(page(figures), encoding="utf-8")
    return ReportResult(figures.totals.messages, figures.totals.bytes, written, figures)


def _write(path: Path, rows: list[dict[str, object]], schema: pa.Schema) -> None:
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
