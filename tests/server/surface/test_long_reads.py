"""One catch-up request brings everything up to the tail: whole, as it was announced, or visibly cut."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
import time

import pytest
import zstandard
from tests.server.surface.client import JSON, TEXT, eventually, tag_of, varies

MEGABYTE = 1_000_000
LARGE = 20 * MEGABYTE
HOT = {"checkpoint_age_s": 3600, "checkpoint_bytes": "1GiB", "hot_bytes_max": "1GiB"}
COLD = {"checkpoint_age_s": 0.1, "part_bytes": "4MiB"}
SMALL_BUFFER = 64 << 10


@pytest.fixture(scope="module")
def hot(module_server):
    return module_server(HOT)


@pytest.fixture(scope="module")
def cold(module_server):
    return module_server(COLD)


@pytest.fixture(params=["hot", "cold"])
def running(request):
    return request.getfixturevalue(request.param)


def metric(client, name):
    lines = client.get("/metrics").body.decode().splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} "))


def settle(client):
    """Everything is in segments by now."""
    eventually(lambda: metric(client, "millstream_hot_bytes") == 0)


def text_of(size):
    return b"".join(b"%015d\n" % number for number in range(-(-size // 16)))[:size]


def fill(client, path, text, append_bytes=3 * MEGABYTE):
    client.put(path)
    for at in range(0, len(text), append_bytes):
        assert client.post(path, text[at : at + append_bytes]).status == 204


def fill_json(client, path, messages, per_append):
    client.put(path, content_type=JSON)
    for some in batched(messages, per_append):
        assert client.post(path, b"[" + b",".join(some) + b"]", JSON).status == 204


def batched(messages, count):
    for at in range(0, len(messages), count):
        yield messages[at : at + count]


def place_of(running, client):
    """Bring what was written to where the server under test has it."""
    if running.settings.get("checkpoint_age_s") == COLD["checkpoint_age_s"]:
        settle(client)


def tail_of(client, path):
    return client.head(path)["Stream-Next-Offset"]


class SlowReader:
    """A response that is read as slowly as the test likes, over a small receive buffer."""

    def __init__(self, port, path, *lines):
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        self._socket.settimeout(20)
        self._socket.connect(("127.0.0.1", port))
        head = "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *lines, "", ""])
        self._socket.sendall(head.encode())
        self.response = http.client.HTTPResponse(self._socket)
        self.response.begin()

    def read(self, size):
        return self.response.read(size)

    def close(self):
        self.response.close()
        self._socket.close()


@pytest.fixture
def slowly():
    readers = []

    def start(running, path, *lines):
        readers.append(SlowReader(running.port, path, *lines))
        return readers[-1]

    yield start
    for reader in readers:
        reader.close()


# --- whole


def test_one_request_brings_all_of_a_text(running, connect, path):
    client, text = connect(running), text_of(LARGE)
    fill(client, path, text)
    place_of(running, client)
    answer = client.get(path)
    assert answer.body == text
    assert int(answer["Content-Length"]) == len(text)
    assert answer["Stream-Up-To-Date"] == "true"
    assert answer["Stream-Closed"] is None
    assert answer["Stream-Next-Offset"] == tail_of(client, path) == f"{len(text):020d}"
    assert client.get(f"{path}?offset=7654321").body == text[7654321:]


@pytest.mark.parametrize(("size", "count", "per_append"), [(500_000, 40, 3), (60, 100_000, 20_000), (60, 30_000, 1)])
def test_one_request_brings_all_messages(running, connect, path, size, count, per_append):
    client = connect(running)
    messages = [b'{"n":%d,"x":"%b"}' % (number, b"x" * (number % size)) for number in range(count)]
    if per_append == 1:
        messages = messages[::10]
    fill_json(client, path, messages, per_append)
    place_of(running, client)
    answer = client.get(path)
    assert answer.body == b"[" + b",".join(messages) + b"]"
    assert int(answer["Content-Length"]) == len(answer.body)
    assert answer["Stream-Up-To-Date"] == "true"
    second = len(messages[0])
    assert client.get(f"{path}?offset={second}").body == b"[" + b",".join(messages[1:]) + b"]"
    within = client.get(f"{path}?offset={second + 1}")
    assert (within.status, within.code()) == (400, "offset_not_a_boundary")


def test_what_is_partly_in_memory_and_partly_in_segments(server, connect):
    running = server(COLD)
    client, text = connect(running), text_of(6 * MEGABYTE)
    messages = [b'{"n":%d}' % number for number in range(300_000)]
    fill(client, "/v1/stream/text", text)
    fill_json(client, "/v1/stream/json", messages[:200_000], 20_000)
    settle(client)
    running.restart(HOT)
    fill(client, "/v1/stream/text", text)
    for some in batched(messages[200_000:], 30_000):
        client.post("/v1/stream/json", b"[" + b",".join(some) + b"]", JSON)
    assert client.get("/v1/stream/text").body == text + text
    assert client.get("/v1/stream/json").body == b"[" + b",".join(messages) + b"]"
    assert metric(client, "millstream_hot_bytes") > 0


def test_a_single_large_message(running, connect, path):
    client = connect(running)
    message = b'"%b"' % (b"y" * (30 * MEGABYTE))
    fill_json(client, path, [b"1", message, b"2"], 1)
    place_of(running, client)
    assert client.get(path).body == b"[1,%b,2]" % message
    assert client.get(f"{path}?max_bytes=5000000").body == b"[1]"
    assert client.get(f"{path}?offset=1&max_bytes=5000000").body == b"[%b]" % message


def test_a_closed_stream_says_so(running, connect, path):
    client, text = connect(running), text_of(5 * MEGABYTE)
    client.put(path, text, stream_closed="true")
    place_of(running, client)
    for answer in (client.get(path), client.get(f"{path}?offset=-1&live=long-poll")):
        assert answer.body == text
        assert (answer["Stream-Closed"], answer["Stream-Up-To-Date"]) == ("true", "true")
        assert tag_of(answer).endswith(':c"')


def test_a_long_poll_that_has_something_to_say_says_all(running, connect, path):
    client, text = connect(running), text_of(5 * MEGABYTE)
    fill(client, path, text)
    place_of(running, client)
    answer = client.get(f"{path}?offset=-1&live=long-poll")
    assert answer.body == text
    assert int(answer["Stream-Cursor"]) > 0


def test_a_long_answer_that_now_waited_for_is_not_kept_by_caches(client, path):
    client.put(path)
    waiting = client.send("GET", f"{path}?offset=now&live=long-poll&timeout_ms=8000")
    time.sleep(0.1)
    client.post(path, text_of(3 * MEGABYTE))
    answer = waiting.answer()
    assert answer.body == text_of(3 * MEGABYTE)
    assert (answer["Cache-Control"], answer["ETag"]) == ("no-store", None)


def test_the_tag_is_that_of_the_range_and_saves_sending_it_again(running, connect, path):
    client, text = connect(running), text_of(3 * MEGABYTE)
    fill(client, path, text)
    place_of(running, client)
    first = client.get(path)
    assert tag_of(first) == f'"{first["Stream-Id"]}:0:{len(text)}"'
    again = client.get(path, if_none_match=tag_of(first))
    assert (again.status, again.body, tag_of(again)) == (304, b"", tag_of(first))
    client.post(path, b"more")
    assert client.get(path, if_none_match=tag_of(first)).status == 200


@pytest.mark.parametrize(
    ("accepted", "unpack"),
    [("gzip", gzip.decompress), ("zstd", lambda body: zstandard.ZstdDecompressor().decompressobj().decompress(body))],
)
def test_it_comes_compressed_to_who_asks(running, connect, path, accepted, unpack):
    client = connect(running)
    messages = [b'{"n":%d}' % number for number in range(400_000)]
    fill_json(client, path, messages, 40_000)
    place_of(running, client)
    answer = client.get(path, accept_encoding=accepted)
    assert unpack(answer.body) == b"[" + b",".join(messages) + b"]"
    assert (answer["Content-Encoding"], answer["Transfer-Encoding"]) == (accepted, "chunked")
    assert "Accept-Encoding" in varies(answer)
    assert tag_of(answer) == "W/" + tag_of(client.get(path))
    assert client.get(path, if_none_match=tag_of(answer)).status == 304


def test_http_1_0_is_told_the_length_too(running, connect, path):
    client, text = connect(running), text_of(3 * MEGABYTE)
    fill(client, path, text)
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
        sock.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        head, _, body = sock.makefile("rb").read().partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(text) in head
    assert body == text


def test_requests_behind_a_long_answer_are_served_after_it(running, connect, path):
    client, text = connect(running), text_of(3 * MEGABYTE)
    fill(client, path, text)
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 2)
        received = sock.makefile("rb")
        for _ in range(2):
            assert received.readline() == b"HTTP/1.1 200 OK\r\n"
            head = http.client.parse_headers(received)
            assert received.read(int(head["Content-Length"])) == text


# --- limits


def test_readers_may_ask_for_less(running, connect, path):
    client, text = connect(running), text_of(5 * MEGABYTE)
    fill(client, path, text, append_bytes=700_000)
    place_of(running, client)
    parts, offset = [], 0
    while offset < len(text):
        answer = client.get(f"{path}?offset={offset}&max_bytes=2000000")
        parts.append(answer.body)
        offset += len(answer.body)
        assert int(answer["Stream-Next-Offset"]) == offset
        assert answer["Stream-Up-To-Date"] == ("true" if offset == len(text) else None)
    assert b"".join(parts) == text
    assert [len(part) for part in parts] == [1_400_000, 1_400_000, 1_400_000, 800_000]
    assert client.get(f"{path}?max_bytes=100000000").body == text


def test_pages_of_messages_end_with_one(running, connect, path):
    client = connect(running)
    messages = [b'{"n":%d}' % number for number in range(400_000)]
    fill_json(client, path, messages, 40_000)
    place_of(running, client)
    first = client.get(f"{path}?max_bytes=1500000")
    assert 1_499_980 <= int(first["Stream-Next-Offset"]) <= 1_500_000
    rest = client.get(f"{path}?offset={first['Stream-Next-Offset']}")
    assert json.loads(first.body) + json.loads(rest.body) == [{"n": number} for number in range(400_000)]


def test_an_operator_may_give_less(server, connect):
    client, text = connect(server({"read_bytes_max": "2MiB"})), text_of(5 * MEGABYTE)
    fill(client, "/v1/stream/a", text, append_bytes=100_000)
    for query in ("", "?max_bytes=4000000"):
        answer = client.get(f"/v1/stream/a{query}")
        assert answer.body == text[:2_000_000]
        assert (answer["Stream-Next-Offset"], answer["Stream-Up-To-Date"]) == (f"{2_000_000:020d}", None)


# --- while the stream changes


def test_it_ends_where_the_tail_was(running, connect, path, slowly):
    client, text = connect(running), text_of(8 * MEGABYTE)
    fill(client, path, text)
    place_of(running, client)
    reader = slowly(running, path)
    for _ in range(3):
        client.post(path, b"later" * 100_000)
        place_of(running, client)
    client.close_stream(path)
    assert reader.response.headers["Content-Length"] == str(len(text))
    assert reader.response.headers["Stream-Closed"] is None
    assert reader.read(None) == text


def test_messages_end_where_the_tail_was(running, connect, path, slowly):
    client = connect(running)
    messages = [b'{"n":%d}' % number for number in range(600_000)]
    fill_json(client, path, messages, 40_000)
    place_of(running, client)
    reader = slowly(running, path)
    for number in range(4):
        client.post(path, b'"later %d"' % number, JSON)
        place_of(running, client)
    assert reader.read(None) == b"[" + b",".join(messages) + b"]"


def cut_short(reader, announced):
    """The connection ends before what was announced has come."""
    got = 0
    try:
        while piece := reader.read(1 << 20):
            got += len(piece)
    except (http.client.IncompleteRead, ConnectionResetError) as error:
        got += len(getattr(error, "partial", b""))
    return got < announced


@pytest.mark.parametrize("ending", ["delete", "again", "trim"])
def test_what_is_deleted_or_trimmed_meanwhile_ends_the_connection(running, connect, slowly, ending):
    client = connect(running)
    client("PUT", "/ds/cutshort")
    path = f"/ds/cutshort/{ending}"
    fill(client, path, text_of(LARGE))
    place_of(running, client)
    reader = slowly(running, path)
    assert reader.read(1000) == text_of(1000)
    if ending == "trim":
        assert client("PUT", f"{path}/snapshot/{tail_of(client, path)}", b"all of it").status == 204
    else:
        client.delete(path)
    if ending == "again":
        fill(client, path, text_of(LARGE))
        place_of(running, client)
    assert cut_short(reader, LARGE)
    assert "Traceback" not in running.log()


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize("content_type", [TEXT, JSON])
def test_damage_in_the_middle_never_looks_complete(server, connect, slowly, content_type, encoding):
    running = server(COLD)
    client, path = connect(running), "/v1/stream/damaged"
    messages = [b'"%07d%b"' % (number, b"x" * 91) for number in range(100_000)]
    client.put(path, content_type=content_type)
    for some in batched(messages, 20_000):
        client.post(path, b"[" + b",".join(some) + b"]" if content_type == JSON else b"".join(some), content_type)
    settle(client)
    running.stop()
    for segment in (running.data_dir / "objects" / "segments").iterdir():
        segment.write_bytes(segment.read_bytes().replace(messages[60_000], messages[60_000].replace(b"x", b"y")))
    running.start()
    reader = slowly(running, path, f"Accept-Encoding: {encoding}")
    assert reader.response.status == 200
    if encoding == "gzip":
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            reader.read(None)
    else:
        announced = int(reader.response.headers["Content-Length"])
        assert announced == 100_000 * 100 + (100_001 if content_type == JSON else 0)
        assert cut_short(reader, announced)
    answer = client.get(f"{path}?offset={60_000 * 100}")
    assert (answer.status, answer.code()) == (503, "corrupt_data")
    assert "Traceback" not in running.log()


def test_it_is_read_whole_while_segments_are_merged(server, connect, slowly):
    running = server({**COLD, "merge_segments_min": 2, "checkpoint_age_s": 0.05})
    client, path = connect(running), "/v1/stream/json"
    messages = [b'{"n":%d,"x":"%b"}' % (number, b"x" * 50) for number in range(120_000)]
    fill_json(client, path, messages, 10_000)
    settle(client)
    before = metric(client, "millstream_merges_total")
    readers = [slowly(running, path) for _ in range(4)]
    pieces = [[] for _ in readers]
    give_up = time.monotonic() + 20
    while metric(client, "millstream_merges_total") < before + 3 and time.monotonic() < give_up:
        client.post(path, b'"later"', JSON)
        for reader, got in zip(readers, pieces, strict=True):
            got.append(reader.read(200_000))
    assert metric(client, "millstream_merges_total") >= before + 3
    for reader, got in zip(readers, pieces, strict=True):
        got.append(reader.read(None))
        assert b"".join(got) == b"[" + b",".join(messages) + b"]"


def test_a_read_keeps_its_stream_alive(server, connect, slowly):
    """A sliding TTL, and a read that takes longer than that."""
    running = server({**COLD, "drain_timeout_s": 60})
    client, path, text = connect(running), "/v1/stream/brief", text_of(LARGE)
    client.put(path, stream_ttl="2")
    for at in range(0, LARGE, 4 * MEGABYTE):
        client.post(path, text[at : at + 4 * MEGABYTE])
    reader = slowly(running, path)
    got = [reader.read(100_000)]
    time.sleep(4)
    got.append(reader.read(None))
    assert b"".join(got) == text
    assert client.head(path).status == 200


def test_what_has_begun_may_end_when_the_server_stops(server, connect, slowly):
    running = server(COLD)
    client, path, text = connect(running), "/v1/stream/last", text_of(LARGE)
    fill(client, path, text)
    settle(client)
    reader = slowly(running, path)
    got = [reader.read(1000)]
    stopping = threading.Thread(target=running.stop)
    stopping.start()
    time.sleep(0.3)
    got.append(reader.read(None))
    stopping.join()
    assert b"".join(got) == text


# --- bounds


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_slow_readers_cost_a_few_pieces_each(server, connect, slowly):
    running = server(COLD)
    client, path, text = connect(running), "/v1/stream/large", text_of(LARGE)
    fill(client, path, text, append_bytes=100_000)
    settle(client)
    assert client.get(path).body == text
    before = resident_bytes(running.pid)
    readers = [slowly(running, path) for _ in range(20)]
    for reader in readers:
        reader.read(1000)
    time.sleep(0.5)
    assert resident_bytes(running.pid) - before < 20 * 3 * MEGABYTE


def test_others_are_served_while_a_long_answer_goes_out(server, connect):
    running = server(COLD)
    client, path, text = connect(running), "/v1/stream/large", text_of(LARGE)
    for _ in range(5):
        fill(client, path, text)
    settle(client)
    ended = threading.Event()

    def read_on():
        other = connect(running)
        while not ended.is_set():
            assert len(other.get(path).body) == 5 * LARGE

    reading = threading.Thread(target=read_on)
    reading.start()
    taken = []
    try:
        client.put("/v1/stream/small")
        for _ in range(50):
            began = time.monotonic()
            client.post("/v1/stream/small", b"x")
            taken.append(time.monotonic() - began)
    finally:
        ended.set()
        reading.join()
    assert sorted(taken)[25] < 0.1
