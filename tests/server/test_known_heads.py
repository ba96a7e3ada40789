"""Requests that are looked up instead of parsed must be what the parser would have made of them."""

from __future__ import annotations

import asyncio

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from millstream.model.names import key_of_flat_path
from millstream.protocol.http.requests import PlainAppend, PlainRead, Request, append_command
from millstream.server.guard import Guard
from millstream.server.http_listener import HttpListener
from millstream.server.known_heads import KnownHeads
from millstream.server.settings import Settings

HEAD_BYTES_MAX = 4096
PART_BYTES = 100
HOST = b"a"


class Parsed:
    """All requests in some bytes, as llhttp sees them."""

    def __init__(self, data: bytes) -> None:
        self.requests: list[Request] = []
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body, self._headers = b"", b"", {}
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        path, _, query = self._url.partition(b"?")
        parser = self._parser
        kept, version = parser.should_keep_alive(), parser.get_http_version()
        request = Request(parser.get_method(), path, query, self._headers, self._body, kept, version)
        request.body_size = len(self._body)
        self.requests.append(request)
        self._url, self._body, self._headers = b"", b"", {}


def heads_of(head_bytes_max: int = HEAD_BYTES_MAX) -> KnownHeads:
    guard = Guard(Settings(insecure=True))
    assert guard.allows_host(HOST)  # as when a request was served
    return KnownHeads(head_bytes_max, PART_BYTES, guard)


def taught(*seen: bytes) -> KnownHeads:
    heads = heads_of()
    for data in seen:
        (request,) = Parsed(data).requests
        heads.learn(data, request)
    return heads


def message(method: bytes = b"GET", target: bytes = b"/s", lines: bytes = b"Host: a\r\n", body: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body) if body else b""
    return b"%b %b HTTP/1.1\r\n%b%b\r\n%b" % (method, target, lines, length, body)


def as_parsed(request: Request) -> Request:
    """Without what was found out about it."""
    return Request(*(getattr(request, field) for field in Request.__struct_fields__))


targets = st.binary(max_size=30).map(lambda raw: b"/" + raw)
values = st.text(st.characters(codec="latin-1", exclude_characters="\r\n\0"), max_size=20).map(
    lambda text: text.encode("latin-1")
)
names = st.sampled_from([b"Accept", b"content-type", b"X-One", b"User-Agent", b"Connection"])
header_lines = st.lists(st.tuples(names, values), max_size=4, unique_by=lambda pair: pair[0].lower()).map(
    lambda pairs: b"Host: a\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in pairs)
)
methods = st.sampled_from([b"GET", b"POST", b"HEAD", b"PUT", b"get"])


@given(methods, targets, targets, header_lines, st.binary(max_size=40), st.binary(max_size=40))
def test_what_is_recalled_is_what_the_parser_says(method, first, then, lines, body, next_body):
    heads = heads_of()
    seen, asked = message(method, first, lines, body), message(method, then, lines, next_body)
    try:
        (request,) = Parsed(seen).requests
        heads.learn(seen, request)
    except (httptools.HttpParserError, ValueError):
        pass  # nothing to learn from
    for _ in range(2):
        recalled = heads.recall(asked)
        if recalled is not None:
            assert [as_parsed(recalled)] == Parsed(asked).requests


@pytest.mark.parametrize("method", [b"GET", b"POST", b"HEAD"])
def test_the_same_lines_are_known_for_another_path_and_another_body(method):
    heads = taught(message(method, b"/one", body=b"abc"))
    request = heads.recall(message(method, b"/two?offset=-1", body=b"xyz"))
    assert request is not None
    assert (request.method, request.path, request.query, request.body) == (method, b"/two", b"offset=-1", b"xyz")
    assert request.keep_alive


KNOWN = message(b"POST", body=b"abc")


