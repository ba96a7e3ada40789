"""Retention over damage: one stream that cannot be read keeps what it has, and all others are trimmed."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest
from msgspec.structs import replace

from millstream.model.commands import CreateBucket
from millstream.model.facts import BucketSettings
from millstream.node.retention import Retention

from .rig import BYTES, TINY, Rig, until

KEYS = [f"box/{name}" for name in "abc"]


async def three_old_streams(rig: Rig) -> None:
    """Each with an old block that is due and a young one that is not; between the ages of both lies what is kept."""
    await rig.submit(CreateBucket("box", BucketSettings(retention_s=1)))
    for key in KEYS:
        await rig.create(key, BYTES, key.encode() * 50)
    rig.checkpoint()
    await asyncio.sleep(1.1)
    for key in KEYS:
        await rig.append(key, b"young" * 50)
        await rig.append(key, b"younger" * 50)
    rig.checkpoint()


def earliest(rig: Rig) -> list[int]:
    return [rig.stream(key).earliest for key in KEYS]


@pytest.mark.parametrize("fault", ["damaged", "unreadable", "missing"])
async def test_a_block_that_cannot_be_read_holds_up_no_other_stream(tmp_path, monkeypatch, caplog, fault):
    async with Rig(tmp_path, replace(TINY, block_bytes=4096)) as rig:
        await three_old_streams(rig)
        young = tmp_path / "objects" / "segments" / rig.segments()[1]
        if fault == "damaged":
            young.write_bytes(young.read_bytes().replace(b"young", b"yound", 1))
        elif fault == "missing":
            young.unlink()
        else:
            get_range = rig.node.objects.get_range

            def failing(name, at, size):
                if name.endswith(young.name):
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return get_range(name, at, size)

            monkeypatch.setattr(rig.node.objects, "get_range", failing)
        for _ in range(2):
            await rig.node.retention.sweep()
        await rig.node.writer.drain()
        assert earliest(rig) == [250, 250, 250], "blocks that cannot be read are kept whole"
        assert rig.node.damage.count == {"damaged": 1, "unreadable": 3, "missing": 0}[fault]
        assert len(caplog.records) == rig.node.damage.count


async def test_work_that_has_failed_shows(tmp_path, monkeypatch):
    async def failing(_: Retention) -> None:
        raise LookupError("of all things")

    monkeypatch.setattr(Retention, "sweep", failing)
    async with Rig(tmp_path, replace(TINY, retention_every_s=0.01)) as rig:
        rig.node.start()
        assert rig.node.failed_work() is None
        await until(rig.node.failed_work)
        assert "'retention'" in rig.node.failed_work()
