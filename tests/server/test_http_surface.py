"""What a client sees over HTTP, from a real server: headers, caching, live reads, and how each of them ends."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
import zstandard
from prometheus_client.parser import text_string_to_metric_families
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

    def delete(self, path: str) -> Answer:
        return self("DELETE", path)

    def follow(self, path: str, **headers: str) -> Feed:
        feed = Feed(self.send("GET", path, **headers).response())
        assert feed.status == 200
        return feed


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all stories that need no settings of their own; each has a stream of its own."""
    process = ServerProcess(tmp_path_factory.mktemp("surface"), {"long_poll_ms": 300})
    process.start()
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
def connect() -> Iterator[Callable[[ServerProcess], Client]]:
    clients: list[Client] = []

    def client_of(server: ServerProcess) -> Client:
        clients.append(Client(server))
        return clients[-1]

    yield client_of
    for client in clients:
        client.close()


@pytest.fixture
def client(shared: ServerProcess, connect: Callable[[ServerProcess], Client]) -> Client:
    return connect(shared)


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return "/v1/stream/" + re.sub(r"\W+", "-", request.node.name)


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


# --- writing, and what it says


def test_create_append_close_delete(client, path):
    created = client.put(path, b"hello")
    assert (created.status, created["Stream-Next-Offset"]) == (201, "00000000000000000005")
    assert created["Location"] == client.url + path
    assert created["Content-Type"] == TEXT

    appended = client.post(path, b" world")
    assert (appended.status, appended["Stream-Next-Offset"]) == (204, "00000000000000000011")

    closed = client.close_stream(path)
    assert (closed.status, closed["Stream-Closed"]) == (204, "true")
    refused = client.post(path, b"!")
    assert (refused.status, refused["Stream-Closed"]) == (409, "true")
    assert refused["Stream-Next-Offset"] == "00000000000000000011"

    read = client.get(path)
    assert (read.status, read.body, read["Stream-Closed"]) == (200, b"hello world", "true")
    assert client.delete(path).status == 204
    assert client.get(path).status == 404
    assert client.delete(path).status == 404


def test_the_stored_content_type_comes_back_exactly(client, path):
    client.put(path, b"x", "Text/Plain;Charset=X")
    for answer in (client.get(path), client.head(path), client.put(path, content_type="text/plain")):
        assert answer["Content-Type"] == "Text/Plain;Charset=X"


def test_a_producers_story(client, path):
    client.put(path)

    def send(epoch: int, seq: int) -> Answer:
        return client.post(path, b"x", producer_id="p", producer_epoch=str(epoch), producer_seq=str(seq))

    new, again = send(0, 0), send(0, 0)
    assert (new.status, new["Producer-Epoch"], new["Producer-Seq"]) == (200, "0", "0")
    assert (again.status, again["Producer-Seq"]) == (204, "0")
    gap = send(0, 5)
    assert (gap.status, gap["Producer-Expected-Seq"], gap["Producer-Received-Seq"]) == (409, "1", "5")
    assert send(2, 0).status == 200
    stale = send(1, 0)
    assert (stale.status, stale["Producer-Epoch"]) == (403, "2")
    assert send(3, 1).status == 400
    assert client.get(path).body == b"xx"


def test_an_append_must_say_what_it_is(client, path):
    client.put(path)
    answer = client("POST", path, b"x")
    assert (answer.status, answer.code()) == (400, "content_type_missing")
    mismatch = client.post(path, b"1", JSON)
    assert (mismatch.status, mismatch.code()) == (409, "content_type_mismatch")


def test_answers_without_a_body_have_no_length(client, path):
    client.put(path, b"hello")
    answers = [client.post(path, b"!"), client.get(path, if_none_match="*"), client.head(path, if_none_match="*")]
    answers += [client.get(f"{path}?offset=6&live=long-poll&timeout_ms=0"), client.delete(path)]
    assert [answer.status for answer in answers] == [204, 304, 304, 204, 204]
    for answer in answers:
        assert (answer.body, answer["Content-Length"], answer["Transfer-Encoding"]) == (b"", None, None)


def test_an_error_says_what_to_do(client, path):
    answer = client.get(path)
    assert (answer.status, answer.code()) == (404, "not_found")
    assert answer["Cache-Control"] == "no-store"
    assert "PUT" in json.loads(answer.body)["error"]["message"]


