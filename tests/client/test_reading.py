"""Reading and following: every way to iterate, every way to resume, every way to be live."""

from __future__ import annotations

import random
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from tests.client.proxy import Fault

from millstream.client import (
    NOW,
    BadRequest,
    Bookmark,
    NotFound,
    ProtocolError,
    Retry,
    StreamRecreated,
    encode_frame,
)

LIVE = (True, "sse", "long-poll")


@pytest.fixture
def stream(client, name):
    made = client.stream(name)
    made.create("application/json")
    return made


@contextmanager
def meanwhile(*acts, after_s=0.05):
    """Does these things one after another in the background."""

    def act():
        for each in acts:
            time.sleep(after_s)
            each()

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()


# --- catch-up


def test_an_empty_stream(stream):
    reader = stream.read()
    assert list(reader) == []
    assert reader.up_to_date
    assert not reader.closed
    assert [batch.data for batch in stream.read().batches(empty=True)] == [b"[]"]


def test_reads_are_put_together(client, name):
    stream = client.stream(name)
    stream.create("text/plain")
    for part in ("one ", "two ", "three"):
        stream.append(part)
    reader = stream.read(max_bytes=4)
    assert [batch.data for batch in reader] == [b"one ", b"two ", b"thre", b"e"]
    assert reader.up_to_date
    assert stream.read().read_all() == b"one two three"


def test_offsets_and_bookmarks_resume(stream):
    stream.append_many([1, 2])
    reader = stream.read()
    assert list(reader.json()) == [1, 2]
    saved = str(reader.bookmark)
    stream.append_many([3, 4])
    assert list(stream.read(Bookmark.parse(saved)).json()) == [3, 4]
    assert list(stream.read(reader.offset).json()) == [3, 4]
    assert list(stream.read(NOW).json()) == []


def test_a_bookmark_moves_only_behind_what_was_handed_out(stream):
    stream.append_many([1, 2, 3])
    reader = stream.read()
    items = reader.json()
    assert [next(items), next(items)] == [1, 2]
    assert reader.offset == "-1"
    assert list(items) == [3]
    assert reader.offset == stream.head().offset


def test_a_bookmark_of_another_incarnation_is_refused(client, name, stream):
    stream.append(1)
    reader = stream.read()
    list(reader)
    stream.delete()
    stream.create("application/json", body=b"[1, 2, 3]")
    with pytest.raises(StreamRecreated):
        list(stream.read(reader.bookmark))
    assert list(stream.read(reader.bookmark.offset).json()) == [2, 3]


def test_from_a_time_on(stream):
    stream.append("before")
    time.sleep(0.05)
    moment = datetime.now(UTC)
    time.sleep(0.05)
    stream.append("after")
    assert list(stream.read(timestamp=moment).json()) == ["after"]
    assert list(stream.read(timestamp=int(moment.timestamp() * 1000)).json()) == ["after"]


def test_a_bad_offset_says_so(stream):
    with pytest.raises(BadRequest, match="offset"):
        list(stream.read("nonsense"))
    with pytest.raises(ValueError, match="empty"):
        stream.read("")
    with pytest.raises(ValueError, match="live"):
        list(stream.read(live="eventually"))


def test_json_arrives_as_it_was_sent(stream):
    raw = b'{"big":12345678901234567890,"a":1.0,"a":1e2,"half":"\\ud83d"}'
    stream.append(raw)
    (batch,) = stream.read()
    assert batch.raw_messages() == [raw]
    (item,) = batch.json()
    assert item["big"] == 12345678901234567890
    assert item["half"] == "\ud83d"


def test_text_breaks_no_character(client, name):
    text = "aé🌊" * 20
    stream = client.stream(name)
    stream.create("text/plain", body=text)
    assert "".join(stream.read(max_bytes=3).text()) == text
    assert list(stream.read().text()) == [text]


def test_frames_come_back_whole(client, name):
    messages = [b"", b"one", b"x" * 5000, b"drei"]
    stream = client.stream(name)
    stream.create("application/octet-stream")
    stream.append(b"".join(map(encode_frame, messages)))
    reader = stream.read(max_bytes=600)
    assert list(reader.frames()) == messages
    assert reader.offset == stream.head().offset


