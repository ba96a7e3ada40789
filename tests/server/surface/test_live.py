"""Reads that wait: long-poll and Server-Sent Events, and how each of them ends."""

from __future__ import annotations

import base64
import json
import socket
import time
from itertools import pairwise

import pytest
from tests.server.surface.client import (
    EVENT_BYTES_MAX,
    JSON,
    control,
    data,
    eventually,
    tag_of,
)

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


def told(feed):
    """The next data, if any, and what its control event says."""
    event, text = feed.next(), ""
    if event.type == "data":
        text, event = event.data, feed.next()
    said = control(event)
    assert event.id == said["streamNextOffset"]
    return text, int(said["streamNextOffset"]), said.get("upToDate", False), said.get("streamClosed", False)


def test_a_character_in_two_appends_comes_whole(client, path):
    client.put(path, b"a\xe2\x82")
    first, second = (client.follow(f"{path}?offset=-1&live=sse") for _ in range(2))
    assert told(first) == ("a", 1, True, False)  # nothing more can be said before the rest is there
    assert told(second) == ("a", 1, True, False)
    client.post(path, b"\xacb\xf0")
    again = client.follow(f"{path}?offset=-1&live=sse", last_event_id="1")
    for feed in (first, second, again):
        assert told(feed) == ("€b", 5, True, False)
    late = client.follow(f"{path}?offset=5&live=sse")
    assert told(late) == ("", 5, True, False)
    for byte in (b"\x9f", b"\x98"):
        client.post(path, byte)
        assert {told(feed) for feed in (first, second, again, late)} == {("", 5, True, False)}
    client.post(path, b"\x80!")
    assert {told(feed) for feed in (first, second, again, late)} == {("😀!", 10, True, False)}
    assert client.head(path)["Stream-Next-Offset"] == f"{10:020d}"


def test_a_line_end_in_two_appends_is_one(client, path):
    client.put(path, b"one\r")
    feed = client.follow(f"{path}?offset=-1&live=sse")
    assert told(feed) == ("one", 3, True, False)
    client.post(path, b"\ntwo\r")
    assert told(feed) == ("\ntwo", 8, True, False)
    client.post(path, b"\r")
    assert told(feed) == ("\n", 9, True, False)
    client.post(path, b"three")
    assert told(feed) == ("\nthree", 15, True, False)


@pytest.mark.parametrize("end", [b"\xe2\x82", b"\r"])
def test_closing_brings_what_was_held_back(client, path, end):
    client.put(path, b"a" + end)
    feeds = [client.follow(f"{path}?offset={offset}&live=sse") for offset in (0, 0, 1)]
    size = 1 + len(end)
    assert [told(feed) for feed in feeds] == [("a", 1, True, False)] * 2 + [("", 1, True, False)]
    client.close_stream(path)
    shown = end.decode(errors="replace").replace("\r", "\n")
    for feed in feeds:
        assert told(feed) == (shown, size, True, True)
        assert feed.next() is None
    late = client.follow(f"{path}?offset=0&live=sse")
    assert told(late) == ("a" + shown, size, True, True)


def test_closing_with_the_rest_of_a_character(client, path):
    client.put(path, b"a\xe2")
    feed = client.follow(f"{path}?offset=-1&live=sse")
    assert told(feed) == ("a", 1, True, False)
    client.post(path, b"\x82\xac", stream_closed="true")
    assert told(feed) == ("€", 4, True, True)


@pytest.mark.parametrize(
    "broken", [b"\xff", b"\xc0", b"\xed\xa0", b"\xe0\x80", b"\xf4\x90", b"\x80\x80", b"\xf0\x9f\x41"]
)
def test_what_never_becomes_a_character_is_not_waited_for(client, path, broken):
    client.put(path, b"a" + broken)
    feed = client.follow(f"{path}?offset=-1&live=sse")
    assert told(feed) == ("a" + broken.decode(errors="replace"), 1 + len(broken), True, False)