# --- large bodies


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_two_mebibytes_of_text_come_back_exactly(client, path, method):
    text = "".join(f"line {number} é\n" for number in range(150_000)).encode()
    assert len(text) > 2 << 20
    if method == "POST":
        client.put(path)
    answer = client(method, path, text, content_type=TEXT)
    assert (answer.status, int(answer["Stream-Next-Offset"])) == (201 if method == "PUT" else 204, len(text))
    assert client.get(path).body == text
    assert client.get(f"{path}?offset={len(text) - 7}").body == text[-7:]


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_two_mebibytes_of_json_come_back_exactly(client, path, method):
    messages = [b'{"n": %d, "text": "%b"}' % (number, b"x" * (number % 50)) for number in range(60_000)]
    if method == "POST":
        client.put(path, b"", JSON)
    answer = client(method, path, b"[\n" + b" ,\n".join(messages) + b"\n]", content_type=JSON)
    assert answer.status == (201 if method == "PUT" else 204)
    assert int(answer["Stream-Next-Offset"]) == sum(map(len, messages)) > 2 << 20
    assert client.get(path).body == b"[" + b",".join(messages) + b"]"


def test_a_large_body_that_is_refused_leaves_nothing(client, path):
    client.put(path, b"hello")
    large = b"x" * (2 << 20)
    assert client.post(path, large, JSON).status == 409
    assert client.post(path, large, if_match='"stale"').status == 412
    assert client.put(path, large).status == 200
    assert client.get(path).body == b"hello"
    assert client.post(path, b"!").status == 204


def test_a_body_over_the_limit_is_413(server, connect):
    client = connect(server({"append_bytes_max": "1KiB"}))
    client.put("/v1/stream/a")
    assert client.post("/v1/stream/a", b"x" * 1024).status == 204
    answer = client.post("/v1/stream/a", b"x" * 1025)
    assert (answer.status, answer.code()) == (413, "body_too_large")


# --- compression


LONG = b"abcdefgh" * 128  # 1 KiB exactly


@pytest.mark.parametrize(
    ("accepted", "encoding", "unpack"),
    [
        ("gzip", "gzip", gzip.decompress),
        ("zstd", "zstd", zstandard.decompress),
        ("deflate, GZIP;q=0.5", "gzip", gzip.decompress),
        ("gzip, deflate, br, zstd", "zstd", zstandard.decompress),
        ("zstd;q=0, gzip", "gzip", gzip.decompress),
    ],
)
def test_a_body_of_a_kibibyte_is_compressed(client, path, accepted, encoding, unpack):
    client.put(path, LONG)
    plain, packed = client.get(path), client.get(path, accept_encoding=accepted)
    assert packed["Content-Encoding"] == encoding
    assert unpack(packed.body) == LONG
    assert len(packed.body) < len(LONG)
    assert "Accept-Encoding" in varies(packed)
    assert tag_of(packed) == "W/" + tag_of(plain)
    assert packed["Content-Type"] == TEXT
    assert packed["Stream-Next-Offset"] == plain["Stream-Next-Offset"]


def test_a_smaller_body_is_not(client, path):
    client.put(path, LONG[1:])
    answer = client.get(path, accept_encoding="gzip, zstd")
    assert (answer["Content-Encoding"], answer.body) == (None, LONG[1:])
    assert "Accept-Encoding" in varies(answer)
    assert not tag_of(answer).startswith("W/")


@pytest.mark.parametrize("accepted", ["identity", "br", "gzip;q=0", "gzip; q=0.0, zstd;q=0", ""])
def test_nor_is_one_for_a_client_that_cannot_unpack_it(client, path, accepted):
    client.put(path, LONG)
    answer = client.get(path, accept_encoding=accepted)
    assert (answer["Content-Encoding"], answer.body) == (None, LONG)


def test_without_accept_encoding_nothing_is_compressed(client, path):
    client.put(path, LONG)
    assert (client.get(path)["Content-Encoding"], client.get(path).body) == (None, LONG)


def test_json_is_compressed_as_the_array_it_is_read_as(client, path):
    messages = [{"n": number} for number in range(500)]
    client.put(path, json.dumps(messages).encode(), JSON)
    packed = client.get(path, accept_encoding="gzip")
    assert json.loads(gzip.decompress(packed.body)) == messages


# --- entity tags


def test_what_has_not_changed_is_not_sent_again(client, path):
    client.put(path, b"hello")
    first = client.get(path)
    again = client.get(path, if_none_match=tag_of(first))
    assert (again.status, again.body) == (304, b"")
    assert again["ETag"] == tag_of(first)
    assert again["Stream-Next-Offset"] == first["Stream-Next-Offset"]
    assert again["Cache-Control"] == first["Cache-Control"]
    assert client.get(path, if_none_match=f'"other", W/{tag_of(first)}').status == 304
    assert client.get(path, if_none_match="*").status == 304
    assert client.get(path, if_none_match='"other"').status == 200


def test_the_tag_of_a_compressed_answer_is_good_for_304(client, path):
    client.put(path, LONG)
    packed = client.get(path, accept_encoding="gzip")
    assert client.get(path, accept_encoding="gzip", if_none_match=tag_of(packed)).status == 304


