"""A Delta Lake table, through `deltalake`. The position lives in the log as application transactions."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from .data_files import PARTITION_COLUMNS, TABLE_SCHEMA, DataFile, Layout
from .table import TableError

ATTEMPTS_MAX = 20


class DeltaLakeTable:
    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    def open(cls, root: Path) -> DeltaLakeTable:
        table = cls(root)
        try:
            found = table._load()
        except TableNotFoundError:
            if root.exists() and any(root.iterdir()):
                raise TableError(
                    f"{root} holds other files and is no Delta table; name an empty or a new folder."
                ) from None
            root.mkdir(parents=True, exist_ok=True)
            # `ignore`: two exports that start together make one table.
            deltalake.DeltaTable.create(
                str(root), deltalake.Schema.from_arrow(TABLE_SCHEMA), "ignore", list(PARTITION_COLUMNS)
            )
            return table
        if {field.name for field in found.schema().fields} < set(TABLE_SCHEMA.names):
            raise TableError(f"{root} is a Delta table with other columns; name another folder.")
        return table

    @property
    def layout(self) -> Layout:
        return Layout(str(self._root), "", partition_columns_in_files=False)

    def position(self, source: str) -> str | None:
        return _position(self._load(), source)

    def commit(self, source: str, after: str | None, until: str, files: Sequence[DataFile]) -> bool:
        for _ in range(ATTEMPTS_MAX):
            table = self._load()
            if _position(table, source) != after:
                return False
            try:
                table.create_write_transaction(
                    [_action(file) for file in files],
                    mode="append",
                    schema=table.schema(),
                    partition_by=list(PARTITION_COLUMNS),
                    commit_properties=deltalake.CommitProperties(
                        custom_metadata={"millstream.source": source, "millstream.position": until},
                        # deltalake refuses a commit when another one with the same application came in between.
                        app_transactions=_transactions(source, until),
                    ),
                )
            except CommitFailedError:
                continue  # somebody else has committed: look again
            return True
        raise TableError(f"{self._root} is written by so many others that no commit got through; try again later.")

    def _load(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(str(self._root))


# --- a position as application transactions: each of its numbers is the version of one application


def _numbers(token: str) -> list[int]:
    """The incarnation in two halves, as versions have 63 bits only; then the sequence of each shard."""
    incarnation, *sequences = token.split(".")
    return [int(incarnation[:8], 16), int(incarnation[8:], 16), *map(int, sequences)]


def _transactions(source: str, token: str) -> list[deltalake.Transaction]:
    return [deltalake.Transaction(_app_id(source, n), number) for n, number in enumerate(_numbers(token))]


def _position(table: deltalake.DeltaTable, source: str) -> str | None:
    numbers: list[int] = []
    while (number := table.transaction_version(_app_id(source, len(numbers)))) is not None:
        numbers.append(number)
    if not numbers:
        return None
    high, low, *sequences = numbers
    return ".".join((f"{high:08x}{low:08x}", *map(str, sequences)))


def _app_id(source: str, number: int) -> str:
    return f"millstream:{source}:{number}"


def _action(file: DataFile) -> AddAction:
    least, most = {"stream": file.first_stream}, {"stream": file.last_stream}
    if file.untimed < file.rows:
        least["timestamp"], most["timestamp"] = _moment(file.first_ms), _moment(file.last_ms)
    statistics = {
        "numRecords": file.rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": {"stream": 0, "timestamp": file.untimed},
    }
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values={"bucket": file.bucket, "date": file.date},
        modification_time=time.time_ns() // 1_000_000,
        data_change=True,
        stats=json.dumps(statistics),
    )


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
