"""An Iceberg table, through `pyiceberg`, in a catalog of its own: an SQLite file beside the data.

The position is a property of the table, and stands in the summary of each snapshot that moved it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as Iceberg
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import BinaryType, DateType, IcebergType, LongType, NestedField, StringType, TimestamptzType

from .data_files import PARTITION_COLUMNS, TABLE_SCHEMA, DataFile, Layout
from .table import TableError

NAMESPACE = "millstream"
CATALOG_FILE = "catalog.db"
ATTEMPTS_MAX = 20
_TYPES: dict[str, IcebergType] = {
    "string": StringType(),
    "date32[day]": DateType(),
    "int64": LongType(),
    "timestamp[us, tz=UTC]": TimestamptzType(),
    "binary": BinaryType(),
}


class IcebergTable:
    def __init__(self, root: Path, catalog: SqlCatalog, name: str) -> None:
        self._root = root
        self._catalog = catalog
        self._identifier = (NAMESPACE, name)

    @classmethod
    def open(cls, root: Path, name: str) -> IcebergTable:
        if root.exists() and any(root.iterdir()) and not (root / CATALOG_FILE).exists():
            raise TableError(f"{root} holds other files and no catalog of ours; name an empty or a new folder.")
        root.mkdir(parents=True, exist_ok=True)
        catalog = SqlCatalog("millstream", uri=f"sqlite:///{root / CATALOG_FILE}", warehouse=_location(root))
        catalog.create_namespace_if_not_exists(NAMESPACE)
        table = cls(root, catalog, name)
        table._create_if_missing()
        return table

    @property
    def layout(self) -> Layout:
        return Layout(str(self._root), "/".join((*self._identifier, "data")), partition_columns_in_files=True)

    def position(self, source: str) -> str | None:
        return self._load().properties.get(_property(source))

    def commit(self, source: str, after: str | None, until: str, files: Sequence[DataFile]) -> bool:
        for _ in range(ATTEMPTS_MAX):
            table = self._load()
            if table.properties.get(_property(source)) != after:
                return False
            try:
                self._append(table, source, until, files)
            except CommitFailedException:
                continue  # somebody else has committed: look again
            return True
        raise TableError(f"{self._root} is written by so many others that no commit got through; try again later.")

    def _append(self, table: Iceberg, source: str, until: str, files: Sequence[DataFile]) -> None:
        with table.transaction() as transaction:
            if files:
                transaction.add_files(
                    [_location(self._root / file.path) for file in files],
                    snapshot_properties={"millstream.source": source, "millstream.position": until},
                    check_duplicate_files=False,  # names are unique, and the search would read every manifest
                )
            transaction.set_properties({_property(source): until})

    def _load(self) -> Iceberg:
        return self._catalog.load_table(self._identifier)

    def _create_if_missing(self) -> None:
        try:
            self._load()
        except NoSuchTableError:
            schema, partitioning = _schema_and_partitioning()
            properties = {
                # pyiceberg would repeat a commit on top of another one, past our look at the position.
                "commit.retry.num-retries": "0",
                "write.parquet.compression-codec": "zstd",
            }
            try:
                self._catalog.create_table(
                    self._identifier,
                    schema,
                    location=_location(self._root / Path(*self._identifier)),
                    partition_spec=partitioning,
                    properties=properties,
                )
            except TableAlreadyExistsError:
                return  # by another export, at the same time


def _schema_and_partitioning() -> tuple[Schema, PartitionSpec]:
    ids = {field.name: number for number, field in enumerate(TABLE_SCHEMA, 1)}
    schema = Schema(*(NestedField(ids[field.name], field.name, _TYPES[str(field.type)]) for field in TABLE_SCHEMA))
    partitions = (
        PartitionField(ids[name], 1000 + number, IdentityTransform(), name)
        for number, name in enumerate(PARTITION_COLUMNS)
    )
    return schema, PartitionSpec(*partitions)


def _property(source: str) -> str:
    return f"millstream.position.{source}"


def _location(path: Path) -> str:
    """Not `as_uri`: pyiceberg decodes nothing."""
    return f"file://{path}"