def test_a_304_varies_as_the_200_would(client, path):
    """RFC 9110 section 15.4.5: a 304 has the Vary that the 200 would have had."""
    client.put(path, LONG)
    packed = client.get(path, accept_encoding="gzip")
    again = client.get(path, accept_encoding="gzip", if_none_match=tag_of(packed))
    assert (again.status, varies(again)) == (304, varies(packed))


def test_new_data_changes_the_tag(client, path):
    client.put(path, b"hello")
    before = tag_of(client.get(path))
    client.post(path, b"!")
    assert client.get(path, if_none_match=before).body == b"hello!"


def test_closing_changes_every_tag(client, path):
    """Or a cache would hide the end of the stream (protocol section 8.1)."""
    client.put(path, b"hello")
    read, head = tag_of(client.get(path)), tag_of(client.head(path))
    at_tail = tag_of(client.get(f"{path}?offset=5"))
    client.close_stream(path)
    for answer in (
        client.get(path, if_none_match=read),
        client.get(f"{path}?offset=5", if_none_match=at_tail),
        client.head(path, if_none_match=head),
    ):
        assert (answer.status, answer["Stream-Closed"]) == (200, "true")
        assert tag_of(answer).endswith(':c"')


def test_head_knows_304_too(client, path):
    client.put(path, b"hello")
    tag = tag_of(client.head(path))
    assert client.head(path, if_none_match=tag).status == 304
    client.post(path, b"!")
    assert client.head(path, if_none_match=tag).status == 200


@pytest.mark.parametrize("source", ["HEAD", "GET", "POST", "PUT"])
def test_an_append_may_depend_on_a_state_seen_before(client, path, source):
    created = client.put(path, b"hello")
    tag = {
        "PUT": lambda: tag_of(created),
        "POST": lambda: tag_of(client.post(path, b"!")),
        "GET": lambda: tag_of(client.get(path)),
        "HEAD": lambda: tag_of(client.head(path)),
    }[source]()
    assert client.post(path, b"?", if_match=tag).status == 204
    late = client.post(path, b"?", if_match=tag)
    assert (late.status, late.code()) == (412, "precondition_failed")


def test_a_create_may_depend_on_a_state_too(client, path):
    tag = tag_of(client.put(path, b"hello"))
    assert client.put(path, if_match=tag).status == 200
    client.post(path, b"!")
    assert client.put(path, if_match=tag).status == 412
    assert client.put(path + "-missing", if_match="*").status == 412


# --- reading ranges


def test_pages_of_bytes(client, path):
    client.put(path, b"hello world")
    read, offset = b"", "-1"
    for _ in range(3):
        page = client.get(f"{path}?offset={offset}&max_bytes=4")
        assert len(page.body) <= 4
        read, offset = read + page.body, page["Stream-Next-Offset"]
    assert (read, page["Stream-Up-To-Date"]) == (b"hello world", "true")
    assert client.get(f"{path}?max_bytes=4")["Stream-Up-To-Date"] is None


def test_pages_of_messages_hold_at_least_one(client, path):
    client.put(path, b'["a long one", 2, 3]', JSON)
    first = client.get(f"{path}?max_bytes=1")
    assert first.body == b'["a long one"]'
    second = client.get(f"{path}?max_bytes=2&offset={first['Stream-Next-Offset']}")
    assert (second.body, second["Stream-Up-To-Date"]) == (b"[2,3]", "true")


def test_the_end_is_only_announced_on_the_last_page(client, path):
    client.put(path, b"hello", stream_closed="true")
    first = client.get(f"{path}?max_bytes=3")
    assert (first.body, first["Stream-Closed"]) == (b"hel", None)
    last = client.get(f"{path}?offset={first['Stream-Next-Offset']}")
    assert (last.body, last["Stream-Closed"]) == (b"lo", "true")
    end = client.get(f"{path}?offset={last['Stream-Next-Offset']}")
    assert (end.status, end.body, end["Stream-Closed"]) == (200, b"", "true")


def test_at_the_tail_there_is_an_empty_answer(client, path):
    client.put(path, b"hello")
    client.put(path + "-json", b"[1]", JSON)
    bytes_tail, json_tail = client.get(f"{path}?offset=5"), client.get(f"{path}-json?offset=1")
    assert (bytes_tail.status, bytes_tail.body, bytes_tail["Stream-Up-To-Date"]) == (200, b"", "true")
    assert (json_tail.status, json_tail.body, json_tail["Stream-Up-To-Date"]) == (200, b"[]", "true")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("offset=", "bad_offset"),
        ("offset=abc", "bad_offset"),
        ("offset=-1&offset=-1", "repeated_parameter"),
        ("offset=6", "offset_beyond_tail"),
        ("offset=99999999999999999999", "offset_beyond_tail"),
        ("offset=6&live=long-poll", "offset_beyond_tail"),
        ("offset=6&live=sse", "offset_beyond_tail"),
        ("live=sse", "offset_missing"),
        ("live=long-poll", "offset_missing"),
        ("offset=-1&live=websocket", "bad_live"),
        ("max_bytes=0", "bad_max_bytes"),
        ("timeout_ms=x", "bad_timeout_ms"),
    ],
)
def test_a_bad_query_is_400_at_once(client, path, query, code):
    client.put(path, b"hello")
    answer = client.get(f"{path}?{query}")
    assert (answer.status, answer.code()) == (400, code)


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
def test_an_offset_inside_a_json_message_is_400(client, path, live):
    client.put(path, b'[{"a":1},2]', JSON)
    answer = client.get(f"{path}?offset=3{live}")
    assert (answer.status, answer.code()) == (400, "offset_not_a_boundary")