@pytest.mark.parametrize(
    "data",
    [
        KNOWN[:-1],
        KNOWN + b"x",
        KNOWN + KNOWN,
        KNOWN[: KNOWN.index(b"\r\n\r\n")],
        b"\r\n" + KNOWN,
        KNOWN.replace(b"HTTP/1.1", b"HTTP/1.0"),
        KNOWN.replace(b"HTTP/1.1", b"HTTP/1.1 "),
        KNOWN.replace(b"/s", b"/s#part"),
        KNOWN.replace(b"/s", b"http://a/s"),
        KNOWN.replace(b"/s", b"/s\t"),
        KNOWN.replace(b"/s", b"/s\xff"),
        KNOWN.replace(b"/s", b"/" + b"x" * 1025),
        KNOWN.replace(b"POST", b"PATCH"),
        KNOWN.replace(b"Host: a", b"Host: b"),
        KNOWN.replace(b"Host: a", b"Host:  a"),
        KNOWN.replace(b"Length: 3", b"Length: 03"),
        b"",
    ],
)
def test_whatever_differs_goes_to_the_parser(data):
    heads = taught(KNOWN)
    assert heads.recall(KNOWN) is not None
    assert heads.recall(data) is None


@pytest.mark.parametrize(
    "lines",
    [
        b"Host: a\r\nConnection: close\r\n",
        b"Host: a\r\nExpect: 100-continue\r\n",
        b"Host: a\r\nProducer-Seq: 1\r\n",
        b"Host: a\r\nStream-Seq: 1\r\n",
        b"Host: a\r\nIf-Match: *\r\n",
        b"Host: a\r\nIf-None-Match: *\r\n",
        b"Host: a\r\nX-Long: " + b"x" * 1024 + b"\r\n",
    ],
)
def test_what_is_framed_otherwise_or_never_repeats_is_not_learnt(lines):
    data = message(b"POST", lines=lines, body=b"abc")
    assert taught(data).recall(data) is None


def test_a_chunked_body_is_never_known():
    data = message(b"POST", lines=b"Host: a\r\nTransfer-Encoding: chunked\r\n") + b"3\r\nabc\r\n0\r\n\r\n"
    assert taught(data).recall(data) is None


def test_a_head_above_the_limit_goes_to_the_parser_which_refuses_it():
    heads = heads_of(64)
    short, long = message(target=b"/s"), message(target=b"/" + b"s" * 64)
    heads.learn(short, Parsed(short).requests[0])
    assert heads.recall(short) is not None
    assert heads.recall(long) is None


def test_clients_cannot_fill_the_memory():
    heads = taught(*(message(lines=b"Host: a\r\nX-Id: %d\r\n" % number) for number in range(5000)))
    assert len(heads._known) <= 4096
    heads = taught(message())
    for number in range(5000):
        assert heads.recall(message(target=b"/%d" % number)) is not None
    assert len(heads._whole) <= 4096


def test_a_request_without_a_body_is_known_as_a_whole():
    heads = taught(message(target=b"/s?offset=1"))
    first = heads.recall(message(target=b"/s?offset=2"))
    assert first is not None
    assert heads.recall(message(target=b"/s?offset=2")) is first
    assert heads.recall(message(target=b"/s?offset=3")) is not first


@pytest.mark.parametrize(
    ("lines", "is_plain"),
    [
        (b"Host: a\r\n", True),
        (b"Host: a\r\nAccept: */*\r\nAccept-Encoding: identity\r\n", True),
        (b"Host: a\r\nAccept-Encoding: gzip\r\n", False),
        (b"Host: a\r\nOrigin: http://a\r\n", False),
        (b"Host: elsewhere\r\n", False),
    ],
)
def test_a_read_is_plain_where_everybody_gets_the_same_answer(lines, is_plain):
    data = message(target=b"/s?offset=2", lines=lines)
    read = taught(data).recall(data)
    assert type(read) is (PlainRead if is_plain else Request)
    if type(read) is PlainRead:
        assert read.asked == read.target == b"/s?offset=2"


def test_a_connection_that_seldom_repeats_itself_is_looked_at_again_after_a_while():
    asyncio.run(_repeat_seldom())


