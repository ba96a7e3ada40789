"""One measurement of the Python client, in a process of its own. Prints one JSON line.

python client_load.py produce-asyncio URL COUNT     a producer sends COUNT small JSON messages
python client_load.py produce-threads URL COUNT
python client_load.py appends URL COUNT             single awaited appends, 64 at a time
python client_load.py read URL COUNT                iterate over a stream of COUNT messages
python client_load.py reconnect URL COUNT           follow a server that ends the connection after each message
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from millstream.client import AsyncClient, Client, Retry

CONCURRENCY = 64


def message(number: int) -> dict[str, object]:
    return {"n": number, "device": "sensor-17", "text": "hello world"}


def produce_with_threads(url: str, count: int) -> dict[str, float]:
    with Client(url) as client:
        stream = client.stream(url)
        stream.create("application/json")
        began = time.perf_counter()
        with stream.producer() as producer:
            for number in range(count):
                producer.append(message(number))
        seconds = time.perf_counter() - began
        check(count, sum(1 for _ in stream.read().json()))
    return {"messages_per_s": count / seconds}


async def produce_on_asyncio(url: str, count: int) -> dict[str, float]:
    async with AsyncClient(url) as client:
        stream = client.stream(url)
        await stream.create("application/json")
        began = time.perf_counter()
        async with await stream.producer() as producer:
            for number in range(count):
                await producer.append(message(number))
        seconds = time.perf_counter() - began
        check(count, len([item async for item in stream.read().json()]))
    return {"messages_per_s": count / seconds}


async def append_singly(url: str, count: int) -> dict[str, float]:
    async with AsyncClient(url) as client:
        stream = client.stream(url)
        await stream.create("application/json")
        numbers = iter(range(count))

        async def work() -> None:
            for number in numbers:
                await stream.append(message(number))

        began = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
        seconds = time.perf_counter() - began
    return {"messages_per_s": count / seconds}


def read(url: str, count: int) -> dict[str, float]:
    with Client(url) as client:
        began = time.perf_counter()
        check(count, sum(1 for _ in client.stream(url).read().json()))
        return {"messages_per_s": count / (time.perf_counter() - began)}


def reconnect(url: str, count: int) -> dict[str, float]:
    """Memory after a tenth of the reconnects, when pools and caches are warm, and after all."""
    with Client(url, retry=Retry(retries_max=None, delay_s=0.001)) as client:
        began = time.perf_counter()
        first = 0
        for seen, _ in enumerate(client.stream(url).read(live="sse").json(), 1):
            if seen == count // 10:
                first = resident_bytes()
            if seen == count:
                break
        seconds = time.perf_counter() - began
        return {"reconnects_per_s": count / seconds, "grown_mb": (resident_bytes() - first) / 1e6}


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def check(expected: int, found: int) -> None:
    if expected != found:
        sys.exit(f"{found} messages are there, not {expected}")


def main() -> None:
    act, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if act == "produce-asyncio":
        result = asyncio.run(produce_on_asyncio(url, count))
    elif act == "appends":
        result = asyncio.run(append_singly(url, count))
    else:
        acts = {"produce-threads": produce_with_threads, "read": read, "reconnect": reconnect}
        result = acts[act](url, count)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