def test_the_other_form_of_offsets_is_understood(client, path):
    client.put(path, b"hello")
    assert client.get(f"{path}?offset=0000000000000000_0000000000000002").body == b"llo"


# --- offset=now


@pytest.mark.parametrize(("content_type", "body", "empty"), [(TEXT, b"hello", b""), (JSON, b"[1]", b"[]")])
def test_now_skips_everything(client, path, content_type, body, empty):
    client.put(path, body, content_type)
    answer = client.get(f"{path}?offset=now")
    assert (answer.status, answer.body, answer["Stream-Up-To-Date"]) == (200, empty, "true")
    assert answer["Stream-Next-Offset"] == client.head(path)["Stream-Next-Offset"]
    assert (answer["Cache-Control"], answer["ETag"], answer["Stream-Closed"]) == ("no-store", None, None)
    assert answer["Content-Type"] == content_type


def test_now_on_a_closed_stream_says_so_in_every_mode(client, path):
    client.put(path, b"hello", stream_closed="true")
    plain = client.get(f"{path}?offset=now")
    assert (plain.status, plain.body, plain["Stream-Closed"]) == (200, b"", "true")
    polled = client.get(f"{path}?offset=now&live=long-poll&timeout_ms=60000")
    assert (polled.status, polled["Stream-Closed"], polled["Stream-Up-To-Date"]) == (204, "true", "true")
    assert polled["Stream-Next-Offset"] == "00000000000000000005"
    [event] = client.follow(f"{path}?offset=now&live=sse").rest()
    assert control(event) == {
        "streamNextOffset": "00000000000000000005",
        "upToDate": True,
        "streamClosed": True,
    }


def test_now_waits_for_what_comes(client, path):
    client.put(path, b"hello")
    waiting = client.send("GET", f"{path}?offset=now&live=long-poll&timeout_ms=10000")
    feed = client.follow(f"{path}?offset=now&live=sse")
    assert control(feed.next())["streamNextOffset"] == "00000000000000000005"
    time.sleep(0.1)  # the long-poll has no first answer to wait for
    client.post(path, b"new")
    assert waiting.answer().body == b"new"
    assert feed.next().data == "new"


def test_what_now_waited_for_is_not_kept_by_caches(client, path):
    """The same URL means another place a second later (protocol section 8.1; `offset=now`: no-store, no ETag)."""
    client.put(path, b"hello")
    waiting = client.send("GET", f"{path}?offset=now&live=long-poll&timeout_ms=10000")
    time.sleep(0.1)
    client.post(path, b"new")
    answer = waiting.answer()
    assert (answer.status, answer.body) == (200, b"new")
    assert (answer["Cache-Control"], answer["ETag"]) == ("no-store", None)


# --- long-poll


def test_a_long_poll_answers_when_data_comes(client, path):
    client.put(path)
    waiting = client.send("GET", f"{path}?offset=-1&live=long-poll&timeout_ms=10000")
    time.sleep(0.1)
    client.post(path, b"hello")
    answer = waiting.answer()
    assert (answer.status, answer.body, answer["Stream-Up-To-Date"]) == (200, b"hello", "true")
    assert answer["Stream-Next-Offset"] == "00000000000000000005"
    assert int(answer["Stream-Cursor"]) > 0
    assert tag_of(answer) == tag_of(client.get(path))


def test_a_long_poll_answers_at_once_when_there_is_data(client, path):
    client.put(path, b"hello")
    answer = client.get(f"{path}?offset=2&live=long-poll&timeout_ms=60000")
    assert (answer.status, answer.body) == (200, b"llo")


def test_a_long_poll_gives_up_in_its_time(client, path):
    client.put(path, b"hello")
    for query, least_s in (("&timeout_ms=150", 0.15), ("", 0.3), ("&timeout_ms=0", 0.0)):
        started = time.monotonic()
        answer = client.get(f"{path}?offset=5&live=long-poll{query}")
        elapsed = time.monotonic() - started
        assert (answer.status, answer.body, answer["Stream-Up-To-Date"]) == (204, b"", "true")
        assert answer["Stream-Next-Offset"] == "00000000000000000005"
        assert int(answer["Stream-Cursor"]) > 0
        assert answer["Stream-Closed"] is None
        assert least_s <= elapsed < least_s + 5