async def _repeat_seldom() -> None:
    listener = HttpListener(Settings(listen="127.0.0.1:0"))
    host, port = await listener.start()
    known: list[bool] = []

    def recall(data: bytes, recall=listener.heads.recall) -> Request | None:
        request = recall(data)
        known.append(request is not None)
        return request

    listener.heads.recall = recall
    reader, writer = await asyncio.open_connection(host, port)

    async def looked_up(lines: bytes) -> list[bool]:
        known.clear()
        writer.write(message(target=b"/healthz", lines=b"Host: localhost\r\n" + lines))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head
        assert await reader.readexactly(3) == b"ok\n"
        return known

    for number in range(64):
        assert await looked_up(b"X-Id: %d\r\n" % number) == [False]
    for _ in range(256):
        assert await looked_up(b"") == []
    answers = [list(await looked_up(b"")) for _ in range(260)]
    assert answers[0] == [False]  # and learnt
    assert answers[-1] == [True]
    writer.close()
    await listener.stop()


# --- plain appends --------------------------------------------------------------------------------------


TEXT = b"Host: a\r\nContent-Type: text/plain\r\n"


def post(path: bytes, lines: bytes = TEXT, body: bytes = b"abc") -> bytes:
    return message(b"POST", b"/v1/stream/" + path, lines, body)


paths = st.one_of(
    st.sampled_from(
        [
            *(b"s", b"streams", b"a/streams", b"streams/a", b"streams-1", b"__ds", b"__x/a", b"a/__dsx", b"a/b/c"),
            *(b"ds", b"ds/a", b"v1/a", b"ui-1/a", b"readyz/a", b"metrics", b"cluster_1", b"a/ds"),
        ]
    ),
    st.from_regex(rb"[a-z_s%./-]{1,12}", fullmatch=True),
)
bodies = st.one_of(st.binary(min_size=1, max_size=20), st.sampled_from([b"[]", b"[1,2]", b"{}", b'{"a":', b" 7 "]))
types = st.sampled_from([b"text/plain", b"application/json", b"Application/JSON; charset=utf-8"])


@given(paths, bodies, types)
def test_a_plain_append_is_the_command_that_the_long_way_makes_of_it(path, body, content_type):
    lines = b"Host: a\r\nContent-Type: %b\r\n" % content_type
    asked = post(path, lines, body)
    recalled = taught(post(b"other", lines, body)).recall(asked)
    assert recalled is not None
    if type(recalled) is PlainAppend:
        (request,) = Parsed(asked).requests
        wanted = append_command(request, key_of_flat_path(path))
        assert str(recalled.command) == str(wanted)  # a fault is an exception, which equals only itself
        assert recalled.request == replace(request, path=b"/v1/stream/", body=b"")


@pytest.mark.parametrize("path", [b"s", b"bucket/s", b"a-b_C9", b"xstreams", b"ds-1/s", b"v11", b"a/ds", b"uix/s"])
def test_most_appends_are_plain(path):
    assert type(taught(post(b"other")).recall(post(path))) is PlainAppend


@pytest.mark.parametrize(
    ("path", "lines", "body"),
    [
        (b"streams", TEXT, b"abc"),
        (b"a/streams", TEXT, b"abc"),
        (b"__ds", TEXT, b"abc"),
        (b"readyz/cluster", TEXT, b"abc"),
        (b"ui", TEXT, b"abc"),
        (b"a/b/c", TEXT, b"abc"),
        (b"s?x=1", TEXT, b"abc"),
        (b"s", TEXT, b"x" * (PART_BYTES + 1)),
        (b"s", TEXT, b""),
        (b"s", b"Host: a\r\n", b"abc"),
        (b"s", b"Host: other\r\nContent-Type: text/plain\r\n", b"abc"),
        (b"s", TEXT + b"Origin: http://a\r\n", b"abc"),
        (b"s", TEXT + b"Stream-Closed: true\r\n", b"abc"),
        (b"s", TEXT + b"Producer-Id: p\r\n", b"abc"),
        (b"s", TEXT + b"Producer-Epoch: 1\r\n", b"abc"),
        (b"s", TEXT + b"Stream-Forked-From: a\r\n", b"abc"),
        (b"s", TEXT + b"Content-Encoding: gzip\r\n", b"abc"),
        (b"s", b"Host: a\r\nContent-Type: no media type\r\n", b"abc"),
    ],
)
def test_what_is_more_than_an_append_goes_the_long_way(path, lines, body):
    request = taught(post(b"other", lines, body)).recall(post(path, lines, body))
    assert type(request) is Request
