"""A client that shows everything an answer has, and short words for what the tests of this folder send."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.conftest import ServerProcess
from tests.protocol.http.event_source import Event, parse_events

TEXT = "text/plain"
JSON = "application/json"
EVENT_BYTES_MAX = 256 << 10  # of an append in one SSE event
WAIT_S = 10.0  # for an answer that should come at once; a time-out is a failure


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def __getitem__(self, name: str) -> str | None:  # type: ignore[override]
        return self.headers[name]

    def code(self) -> str:
        """Of an error."""
        assert self["Content-Type"] == JSON
        return json.loads(self.body)["error"]["code"]


class Pending:
    """A request that was sent, and whose answer comes when it comes."""

    def __init__(self, url: str, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT_S)
        self._response: http.client.HTTPResponse | None = None
        self._connection.putrequest(method, path, skip_host="host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            self._connection.putheader(name.replace("_", "-"), value)
        if body is not None:
            self._connection.putheader("Content-Length", str(len(body)))
        self._connection.endheaders(body)

    def response(self) -> http.client.HTTPResponse:
        self._response = self._connection.getresponse()
        return self._response

    def answer(self) -> Answer:
        response = self.response()
        return Answer(response.status, response.headers, response.read())

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        self._connection.close()


class Feed:
    """An SSE response, event by event."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.status, self.headers = response.status, response.headers
        self.heartbeats = 0

    def next(self) -> Event | None:
        """The next event; None at the end."""
        block = b""
        while line := self._response.readline():
            block += line
            if line == b"\n":
                if found := parse_events(block):
                    return found[0]
                self.heartbeats += 1
                block = b""
        assert block == b"", "the response ended inside an event"
        return None

    def rest(self) -> list[Event]:
        """Everything up to the end."""
        return list(iter(self.next, None))

    def until_up_to_date(self) -> list[Event]:
        events = []
        while event := self.next():
            events.append(event)
            if event.type == "control" and control(event).get("upToDate"):
                return events
        raise AssertionError("the response ended before the reader was up to date")


def control(event: Event | None) -> dict[str, object]:
    assert event is not None
    assert event.type == "control"
    return json.loads(event.data)


def data(events: list[Event]) -> list[str]:
    return [event.data for event in events if event.type == "data"]


class Client:
    def __init__(self, server: ServerProcess) -> None:
        self.url = server.url
        self._sent: list[Pending] = []

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Pending:
        self._sent.append(Pending(self.url, method, path, body, headers))
        return self._sent[-1]

    def __call__(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        return self.send(method, path, body, **headers).answer()

    def close(self) -> None:
        for pending in self._sent:
            pending.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self("GET", path, **headers)

    def head(self, path: str, **headers: str) -> Answer:
        return self("HEAD", path, **headers)

    def put(self, path: str, body: bytes = b"", content_type: str = TEXT, **headers: str) -> Answer:
        return self("PUT", path, body, content_type=content_type, **headers)

    def post(self, path: str, body: bytes = b"", content_type: str = TEXT, **headers: str) -> Answer:
        return self("POST", path, body, content_type=content_type, **headers)

    def close_stream(self, path: str) -> Answer:
        return self("POST", path, b"", stream_closed="true")

    def delete(self, path: str, **headers: str) -> Answer:
        return self("DELETE", path, **headers)

    def follow(self, path: str, **headers: str) -> Feed:
        feed = Feed(self.send("GET", path, **headers).response())
        assert feed.status == 200
        return feed


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def varies(answer: Answer) -> set[str]:
    """The request headers that the answer depends on."""
    return {name.strip() for line in answer.headers.get_all("Vary", []) for name in line.split(",")}


def tag_of(answer: Answer) -> str:
    assert answer["ETag"] is not None
    return answer["ETag"]