def test_closing_ends_a_long_poll(client, path):
    client.put(path, b"hello")
    waiting = client.send("GET", f"{path}?offset=5&live=long-poll&timeout_ms=10000")
    time.sleep(0.1)
    client.close_stream(path)
    answer = waiting.answer()
    assert (answer.status, answer["Stream-Closed"], answer["Stream-Cursor"]) == (204, "true", None)


def test_deleting_ends_a_long_poll(client, path):
    client.put(path, b"hello")
    waiting = client.send("GET", f"{path}?offset=5&live=long-poll&timeout_ms=10000")
    time.sleep(0.1)
    client.delete(path)
    assert waiting.answer().status == 404


@pytest.mark.parametrize("name", ["cursor", "stream-cursor"])
def test_a_cursor_is_answered_by_a_later_one(client, path, name):
    client.put(path, b"hello")
    present = int(client.get(f"{path}?offset=0&live=long-poll")["Stream-Cursor"])
    ahead = present + 1000
    for sent, received in (
        (ahead, client.get(f"{path}?offset=0&live=long-poll&{name}={ahead}")),
        (ahead, client.get(f"{path}?offset=5&live=long-poll&timeout_ms=0&{name}={ahead}")),
        (present - 5, client.get(f"{path}?offset=0&live=long-poll&{name}={present - 5}")),
    ):
        assert int(received["Stream-Cursor"]) > sent


def test_the_operators_limits_hold_whatever_a_client_asks(server, connect):
    client = connect(server({"long_poll_ms": 50, "long_poll_ms_max": 200, "read_bytes_max": "1KiB"}))
    client.put("/v1/stream/a", b"x" * 3000)
    started = time.monotonic()
    assert client.get("/v1/stream/a?offset=3000&live=long-poll&timeout_ms=60000").status == 204
    assert 0.2 <= time.monotonic() - started < 5
    assert len(client.get("/v1/stream/a").body) == 1024
    assert len(client.get("/v1/stream/a?max_bytes=2000").body) == 1024


# --- Server-Sent Events


def test_a_feed_of_text(client, path):
    client.put(path, b"one\r\n two")
    feed = client.follow(f"{path}?offset=-1&live=sse")
    assert feed.headers["Content-Type"] == "text/event-stream"
    assert feed.headers["Cache-Control"] == "no-cache"
    assert feed.headers["Stream-SSE-Data-Encoding"] is None
    assert feed.next().data == "one\n two"
    first = control(feed.next())
    assert (first["streamNextOffset"], first["upToDate"]) == ("00000000000000000009", True)
    assert int(first["streamCursor"]) > 0

    client.post(path, b" three")
    event, end = feed.next(), feed.next()
    assert (event.type, event.data) == ("data", " three")
    assert (end.id, control(end)["upToDate"]) == ("00000000000000000015", True)

    client.close_stream(path)
    assert control(feed.next()) == {
        "streamNextOffset": "00000000000000000015",
        "upToDate": True,
        "streamClosed": True,
    }
    assert feed.next() is None


def test_a_feed_of_json(client, path):
    client.put(path, b'[{"a": 1}, [2]]', JSON)
    feed = client.follow(f"{path}?offset=-1&live=sse")
    assert json.loads(feed.next().data) == [{"a": 1}, [2]]
    feed.next()
    client.post(path, b"3", JSON)
    assert json.loads(feed.next().data) == [3]


def test_a_feed_of_bytes(client, path):
    content = bytes(range(256)) * 3000
    client.put(path, content, "application/octet-stream", stream_closed="true")
    feed = client.follow(f"{path}?offset=-1&live=sse")
    assert feed.headers["Stream-SSE-Data-Encoding"] == "base64"
    events = feed.rest()
    assert b"".join(base64.b64decode(part, validate=True) for part in data(events)) == content
    assert len(data(events)) > 1
    assert control(events[-1])["streamClosed"] is True


def test_a_feed_of_an_empty_stream_starts_with_a_control_event(client, path):
    client.put(path)
    first = control(client.follow(f"{path}?offset=-1&live=sse").next())
    assert (first["streamNextOffset"], first["upToDate"]) == ("0" * 20, True)


def test_closing_with_the_last_data_ends_a_feed_in_one_step(client, path):
    client.put(path)
    feed = client.follow(f"{path}?offset=-1&live=sse")
    feed.next()
    client.post(path, b"bye", stream_closed="true")
    last, end = feed.rest()
    assert (last.data, control(end)["streamClosed"]) == ("bye", True)


