"""The bucket feed over HTTP: how it follows, by long-poll and SSE."""

import base64
import json
import queue
import threading
import time

import httpx
import pytest
from tests.server.feed.bucket import Bucket, names
from tests.server.settling import settle

KINDS = ("position", "stream", "kind", "first_offset", "next_offset", "timestamp_ms", "content_type")


def test_a_long_poll_answers_when_something_happens(bucket):
    bucket.create("a")
    after = bucket.page(after="now")["next_position"]
    threading.Timer(0.2, lambda: httpx.post(f"{bucket.client.base_url}{bucket.base}/a", content=b"x",
                                            headers={"Content-Type": "text/plain"})).start()  # fmt: skip
    begun = time.monotonic()
    page = bucket.page(after=after, live="long-poll", timeout_ms=10_000, data="true")
    assert time.monotonic() - begun < 5
    assert [entry["kind"] for entry in page["entries"]] == ["appended"]
    assert page["entries"][0]["messages"] == [base64.b64encode(b"x").decode()]
    at_once = bucket.page(after=after, live="long-poll")
    assert at_once["entries"][0]["position"] == page["entries"][0]["position"]


def test_a_long_poll_whose_time_is_up(bucket):
    bucket.create("a")
    bucket.create("b")
    after = bucket.page(after="now")["next_position"]
    bucket.append("b", b"x")
    answer = bucket.feed(after=after, live="long-poll", timeout_ms=100, prefix="a")
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["Stream-Up-To-Date"] == "true"
    assert bucket.kinds(after=answer.headers["Stream-Next-Position"]) == []


def test_a_long_poll_outlasts_checkpoints_and_changes_that_are_not_wanted(client):
    bucket, other = Bucket(client, next(names)), Bucket(client, next(names))
    bucket.create("a")
    bucket.create("b")
    for wanted, expected in (([], 204), ([b"x"], 200)):
        other.create(f"elsewhere-{expected}")
        answers = queue.SimpleQueue()
        asking = threading.Thread(target=poll, args=(bucket, answers), daemon=True)
        asking.start()
        time.sleep(0.1)
        other.append(f"elsewhere-{expected}", b"x")
        settle(client)  # what the reader waits behind is archived now
        time.sleep(0.2)
        bucket.append("b", b"x")
        for message in wanted:
            settle(client)
            bucket.append("a", message)
        answer, waited_s = answers.get(timeout=10)
        asking.join()
        assert answer.status_code == expected, answer.text
        assert wanted or waited_s >= 1.5
        if wanted:
            assert [entry["stream"] for entry in answer.json()["entries"]] == ["a"]


def poll(bucket, answers):
    begun = time.monotonic()
    with httpx.Client(base_url=bucket.client.base_url, timeout=20) as own:
        query = {"after": "now", "prefix": "a", "live": "long-poll", "timeout_ms": 1500}
        answer = own.get(f"{bucket.base}/streams/feed", params=query)
    answers.put((answer, time.monotonic() - begun))


@pytest.fixture(scope="module")
def long_history(module_server):
    """A bucket whose archive is in many chunks, more than are read for one page."""
    running = module_server({"checkpoint_age_s": 0.05, "merge_segments_min": 10_000})
    with httpx.Client(base_url=running.url, timeout=20) as client:
        bucket = Bucket(client, "long")
        bucket.create("a")
        for _ in range(30):
            for _ in range(80):
                bucket.append("a", b"x")
            settle(client)
        yield bucket


def test_a_long_poll_on_a_long_history_ends_in_time(long_history):
    after, steps = "earliest", 0
    while True:
        answer = long_history.feed(after=after, prefix="nobody", live="long-poll", timeout_ms=0)
        assert answer.status_code == 204
        assert answer.headers["Stream-Next-Position"] != after
        after, steps = answer.headers["Stream-Next-Position"], steps + 1
        if "Stream-Up-To-Date" in answer.headers:
            break
        assert long_history.kinds(after=after)
    assert steps > 1
    assert after == long_history.page(after="now")["next_position"]
    unhurried = long_history.feed(after="earliest", prefix="nobody", live="long-poll", timeout_ms=3000)
    assert (unhurried.status_code, unhurried.headers["Stream-Up-To-Date"]) == (204, "true")


def test_sse_says_how_far_it_is_while_nothing_is_wanted(long_history):
    query = {"after": "earliest", "live": "sse", "prefix": "nobody"}
    events = Events(long_history.client, f"{long_history.base}/streams/feed", query)
    name, control, position = events.next()
    assert (name, control) == ("control", {"nextPosition": position})  # there is more to look through
    while "upToDate" not in control:
        name, control, position = events.next()
        assert name == "control"
    assert position == long_history.page(after="now")["next_position"]
    for _ in range(1100):
        long_history.append("a", b"x")
    name, control, later = events.next()
    assert (name, control["nextPosition"]) == ("control", later)
    assert int(later.split(".")[1]) - int(position.split(".")[1]) >= 1000
    events.close()


