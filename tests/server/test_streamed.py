"""Answers that are made while they are sent: never more and never less than was announced."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from millstream.server.streamed import StreamedAnswer


class Connection:
    """Of an HTTP connection what a streamed answer needs."""

    def __init__(self):
        self.request = SimpleNamespace(path=b"/v1/stream/a", method=b"GET")
        self.live = None
        self.paused = False
        self.sent = b""
        self.ending = ""

    def begin_stream(self, lines, size):
        return True

    def is_chunked(self):
        return True

    def send(self, data):
        self.sent += data

    def end_stream(self, *, sized):
        self.ending = "complete"

    def abort(self):
        self.ending = "cut"


@pytest.mark.parametrize(
    ("announced", "sent", "ending"), [(6, b"abcdef", "complete"), (7, b"abcdef", "cut"), (5, b"abc", "cut")]
)
def test_what_is_sent_is_what_was_announced(caplog, announced, sent, ending):
    async def pieces():
        yield b"abc"
        yield memoryview(b"def")

    conn = Connection()
    with caplog.at_level(logging.ERROR):
        asyncio.run(StreamedAnswer(conn, b"", pieces(), announced).send())
    assert (conn.sent, conn.ending) == (sent, ending)
    assert (f"{announced} bytes were announced" in caplog.text) == (ending == "cut")