def test_a_long_text_is_not_broken_inside_a_character(client, path):
    text = "x" + "é€😀" * 60_000
    client.put(path, text.encode(), stream_closed="true")
    parts = data(client.follow(f"{path}?offset=-1&live=sse").rest())
    assert len(parts) > 1
    assert "".join(parts) == text


def test_a_long_text_is_not_broken_inside_a_line_end(client, path):
    """CR LF is one line break, also where the server itself divides an append into two events."""
    text = "x" * (EVENT_BYTES_MAX - 1) + "\r\nlast"
    client.put(path, text.encode(), stream_closed="true")
    parts = data(client.follow(f"{path}?offset=-1&live=sse").rest())
    assert len(parts) == 2
    assert "".join(parts) == text.replace("\r\n", "\n")


def test_last_event_id_wins_over_the_offset(client, path):
    """A browser reconnects to the URL it was given, with the id of the last event it saw."""
    client.put(path, b"hello")
    feed = client.follow(f"{path}?offset=-1&live=sse")
    seen = feed.until_up_to_date()[-1].id
    client.post(path, b"!")
    again = client.follow(f"{path}?offset=-1&live=sse", last_event_id=seen)
    assert again.next().data == "!"
    assert client.get(f"{path}?offset=-1&live=sse", last_event_id="nonsense").status == 400
    assert client.get(f"{path}?offset=-1", last_event_id=seen).body == b"hello!"  # it belongs to SSE


def test_cursors_of_one_feed_never_go_back(client, path):
    """Protocol section 8.1, also for a client whose cursor is ahead of the present interval."""
    client.put(path)
    ahead = int(client.get(f"{path}?offset=-1&live=long-poll&timeout_ms=0")["Stream-Cursor"]) + 1000
    feed = client.follow(f"{path}?offset=-1&live=sse&cursor={ahead}")
    cursors = [int(control(feed.next())["streamCursor"])]
    for _ in range(12):
        client.post(path, b"x")
        feed.next()
        cursors.append(int(control(feed.next())["streamCursor"]))
    assert cursors[0] > ahead
    assert all(one <= other for one, other in pairwise(cursors))


def test_heartbeats_and_recycling(server, connect):
    client = connect(server({"sse_heartbeat_s": 0.1, "sse_max_s": 0.65}))
    client.put("/v1/stream/a", b"hello")
    started = time.monotonic()
    feed = client.follow("/v1/stream/a?offset=-1&live=sse")
    events = feed.rest()
    elapsed = time.monotonic() - started
    assert data(events) == ["hello"]
    assert 2 <= feed.heartbeats <= 7
    assert 0.5 < elapsed < 5
    again = client.follow(f"/v1/stream/a?offset={events[-1].id}&live=sse")
    assert control(again.next())["upToDate"] is True


def test_deleting_ends_a_feed(client, path):
    client.put(path, b"hello")
    feed = client.follow(f"{path}?offset=-1&live=sse")
    feed.until_up_to_date()
    client.delete(path)
    client.put(path, b"another")
    assert feed.rest() == []


def test_a_feed_from_inside_a_json_message_is_refused_before_it_begins(server, connect):
    client = connect(server())
    client.put("/v1/stream/a", b'[{"a":1},2]', JSON)
    answer = client.get("/v1/stream/a?offset=3&live=sse")
    assert (answer.status, answer.code()) == (400, "offset_not_a_boundary")


def test_a_feed_that_went_wrong_harms_no_other_reader(server, connect):
    """One bad request must not end every live read of the server: the next append would wake nobody."""
    running = server()
    client = connect(running)
    client.put("/v1/stream/a", b'[{"a":1},2]', JSON)
    client.put("/v1/stream/b")
    client.send("GET", "/v1/stream/a?offset=3&live=sse")
    waiting = client.send("GET", "/v1/stream/b?offset=-1&live=long-poll&timeout_ms=1000")
    time.sleep(0.1)
    client.post("/v1/stream/a", b"3", JSON)
    time.sleep(0.1)
    client.post("/v1/stream/b", b"hello")
    assert waiting.answer().body == b"hello"
    assert "Traceback" not in running.log()


# --- incarnations


def test_a_stream_that_was_created_anew_is_another(client, path):
    client.put(path, b"old")
    old = client.get(path)["Stream-Id"]
    assert client.get(f"{path}?offset=1&stream-id={old}").body == b"ld"
    client.delete(path)
    client.put(path, b"new")
    new = client.head(path)["Stream-Id"]
    assert old != new
    for query in ("", "&live=long-poll", "&live=sse"):
        answer = client.get(f"{path}?offset=1&stream-id={old}{query}")
        assert (answer.status, answer.code()) == (410, "stream_recreated")
    assert client.head(f"{path}?stream-id={old}").status == 410
    assert client.get(f"{path}?offset=1&stream-id={new}").body == b"ew"


