"""The data pipeline on Spark: load files into streams, export streams to tables, fold them into snapshots, report.

Every step is a function here and a command of `millstream pipeline`. See docs/pipelines.md.
"""

from __future__ import annotations

from .exporting import ExportResult, export
from .folding import FoldResult, fold
from .folds import Fold, FoldError, find_fold
from .loading import LoadResult, load
from .reporting.writing import ReportResult, report
from .source_files import LoadError
from .stream_folding import Failure
from .tables.table import TableError

__all__ = [
    "ExportResult",
    "Failure",
    "Fold",
    "FoldError",
    "FoldResult",
    "LoadError",
    "LoadResult",
    "ReportResult",
    "TableError",
    "export",
    "find_fold",
    "fold",
    "load",
    "report",
]
