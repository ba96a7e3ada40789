"""Names that only the server may use, in a data directory of a version that gave them away, and over S3P."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from tests.conftest import ServerProcess
from tests.node.rig import RealRig
from tests.server.s3p.wire import Wire

from millstream.protocol.s3p.encoder import encode_append, encode_create, encode_delete, encode_read
from millstream.protocol.s3p.reply_decoder import ErrorReply

OLD = ("readyz/cluster", "ui/x", "__ds/x", "_default/metrics", "_default/__x", "shop/orders")


async def make_old_streams(folder: Path) -> None:
    async with RealRig(folder) as rig:
        for key in OLD:
            await rig.create(key, "text/plain", b"old")


@pytest.fixture
def running(tmp_path: Path):
    server = ServerProcess(tmp_path, {"s3p.buckets": True})
    server.data_dir.mkdir()
    asyncio.run(make_old_streams(server.data_dir))
    server.start()
    yield server
    server.stop()


def test_a_server_starts_with_them_and_shows_none_of_them_at_its_own_routes(running):
    with httpx.Client(base_url=running.url, timeout=10) as client:
        assert client.get("/readyz/cluster").status_code == 404
        assert client.get("/readyz/local").text == "ready\n"
        for key in ("readyz/cluster", "ui/x", "__ds/x", "metrics", "__x"):
            assert client.get(f"/v1/stream/{key}").status_code == 400
        for bucket in ("readyz", "ui", "__ds"):
            assert client.get(f"/ds/{bucket}/streams").status_code == 400
        for key in ("_default/metrics", "_default/__x", "shop/orders"):
            assert client.get(f"/v1/stream/{key}").text == "old"
            assert client.get(f"/{key}").text == "old"


def test_over_s3p_they_are_refused_as_buckets_and_free_as_names(running):
    for name in (b"readyz/cluster", b"ui/new", b"__x/y"):
        commands = encode_create(name), encode_append(name, [b"x"]), encode_read(name), encode_delete(name)
        for command in commands:
            with Wire(running.s3p_port) as wire:
                wire.send(command)
                error = wire.reply()
                assert isinstance(error, ErrorReply)
                assert error.code == "ERR_BAD_FORMAT"
                assert "reserved" in error.message
    with Wire(running.s3p_port) as wire:
        for name in (b"readyz", b"__x", b"ds"):
            wire.create(name)
            wire.append(name, b"x")
            assert len(wire.read(name)) == 1
