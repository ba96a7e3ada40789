"""What an export needs of a table, whatever its format.

The table itself remembers, for every source (a bucket, or a part of one), up to which position it has the messages.
A commit moves that position together with the new files, in one step, and only from where the writer believes it to
be. So there is no checkpoint beside the table that could be lost or fall behind: a batch that was committed already,
by this export or by another one that runs beside it, is recognised by the position.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ....model.errors import MillstreamError
from .data_files import DataFile, Layout

FORMATS = ("parquet", "delta", "iceberg")


class TableError(MillstreamError):
    """A table cannot be used as it is. The message says what to do."""

    code = "table"


class Table(Protocol):
    @property
    def layout(self) -> Layout:
        """Where and how executors write."""

    def position(self, source: str) -> str | None:
        """Up to where the table has this source; None if it has nothing of it."""

    def commit(self, source: str, after: str | None, until: str, files: Sequence[DataFile]) -> bool:
        """Add the files and move the source from `after` to `until`, in one step. False, and nothing changed, if the
        source is somewhere else: somebody has committed this batch, or another one."""


def open_table(path: Path, format_name: str, table_name: str = "messages") -> Table:
    """The table in this folder, made if it is not there."""
    path = path.absolute()
    if format_name == "parquet":
        from .parquet import ParquetTable

        return ParquetTable.open(path)
    if format_name == "delta":
        try:
            from .delta import DeltaLakeTable
        except ImportError:
            raise _missing("delta") from None
        return DeltaLakeTable.open(path)
    if format_name == "iceberg":
        try:
            from .iceberg import IcebergTable
        except ImportError:
            raise _missing("iceberg") from None
        return IcebergTable.open(path, table_name)
    raise TableError(f"There is no table format {format_name!r}; choose one of {', '.join(FORMATS)}.")


def _missing(extra: str) -> TableError:
    return TableError(f"The format {extra} needs more packages: pip install 'millstream[{extra}]'.")
