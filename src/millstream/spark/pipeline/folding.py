"""`fold`: every stream's state from its last snapshot and what came since, published as the next snapshot."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .folds import Fold, find_fold
from .stream_folding import Failure, FoldOrder, StreamWithNews, Tally, fold_streams, shared_out
from .target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 64 << 20
TASKS_PER_CORE = 4


@dataclass(frozen=True, slots=True)
class FoldResult:
    """What a fold did. `superseded` streams had a newer snapshot by the time ours was ready, and keep it."""

    streams: int
    with_news: int
    folded: int
    superseded: int
    failed: int
    failures: tuple[Failure, ...]
    messages: int
    bytes: int
    dry_run: bool = False


def fold(
    url: str,
    bucket: str,
    function: str | Fold,
    *,
    arguments: Mapping[str, str] | None = None,
    prefix: str = "",
    keep_history: bool = False,
    token: str | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    dry_run: bool = False,
    show_progress: bool = False,
) -> FoldResult:
    """Fold every stream of a bucket that has news since its last snapshot, in parallel, and publish the new state.

    `function` is a built-in fold (`last-value`, `merge-patch`, `counters`, `concatenation`), `module:function`, or a
    `Fold`. Publishing trims each stream's history up to its snapshot, unless `keep_history`. It may be repeated at
    any time and run beside others: streams without news are skipped, and no snapshot is replaced by an older one. A
    stream whose fold raises is listed in `failures` and stays as it was; all others are done.

        fold("http://127.0.0.1:4437", "documents", "merge-patch")
    """
    chosen = function if isinstance(function, Fold) else find_fold(function, arguments)
    target = Target(url, bucket, prefix, token)
    total, news = streams_with_news(target)
    if dry_run or not news:
        size = sum(stream.news_bytes for stream in news)
        return FoldResult(total, len(news), 0, 0, 0, (), 0, size, dry_run)
    order = FoldOrder(target, chosen, trim=not keep_history)
    tally = _run(order, news, spark, master, conf, show_progress)
    return FoldResult(
        streams=total,
        with_news=len(news),
        folded=tally.streams.get("folded", 0),
        superseded=tally.streams.get("superseded", 0),
        failed=tally.streams.get("failed", 0),
        failures=tuple(tally.failures),
        messages=tally.messages,
        bytes=tally.bytes,
    )


def streams_with_news(target: Target) -> tuple[int, list[StreamWithNews]]:
    """How many streams there are, and those that were written since their snapshot: one pass over the listing."""
    total, news = 0, []
    with target.client() as client:
        for listed in client.bucket(target.bucket).streams(target.prefix):
            total += 1
            if listed.tail_offset > (listed.snapshot_offset or 0):
                stream = (listed.stream_id, listed.content_type, listed.tail_offset, listed.snapshot_offset)
                news.append(StreamWithNews(*stream))
    return total, news


def _run(
    order: FoldOrder,
    news: list[StreamWithNews],
    spark: SparkSession | None,
    master: str | None,
    conf: Mapping[str, str] | None,
    show_progress: bool,
) -> Tally:
    # Here and not above, so that a dry run, or one that finds nothing to do, does not wait for a JVM.
    from .session import progress_bar, session

    spark = spark or session(master, conf)
    carry_by_value(order.fold)
    context = spark.sparkContext
    size = sum(stream.news_bytes for stream in news)
    tasks = min(len(news), max(TASKS_PER_CORE * context.defaultParallelism, size // TASK_BYTES))
    groups = list(shared_out(news, tasks))
    tally = Tally()
    with progress_bar(spark, f"Folding {len(news):,} streams", 1, shown=show_progress) as bar, bar.step(1):
        shares = context.parallelize(groups, len(groups))
        for part in shares.mapPartitions(lambda share: _fold_share(share, order)).collect():
            tally.merge(part)
    return tally


def _fold_share(share: Iterable[list[StreamWithNews]], order: FoldOrder) -> Iterator[Tally]:
    for streams in share:
        yield fold_streams(streams, order)


def carry_by_value(fold: Fold) -> None:
    """A fold out of the user's own folder travels with the job: no worker could import it."""
    from pyspark import cloudpickle

    function = getattr(fold.function, "func", fold.function)
    module = sys.modules.get(function.__module__)
    path = getattr(module, "__file__", None)
    if module is None or path is None or module.__name__ == "__main__":
        return  # what is in __main__ travels by value anyway
    installed = any(Path(path).is_relative_to(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
    if not installed and module.__name__.partition(".")[0] != "millstream":
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