# --- live


@pytest.mark.parametrize("live", LIVE)
def test_following(stream, live):
    stream.append("there")
    got = []
    with meanwhile(lambda: stream.append("one"), lambda: stream.append("two"), lambda: stream.close("end")):
        reader = stream.read(live=live)
        got.extend(reader.json())
    assert got == ["there", "one", "two", "end"]
    assert reader.closed
    assert reader.offset == stream.head().offset


@pytest.mark.parametrize("live", LIVE)
def test_following_from_now(stream, live):
    stream.append("old")
    with meanwhile(lambda: stream.append("new"), stream.close, after_s=0.3):
        assert list(stream.tail(NOW, live=live).json()) == ["new"]


@pytest.mark.parametrize("live", LIVE)
@pytest.mark.parametrize(
    ("content_type", "data"),
    [
        ("application/octet-stream", bytes(range(256)) * 10),
        ("text/plain", "Grüße\n\n data: x\n 🌊".encode()),
        ("application/json", b'["a\\nb",{"x":[1]}]'),
    ],
)
def test_data_is_the_same_in_every_mode(client, name, content_type, data, live):
    stream = client.stream(name)
    stream.create(content_type)
    stream.append(data)
    with meanwhile(lambda: stream.append(data), stream.close):
        got = b"".join(stream.read(live=live).chunks())
    if content_type == "application/json":
        got = got.replace(b"][", b",")
        assert got == b"[" + data[1:-1] + b"," + data[1:-1] + b"]"
    else:
        assert got == data * 2


def test_line_ends_stay_unless_sse_is_asked_for(client, name):
    stream = client.stream(name)
    stream.create("text/plain")
    with meanwhile(lambda: stream.append("a\r\nb\rc\n"), stream.close):
        assert b"".join(stream.tail().chunks()) == b"a\r\nb\rc\n"
    assert b"".join(stream.tail(live="sse").chunks()) == b"a\nb\nc\n"


@pytest.mark.parametrize("live", LIVE)
def test_a_closed_stream_ends_at_once(stream, live):
    stream.close("all")
    started = time.monotonic()
    assert list(stream.tail(live=live).json()) == ["all"]
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("live", LIVE)
def test_idle(stream, live):
    stream.append(1)
    started = time.monotonic()
    assert list(stream.tail(live=live, idle_s=0.3).json()) == [1]
    assert 0.25 < time.monotonic() - started < 3


@pytest.mark.parametrize("live", LIVE)
def test_a_stream_that_is_deleted_under_its_reader(stream, live):
    with meanwhile(lambda: stream.append(1), stream.delete), pytest.raises(NotFound):
        for _ in stream.tail(live=live):
            pass


# --- what can break


@pytest.mark.parametrize("live", LIVE)
def test_reconnects_lose_and_repeat_nothing(make_client, proxy, name, live):
    patient = make_client(proxy.url, retry=Retry(retries_max=None, delay_s=0.001, delay_max_s=0.01))
    stream = patient.stream(name)
    stream.create("application/json")
    for cut_after in (900, 100, 600, 700, 800, 500) * 3:
        proxy.add(Fault(count=2, cut_after=cut_after, matches=lambda seen: seen.method == "GET"))
    acts = [lambda n=n: stream.append_many(range(n * 10, n * 10 + 10)) for n in range(20)]
    with meanwhile(*acts, stream.close, after_s=0.02):
        assert list(stream.tail(live=live).json()) == list(range(200))


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize("live", [False, "long-poll"])
def test_an_answer_that_breaks_off_is_never_taken_as_whole(make_client, proxy, name, live, encoding):
    patient = make_client(proxy.url, retry=Retry(retries_max=None, delay_s=0.001, delay_max_s=0.01))
    stream = patient.stream(name)
    stream.create("application/json")
    for n in range(12):
        stream.append_many([random.Random(n).randbytes(500_000).hex()])
    stream.close()
    for cut_after in (2_000_000, 1_000_000, 2_000, 1_500_000):
        proxy.add(Fault(cut_after=cut_after, matches=lambda seen: seen.method == "GET"))
    read = stream.read(live=live, headers={"Accept-Encoding": encoding})
    assert list(read.json()) == [random.Random(n).randbytes(500_000).hex() for n in range(12)]
    reads = [seen.target for seen in proxy.requests if seen.method == "GET"]
    assert len(reads) >= 6
    assert all("max_bytes=4194304" in target for target in reads), "an answer must fit into memory"


