"""The S3P client, for threads and for asyncio, against a real server."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tests.conftest import ServerProcess, free_port

from millstream.client.s3p import (
    AsyncS3pClient,
    ConnectionLost,
    MessageId,
    Record,
    S3pClient,
    S3pError,
    append,
    create,
    delete,
    read,
)


@pytest.fixture(scope="module")
def running(module_server) -> ServerProcess:
    return module_server({"s3p.append_bytes_max": "4MiB"})


@pytest.fixture
def client(running):
    with S3pClient("127.0.0.1", running.s3p_port) as client:
        yield client


def test_a_stream_from_beginning_to_end(client):
    client.create("life")
    last = client.append("life", [b"a", b"b"])
    assert client.read("life") == [Record(MessageId(last.ms, last.seq - 1), b"a"), Record(last, b"b")]
    assert client.read("life", after=last) == []
    assert client.read("life", after=f"{last.ms}-0", count=1) == [Record(last, b"b")]
    client.trim("life", last)
    assert client.read(b"life") == [Record(last, b"b")]
    client.delete("life")
    with pytest.raises(S3pError) as caught:
        client.read("life")
    assert caught.value.code == "ERR_UNKNOWN_STREAM"


def test_clients_may_give_the_ids(client):
    client.create("own", client_ids=True)
    assert client.append("own", [b"a", b"b"], "7-1") == MessageId(7, 2)
    with pytest.raises(S3pError, match="Ids must grow"):
        client.append("own", [b"c"], MessageId(7, 2))
    assert client.append("own", [b"c"], "8-0") == MessageId(8, 0)  # on a new connection


def test_requests_are_pipelined_and_an_error_tells_how_far_it_came(client):
    client.create("pipe")
    ids = client.run([append("pipe", [b"%d" % number]) for number in range(500)])
    assert sorted(ids) == ids
    with pytest.raises(S3pError) as caught:
        client.run([append("pipe", [b"x"]), read("pipe", count=1), delete("nobody"), delete("pipe")])
    assert [type(result) for result in caught.value.done] == [MessageId, list]
    assert len(client.read("pipe", after=ids[-1])) == 1, "what followed the error was not executed"


def test_large_pipelines_do_not_deadlock(client):
    """Replies that are not read yet must never keep the rest from being sent."""
    client.create("large")
    requests = [append("large", [b"x" * 300_000]) for _ in range(12)]
    requests += [read("large") for _ in range(6)] + [append("large", [b"x" * 300_000]) for _ in range(12)]
    results = client.run(requests)
    assert [len(result) for result in results[12:18]] == [12] * 6


def test_a_blocked_read_returns_with_the_first_record(client, running):
    client.create("live")

    def write_later() -> None:
        time.sleep(0.2)
        with S3pClient("127.0.0.1", running.s3p_port) as other:
            other.append("live", [b"now"])

    writer = threading.Thread(target=write_later)
    writer.start()
    assert [record.data for record in client.read("live", block_ms=8000)] == [b"now"]
    writer.join()


def test_a_server_that_is_not_there_is_said_so():
    port = free_port()
    with S3pClient("127.0.0.1", port) as client, pytest.raises(ConnectionLost, match=str(port)):
        client.read("x")


def test_a_connection_that_the_server_closed_is_made_again(server):
    running = server({"s3p.idle_timeout_s": 0.3})
    with S3pClient("127.0.0.1", running.s3p_port) as client:
        client.create("x")
        time.sleep(1.2)
        client.append("x", [b"after a while"])

    async def the_same() -> None:
        async with AsyncS3pClient("127.0.0.1", running.s3p_port) as client:
            await client.append("x", [b"a"])
            await asyncio.sleep(1.2)
            assert len(await client.read("x")) == 2

    asyncio.run(the_same())


def test_a_server_that_does_not_speak_s3p_is_said_so(running):
    with S3pClient("127.0.0.1", running.port, timeout_s=3) as client, pytest.raises(Exception, match="S3P"):
        client.read("x")


def test_asyncio(running):
    async def use() -> None:
        async with AsyncS3pClient("127.0.0.1", running.s3p_port) as client:
            await client.create("async", client_ids=True)
            assert await client.append("async", [b"a"], "1-1") == MessageId(1, 1)
            several = await asyncio.gather(*[client.read("async", count=1) for _ in range(10)])
            assert several == [[Record(MessageId(1, 1), b"a")]] * 10
            assert await client.read("async", after="1-1", block_ms=50) == []
            await client.trim("async", "1-2")
            assert await client.read("async") == []
            assert await client.run([create("async2"), delete("async2")]) == [None, None]
            await client.delete("async")
            with pytest.raises(S3pError):
                await client.read("async")
        async with AsyncS3pClient("127.0.0.1", free_port()) as nobody:
            with pytest.raises(ConnectionLost):
                await nobody.read("x")

    asyncio.run(use())