class Events:
    """An SSE connection: events as (name, data, id)."""

    def __init__(self, client, url, params, headers=None):
        self._context = client.stream("GET", url, params=params, headers=headers or {})
        self.answer = self._context.__enter__()
        assert self.answer.status_code == 200
        assert self.answer.headers["Content-Type"] == "text/event-stream"
        self._lines = self.answer.iter_lines()

    def next(self):
        name, data, id_ = "", [], None
        for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data:"):
                data.append(line.removeprefix("data:"))
            elif line.startswith("id: "):
                id_ = line.removeprefix("id: ")
            elif not line and name:
                return name, json.loads("\n".join(data)), id_
        return None

    def entries(self, count):
        """At least so many entries, and the last id."""
        found, last = [], None
        while len(found) < count:
            name, data, _ = self.next()
            assert name == "data"
            found += data
            name, control, last = self.next()
            assert name == "control"
            assert control["nextPosition"] == last
        return found, last

    def close(self):
        self._context.__exit__(None, None, None)


def test_sse_sends_history_then_follows(bucket):
    bucket.create("a", b"[1]", "application/json")
    bucket.settle()
    events = Events(bucket.client, f"{bucket.base}/streams/feed", {"after": "earliest", "live": "sse", "data": "true"})
    history, _ = events.entries(2)
    assert [entry["kind"] for entry in history] == ["created", "appended"]
    for number in range(5):
        bucket.append("a", b'{"n":\n%d}' % number, "application/json")
    followed, last = events.entries(5)
    assert [entry["messages"] for entry in followed] == [[{"n": number}] for number in range(5)]
    events.close()
    bucket.append("a", b"6", "application/json")
    again = Events(
        bucket.client,
        f"{bucket.base}/streams/feed",
        {"after": "earliest", "live": "sse", "data": "true"},
        {"Last-Event-ID": last},
    )
    resumed, _ = again.entries(1)
    assert [entry["messages"] for entry in resumed] == [[6]]
    again.close()


def test_sse_begins_with_a_control_event_when_there_is_nothing_to_send(bucket):
    bucket.create("a")
    events = Events(bucket.client, f"{bucket.base}/streams/feed", {"after": "now", "live": "sse"})
    name, control, position = events.next()
    assert name == "control"
    assert control == {"nextPosition": position, "upToDate": True}
    other = Bucket(bucket.client, next(names))
    other.create("foreign", b"x")
    bucket.append("a", b"x")
    found, _ = events.entries(1)
    assert [(entry["stream"], entry["kind"]) for entry in found] == [("a", "appended")]
    events.close()


def test_sse_from_behind_begins_with_a_control_event_when_nothing_there_is_wanted(bucket):
    bucket.create("a")
    bucket.create("b")
    start = bucket.page(after="now")["next_position"]
    bucket.append("b", b"x")
    bucket.settle()
    query = {"after": start, "live": "sse", "prefix": "a"}
    events = Events(bucket.client, f"{bucket.base}/streams/feed", query)
    name, control, position = events.next()
    assert (name, control) == ("control", {"nextPosition": position, "upToDate": True})
    assert bucket.kinds(after=position) == []
    bucket.append("b", b"y")
    bucket.append("a", b"z")
    found, _ = events.entries(1)
    assert [entry["stream"] for entry in found] == ["a"]
    events.close()


def test_many_followers_get_the_same_and_each_at_its_place(bucket):
    bucket.create("a")
    bucket.create("b")
    start = bucket.page(after="now")["next_position"]
    bucket.append("a", b"early")
    url = f"{bucket.base}/streams/feed"
    everyone = [
        Events(bucket.client, url, {"after": start if index % 2 else "now", "live": "sse", "prefix": prefix})
        for index, prefix in enumerate(["", "", "a", "b", "", ""])
    ]
    for events in (*everyone[::2], everyone[3]):
        assert events.next()[0] == "control"
    for number in range(20):
        bucket.append("ab"[number % 2], b"%d" % number)
    for index, (events, prefix) in enumerate(zip(everyone, ["", "", "a", "b", "", ""], strict=True)):
        expected = [stream for stream in ["a"] * (index % 2) + ["a", "b"] * 10 if stream.startswith(prefix)]
        found, _ = events.entries(len(expected))
        assert [entry["stream"] for entry in found] == expected
        events.close()


def test_sse_goes_on_over_checkpoints(client):
    bucket = Bucket(client, next(names))
    bucket.create("a")
    events = Events(client, f"{bucket.base}/streams/feed", {"after": "now", "live": "sse"})
    assert events.next()[0] == "control"
    found = []
    for _ in range(5):
        for _ in range(20):
            bucket.append("a", b"x")
        settle(client)
    while len(found) < 100:
        more, _ = events.entries(1)
        found += more
    assert [entry["first_offset"] for entry in found] == list(range(100))
    events.close()