def test_a_reader_may_start_inside_a_character(client, path):
    client.put(path, "€b".encode())
    feed = client.follow(f"{path}?offset=1&live=sse")
    assert told(feed) == ("\ufffd\ufffdb", 4, True, False)


def test_characters_come_whole_wherever_they_lie(server, connect):
    """Each byte is an append of its own, many of them a block of its own."""
    running = server({"checkpoint_age_s": 0.05, "block_bytes": "1KiB"})
    client, path, text = connect(running), "/v1/stream/a", "é€😀\r\n" * 8
    client.put(path)
    live = client.follow(f"{path}?offset=-1&live=sse")
    for number, byte in enumerate(text.encode()):
        client.post(path, bytes([byte]))
        if number % 5 == 0:
            time.sleep(0.06)
    client.close_stream(path)
    shown = text.replace("\r\n", "\n")
    assert "".join(data(live.rest())) == shown
    running.restart()
    assert "".join(data(client.follow(f"{path}?offset=-1&live=sse").rest())) == shown


@pytest.mark.parametrize("charset", ["iso-8859-1", '"UTF-16"', "windows-1252"])
def test_text_in_another_charset_is_base64(client, path, charset):
    client.put(path, "é\r".encode("latin-1"), f"text/plain; charset={charset}")
    feed = client.follow(f"{path}?offset=-1&live=sse")
    assert feed.headers["Stream-SSE-Data-Encoding"] == "base64"
    assert told(feed) == (base64.b64encode(b"\xe9\r").decode(), 2, True, False)


@pytest.mark.parametrize(
    "content_type", ["text/plain; charset=UTF-8", 'text/plain;charset="utf-8"', "text/x; charset=us-ascii"]
)
def test_text_in_utf8_is_text(client, path, content_type):
    client.put(path, b"hi", content_type)
    feed = client.follow(f"{path}?offset=-1&live=sse")
    assert feed.headers["Stream-SSE-Data-Encoding"] is None
    assert told(feed) == ("hi", 2, True, False)


def test_a_feed_at_the_end_of_a_closed_stream_says_so_in_its_head(client, path):
    client.put(path, b"hi", stream_closed="true")
    for offset in ("now", "2"):
        feed = client.follow(f"{path}?offset={offset}&live=sse")
        assert (feed.headers["Stream-Closed"], feed.headers["Stream-Up-To-Date"]) == ("true", "true")
        assert feed.headers["Stream-Next-Offset"] == f"{2:020d}"
        assert told(feed) == ("", 2, True, True)
    assert client.follow(f"{path}?offset=0&live=sse").headers["Stream-Closed"] is None


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


# --- damage


def test_a_follower_that_comes_to_damaged_data_is_let_go_and_nobody_else(server, connect):
    """The head of the response is out: only its end can say that there is an error to be asked for."""
    running = server({"checkpoint_age_s": 0.1})
    client = connect(running)
    path, other = "/v1/stream/damaged", "/v1/stream/sound"
    client.put(path, b"x" * 5000)  # too large to share its block with the other
    client.put(other, b"sound")
    segments = running.data_dir / "objects" / "segments"
    eventually(lambda: any(b"x" * 5000 in segment.read_bytes() for segment in segments.iterdir()))
    running.stop()
    for segment in segments.iterdir():
        segment.write_bytes(segment.read_bytes().replace(b"x" * 5000, b"x" * 4999 + b"y"))
    running.start()
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as sock:
        sock.sendall(
            b"GET %b?offset=0&live=sse HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path.encode()
        )
        head, _, body = sock.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == b"0\r\n\r\n", "an end, not a second response inside the first"
    assert client.get(path).code() == "corrupt_data"
    assert data(client.follow(f"{other}?offset=0&live=sse").until_up_to_date()) == ["sound"]
    assert "Traceback" not in running.log()
    assert client.get("/readyz/local").body == b"ready\n1 damaged places are not served. Run 'millstream doctor'.\n"
    assert b"\nmillstream_damaged_places 1.0\n" in client.get("/metrics").body
    assert running.log().count("cannot be read") == 1