def test_every_answer_names_the_incarnation(client, path):
    answers = [client.put(path, b"x"), client.put(path), client.post(path, b"y"), client.get(path), client.head(path)]
    answers += [client.get(f"{path}?offset=2&live=long-poll&timeout_ms=0"), client.close_stream(path)]
    ids = {answer["Stream-Id"] for answer in answers}
    ids.add(client.follow(f"{path}?offset=-1&live=sse").headers["Stream-Id"])
    ids.add(client.delete(path)["Stream-Id"])
    assert len(ids) == 1
    assert None not in ids


# --- metadata and lifetimes


def test_head_tells_everything_and_sends_nothing(client, path):
    client.put(path, b"hello", stream_closed="true")
    answer = client.head(path)
    assert (answer.status, answer.body) == (200, b"")
    assert answer["Content-Type"] == TEXT
    assert answer["Stream-Next-Offset"] == "00000000000000000005"
    assert answer["Stream-Closed"] == "true"
    assert answer["Cache-Control"] == "no-store"
    assert (answer["Stream-TTL"], answer["Stream-Expires-At"]) == (None, None)
    assert client.head(path + "-missing").status == 404


def test_a_ttl_counts_down_and_reads_renew_it_but_head_does_not(client, path):
    client.put(path, b"hello", stream_ttl="100")
    assert client.head(path)["Stream-TTL"] == "100"
    time.sleep(1.05)
    assert 90 < int(client.head(path)["Stream-TTL"]) <= 99
    assert 90 < int(client.head(path)["Stream-TTL"]) <= 99
    client.get(path)
    assert client.head(path)["Stream-TTL"] == "100"


def test_caches_never_keep_a_range_longer_than_the_stream_lives(client, path):
    client.put(path, b"hello", stream_ttl="100")
    assert client.get(path)["Cache-Control"] == "public, max-age=60, stale-while-revalidate=40"
    client.put(path + "-ever", b"hello")
    assert client.get(path + "-ever")["Cache-Control"] == "public, max-age=60, stale-while-revalidate=300"


def test_an_expiry_comes_back_as_the_same_moment(client, path):
    client.put(path, stream_expires_at="2130-01-31T13:00:00.5+01:00")
    said = client.head(path)["Stream-Expires-At"]
    assert said == "2130-01-31T12:00:00.500Z"
    assert client.put(path, stream_expires_at=said).status == 200
    assert client.put(path, stream_expires_at="2130-01-31T12:00:00.501Z").status == 409
    assert client.put(path).status == 409


def test_expiry_ends_a_live_read_and_frees_the_name(client, path):
    client.put(path, b"hello", stream_ttl="1")
    started = time.monotonic()
    feed = client.follow(f"{path}?offset=-1&live=sse")
    waiting = client.send("GET", f"{path}?offset=5&live=long-poll&timeout_ms=9000")
    assert data(feed.rest()) == ["hello"]
    assert waiting.answer().status == 404
    assert 0.9 < time.monotonic() - started < 5
    assert client.get(path).status == 404
    assert client.put(path, b"another", JSON).status == 400
    assert client.put(path, b"another").status == 201


# --- browsers


@pytest.mark.parametrize(
    "content_type", ["text/html", "image/svg+xml", "application/xhtml+xml; x=1", "text/javascript", "application/pdf"]
)
def test_what_a_browser_might_run_is_downloaded_and_caged(client, path, content_type):
    client.put(path, b"<script>alert(1)</script>", content_type)
    for answer in (client.get(path), client.head(path), client.get(f"{path}?offset=now")):
        assert answer["Content-Disposition"] == "attachment"
        assert answer["Content-Security-Policy"] == "sandbox"
        assert answer["Content-Type"] == content_type


def test_harmless_content_is_shown_but_caged_too(client, path):
    client.put(path, b"hello")
    answer = client.get(path)
    assert (answer["Content-Disposition"], answer["Content-Security-Policy"]) == (None, "sandbox")
    feed = client.follow(f"{path}?offset=-1&live=sse")
    assert feed.headers["Content-Security-Policy"] == "sandbox"


