"""The bucket that a command works on, and how Spark is told about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...client import Client
from ..options import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "millstream"


@dataclass(frozen=True, slots=True)
class Target:
    """A bucket, or the streams of it whose names start with `prefix`."""

    url: str
    bucket: str
    prefix: str = ""
    token: str | None = field(default=None, repr=False)

    @property
    def source(self) -> str:
        """How tables name it."""
        return f"{self.bucket}/{self.prefix}*" if self.prefix else self.bucket

    @property
    def server(self) -> Server:
        return Server(self.url, self.bucket, self.token)

    def client(self) -> Client:
        return Client(self.url, headers={"authorization": f"Bearer {self.token}"} if self.token else None)

    def options(self) -> dict[str, str]:
        """What the data source needs to find the bucket, for reading and for writing."""
        found = {"url": self.url, "bucket": self.bucket}
        return found | {"token": self.token} if self.token else found

    def read(self, spark: SparkSession, more: Mapping[str, str]) -> DataFrame:
        """The bucket's messages as a table. What was trimmed is there as rows of kind `gap`; nothing fails for it."""
        chosen = {"failOnDataLoss": "false", **self.options(), **more}
        if self.prefix:
            chosen["prefix"] = self.prefix
        return spark.read.format(FORMAT).options(**chosen).load()
