"""Bulk reads as an Arrow stream. Needs pyarrow."""

from __future__ import annotations

from ..storage.archive.arrow import END, batch_of_rows, record_batch, serialized, stream_start
from ..storage.archive.rows import Row, Rows, Selection


class ArrowRows:
    end = END

    def __init__(self, bucket: str, incarnation: int) -> None:
        self.start = stream_start()
        self._bucket = bucket
        self._incarnation = incarnation

    def batch(self, rows: Rows, selection: Selection) -> bytes:
        return serialized(record_batch(rows, selection, self._incarnation))

    def single(self, rows: list[Row]) -> bytes:
        return serialized(batch_of_rows(self._bucket, rows, self._incarnation))
