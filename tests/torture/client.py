"""A small HTTP client on asyncio streams. It knows one thing others hide: whether an answer came whole."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

ANSWER_TIMEOUT_S = 20.0
PRESSURE_PAUSE_S = 0.05
PRESSURE_S_MAX = 120.0
_EVENT = re.compile(r"event: (\w+)\ndata:(.*)\n")  # our messages hold no line break


class Lost(Exception):
    """The connection ended before the answer did: what was asked for may or may not have happened."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The error's code."""
        return str(json.loads(self.body)["error"]["code"])

    @property
    def next_offset(self) -> int:
        return int(self.headers["stream-next-offset"])

    @property
    def stream_id(self) -> str:
        return self.headers["stream-id"]

    @property
    def is_closed(self) -> bool:
        return self.headers.get("stream-closed") == "true"


class Client:
    """One connection, opened when it is needed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._ask(method, path, body, headers or {})
        except (OSError, EOFError) as error:
            if isinstance(error, TimeoutError):
                raise AssertionError(f"{method} {path} was not answered in {ANSWER_TIMEOUT_S} s") from None
            self.close()
            raise Lost(f"{method} {path}") from error

    async def ask_until_taken(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        """Ask again while the server is under pressure: it has refused before anything happened."""
        async with asyncio.timeout(PRESSURE_S_MAX):
            while True:
                answer = await self.ask(method, path, body, headers)
                if answer.status != 503 or answer.code == "outcome_unknown":
                    return answer
                await asyncio.sleep(PRESSURE_PAUSE_S)

    async def events(self, path: str) -> AsyncIterator[tuple[str, str]]:
        """The kind and the data of every event of an SSE response, up to its end."""
        try:
            reader = await self._begin("GET", path, b"", {})
            answer = await _read_head(reader)
            assert answer.status == 200, answer
            while chunk := await _read_chunk(reader):
                for kind, data in _EVENT.findall(chunk.decode()):
                    yield kind, data
        except (OSError, EOFError) as error:
            self.close()
            raise Lost(f"GET {path}") from error

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        reader = await self._begin(method, path, body, headers)
        answer = await _read_head(reader)
        if method == "HEAD" or answer.status in (204, 304):
            return answer
        if "transfer-encoding" in answer.headers:
            chunks = []
            while chunk := await _read_chunk(reader):
                chunks.append(chunk)
            return Answer(answer.status, answer.headers, b"".join(chunks))
        size = int(answer.headers["content-length"])
        return Answer(answer.status, answer.headers, await reader.readexactly(size))

    async def _begin(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> asyncio.StreamReader:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        writer.write(body)
        await writer.drain()
        return reader


async def _read_head(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status_line, *lines = head.rstrip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(status_line.split()[1]), headers, b"")


async def _read_chunk(reader: asyncio.StreamReader) -> bytes:
    size = int((await reader.readuntil(b"\r\n")).strip(), 16)
    return (await reader.readexactly(size + 2))[:-2]
