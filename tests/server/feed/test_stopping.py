"""A feed that is being fetched when the server stops."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from millstream.node.node import NodeLimits, open_node
from millstream.server.http_listener import HttpListener
from millstream.server.settings import Settings


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_live_read_that_begins_while_the_server_stops_ends_at_once(tmp_path: Path, live: str) -> None:
    asyncio.run(_stop_while_fetching(tmp_path, live))


async def _stop_while_fetching(folder: Path, live: str) -> None:
    settings = Settings(listen="127.0.0.1:0", data_dir=folder / "data", long_poll_ms=30_000, long_poll_ms_max=30_000)
    listener = HttpListener(settings)
    host, port = await listener.start()
    node = open_node(settings.data_dir, NodeLimits())
    node.start()
    listener.serve_node(node)
    fetching, may_go_on = asyncio.Event(), asyncio.Event()
    tail = node.feed.tail

    async def slow_tail(bucket: str) -> object:
        fetching.set()
        await may_go_on.wait()
        return await tail(bucket)

    node.feed.tail = slow_tail  # type: ignore[method-assign,assignment]
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"PUT /shop HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b" 201 " in await reader.readuntil(b"\r\n\r\n")
    writer.write(b"GET /shop/streams/feed?after=now&live=%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % live.encode())
    await fetching.wait()
    began = time.monotonic()
    stopping = asyncio.create_task(listener.stop())
    await asyncio.sleep(0.05)
    may_go_on.set()
    answer = await reader.read()
    await stopping
    assert time.monotonic() - began < settings.stop_timeout_s / 2
    if live == "sse":
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"0\r\n\r\n"), "it ended as a whole response"
    else:
        assert answer.startswith(b"HTTP/1.1 204 ")
    writer.close()
    await node.close()
