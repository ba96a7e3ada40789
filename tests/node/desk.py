"""Short ways to say what an application that writes transactions does."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from itertools import count
from pathlib import Path

import pytest
from tests.node.rig import JSON, TINY, Rig

from millstream.model.commands import CreateBucket
from millstream.model.errors import (
    TransactionRefused,
)
from millstream.node.node import NodeLimits
from millstream.node.staged_parts import StagedPart, body_name
from millstream.node.transactions import Committed, PartName

bodies = count()


class Desk:
    """Short ways to say what an application does; `rows` are (stream, message)."""

    def __init__(self, rig: Rig, app: str = "etl", bucket: str = "shop") -> None:
        self.rig = rig
        self.app = app
        self.bucket = bucket

    async def stage(
        self, version: int, part: str, *rows: tuple[str, object], order: Iterable = ()
    ) -> StagedPart | None:
        lines = [{"stream": stream, "json": value} for stream, value in rows]
        for line, key in zip(lines, order, strict=False):
            line["order"] = key
        return await self.stage_bytes(version, part, "\n".join(map(json.dumps, lines)).encode())

    async def stage_bytes(self, version: int, part: str, body: bytes, is_arrow: bool = False) -> StagedPart | None:
        name = body_name(next(bodies))
        self.rig.node.objects.put(name, [body])
        return await self.rig.node.transactions.stage(self.bucket, self.app, version, part, name, is_arrow)

    async def commit(self, version: int, *parts: str | PartName, create: bool = True, **more: object) -> Committed:
        listed = [PartName(part) if isinstance(part, str) else part for part in parts]
        return await self.rig.node.transactions.commit(
            self.bucket, self.app, version, listed, create=create, content_type=JSON, **more
        )

    async def reasons(self, version: int, *parts: str | PartName, **more: object) -> list[tuple[str, str | None]]:
        with pytest.raises(TransactionRefused) as caught:
            await self.commit(version, *parts, **more)
        return [(reason.code, reason.part or reason.stream) for reason in caught.value.reasons]

    async def read(self, stream: str) -> list[object]:
        return [json.loads(message) for message in await self.rig.messages(f"{self.bucket}/{stream}")]


def objects_in(rig: Rig, folder: str) -> list[str]:
    return sorted(path.name for path in (rig.root / "objects" / folder).iterdir())


@contextlib.asynccontextmanager
async def a_desk(root: Path, limits: NodeLimits = TINY, kind: type[Rig] = Rig):
    async with kind(root, limits) as rig:
        await rig.submit(CreateBucket("shop"))
        yield Desk(rig)