def test_every_answer_has_the_headers_that_browsers_heed(client, path):
    answers = [client.put(path, b"x"), client.post(path, b"y"), client.get(path), client.head(path)]
    answers += [client.get(path + "-missing"), client("PATCH", path), client.get("/healthz"), client("OPTIONS", path)]
    answers += [client.get(path, if_none_match=tag_of(answers[2])), client.get(f"{path}?offset=x")]
    for answer in answers:
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert answer["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer["Date"] is not None


def test_pages_of_this_machine_are_let_in(client, path):
    client.put(path, b"hello")
    answer = client.get(path, origin="http://localhost:3000")
    assert answer["Access-Control-Allow-Origin"] == "http://localhost:3000"
    assert "stream-next-offset" in answer["Access-Control-Expose-Headers"]
    assert "Origin" in varies(answer)
    appended = client.post(path, b"!", origin="http://localhost:3000")
    assert (appended.status, appended["Access-Control-Allow-Origin"]) == (204, "http://localhost:3000")
    feed = client.follow(f"{path}?offset=-1&live=sse", origin="http://localhost:3000")
    assert feed.headers["Access-Control-Allow-Origin"] == "http://localhost:3000"


def test_an_answer_that_caches_keep_varies_by_origin_whoever_asked_first(client, path):
    """Fetch standard, "CORS protocol and HTTP caches": a copy made for a client without Origin lacks
    Access-Control-Allow-Origin, and a cache that does not know better gives it to a page."""
    client.put(path, b"hello")
    answer = client.get(path)
    assert answer["Cache-Control"].startswith("public")
    assert "Origin" in varies(answer)


def test_other_pages_are_kept_out(client, path):
    client.put(path, b"hello")
    for method in ("GET", "POST", "DELETE"):
        answer = client(method, path, b"x" if method == "POST" else None, origin="https://evil.example")
        assert (answer.status, answer["Access-Control-Allow-Origin"]) == (403, None)
    assert client.get(path).body == b"hello"


def test_a_preflight_lists_what_is_allowed(client, path):
    allowed = client("OPTIONS", path, origin="http://localhost:3000", access_control_request_method="PUT")
    assert allowed.status == 204
    assert allowed["Access-Control-Allow-Origin"] == "http://localhost:3000"
    assert "PUT" in allowed["Access-Control-Allow-Methods"]
    assert "if-none-match" in allowed["Access-Control-Allow-Headers"]
    refused = client("OPTIONS", path, origin="https://evil.example", access_control_request_method="PUT")
    assert refused["Access-Control-Allow-Origin"] is None


def test_a_name_that_points_here_from_elsewhere_is_not_served(client, path):
    client.put(path, b"hello")
    answer = client.get(path, host="evil.example")
    assert (answer.status, answer.code()) == (421, "unknown_host")


# --- operators


def test_health_and_readiness(client):
    assert (client.get("/healthz").status, client.get("/healthz").body) == (200, b"ok\n")
    assert (client.get("/readyz/local").status, client.get("/readyz/local").body) == (200, b"ready\n")
    assert client.head("/healthz").body == b""


def test_metrics_are_what_prometheus_reads(client, path):
    client.put(path, b"hello")
    client.get(path)
    client.get(path + "-missing")
    answer = client.get("/metrics")
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    requests = {
        (sample.labels["method"], sample.labels["status"]): sample.value
        for sample in families["millstream_http_requests"].samples
    }
    assert requests["PUT", "201"] >= 1
    assert requests["GET", "200"] >= 1
    assert requests["GET", "404"] >= 1
    values = {name: family.samples[0].value for name, family in families.items() if family.samples}
    assert values["millstream_journal_commits"] >= 1
    assert values["millstream_hot_bytes"] >= 5
    assert values["millstream_hot_streams"] >= 1
    assert values["millstream_ready"] == 1
    assert all(family.documentation for family in families.values())


def test_live_readers_are_counted_while_they_wait(client, path):
    def count() -> float:
        families = text_string_to_metric_families(client.get("/metrics").body.decode())
        return next(family.samples[0].value for family in families if family.name == "millstream_live_readers")

    eventually(lambda: count() == 0)  # those of other stories have hung up
    client.put(path)
    feed = client.follow(f"{path}?offset=-1&live=sse")
    feed.next()
    assert count() == 1
    client.delete(path)
    assert feed.rest() == []
    assert count() == 0


@pytest.mark.parametrize("method", ["PATCH", "TRACE", "PROPFIND"])
def test_a_method_that_a_stream_does_not_know(client, path, method):
    answer = client(method, path)
    assert answer.status == 405
    assert {"GET", "HEAD", "PUT", "POST", "DELETE"} <= set(answer["Allow"].split(", "))
    assert answer.code() == "method_not_allowed"


def test_operators_routes_are_read_only(client):
    for route in ("/healthz", "/readyz/local", "/metrics"):
        answer = client.post(route, b"x")
        assert (answer.status, answer["Allow"]) == (405, "GET, HEAD")


def test_unknown_routes_are_404_and_say_so_in_json(client):
    for route in ("/v1", "/v1/nothing", "/v1/stream"):
        answer = client.get(route)
        assert (answer.status, answer.code()) == (404, "unknown_route")


def test_a_stream_needs_a_good_name(client):
    for name in ("", "a/../b", "a%00b", "shop/streams", "%ff", "x" * 1025):
        answer = client.put(f"/v1/stream/{name}")
        assert (answer.status, answer.code()) == (400, "bad_name")