@pytest.mark.parametrize("status", [500, 429])
@pytest.mark.parametrize("live", [False, *LIVE])
def test_trouble_is_waited_out(through_proxy, proxy, name, status, live):
    stream = through_proxy.stream(name)
    stream.create("application/json", body=b"[1,2]", closed=True)
    proxy.add(Fault(count=2, status=status, matches=lambda seen: seen.method == "GET"))
    proxy.add(Fault(refuse=True, matches=lambda seen: seen.method == "GET"))
    assert list(stream.read(live=live).json()) == [1, 2]


@pytest.mark.parametrize("status", [400, 501])
def test_without_sse_there_is_long_poll(through_proxy, proxy, name, status):
    stream = through_proxy.stream(name)
    stream.create("application/json", body=b"[1]")
    proxy.add(Fault(count=100, status=status, matches=lambda seen: "live=sse" in seen.target))
    with meanwhile(lambda: stream.append(2), stream.close):
        assert list(stream.tail(live="sse").json()) == [1, 2]
    assert sum("live=sse" in seen.target for seen in proxy.requests) == 1


def test_sse_that_is_cut_off_each_time_gives_way_to_long_poll(through_proxy, proxy, name):
    stream = through_proxy.stream(name)
    stream.create("application/json", body=b"[1]")
    silent = {"Content-Type": "text/event-stream"}
    proxy.add(Fault(count=100, status=200, headers=silent, matches=lambda seen: "live=sse" in seen.target))
    with meanwhile(lambda: stream.append(2), stream.close, after_s=0.3):
        assert list(stream.tail().json()) == [1, 2]
    assert any("live=long-poll" in seen.target for seen in proxy.requests)


@pytest.mark.parametrize(
    "body",
    [b'[{"a":1},{"b"', b"{broken", b'{"no":"array"}', b"[1,2", b"[\xff\xfe]"],
)
def test_json_that_is_broken_is_no_data(through_proxy, proxy, name, body):
    stream = through_proxy.stream(name)
    stream.create("application/json")
    headers = {"Stream-Next-Offset": "5", "Stream-Up-To-Date": "true", "Content-Type": "application/json"}
    proxy.add(Fault(status=200, headers=headers, body=body, matches=lambda seen: seen.method == "GET"))
    with pytest.raises(ProtocolError):
        list(stream.read().json())
    assert list(stream.read().json()) == []


@pytest.mark.parametrize(
    ("events", "fine"),
    [
        (b'event: future\ndata:{"v":2}\n\n', True),
        (b": comment\n\n", True),
        (b"event: control\ndata:{broken\n\n", False),
        (b"event: control\ndata:\n\n", False),
        (b'event: control\ndata:{"upToDate":true}\n\n', False),
    ],
)
def test_events_of_other_kinds_are_skipped_and_broken_ones_are_not(through_proxy, proxy, name, events, fine):
    stream = through_proxy.stream(name)
    stream.create("text/plain", body="text")
    end = b'event: data\ndata:text\n\nevent: control\ndata:{"streamNextOffset":"4","streamClosed":true}\n\n'
    headers = {"Content-Type": "text/event-stream"}
    proxy.add(Fault(status=200, headers=headers, body=events + end, matches=lambda seen: seen.method == "GET"))
    if fine:
        assert "".join(stream.tail(live="sse").text()) == "text"
    else:
        with pytest.raises(ProtocolError):
            list(stream.tail(live="sse"))


@pytest.mark.parametrize("live", LIVE)
def test_leaving_the_loop_closes_the_connection(through_proxy, proxy, name, live):
    stream = through_proxy.stream(name)
    stream.create("application/octet-stream", body=b"data")
    with stream.tail(live=live) as reader:
        for _ in reader:
            break
    proxy.wait_for_connections(0)
