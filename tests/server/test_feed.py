"""The bucket feed over HTTP: what it tells, from where, and how it follows."""

import base64
import json
import threading
import time

import httpx
import pytest
from tests.server.settling import settle

KINDS = ("position", "stream", "kind", "first_offset", "next_offset", "timestamp_ms", "content_type")


class Bucket:
    """A bucket of its own on a running server, and short words for what the tests do to it."""

    def __init__(self, client, name, prefix="/ds"):
        self.client = client
        self.name = name
        self.base = f"{prefix}/{name}"
        client.put(self.base).raise_for_status()

    def create(self, stream, body=b"", kind="text/plain", **headers):
        answer = self.client.put(f"{self.base}/{stream}", content=body, headers={"Content-Type": kind, **headers})
        assert answer.status_code == 201, answer.text

    def append(self, stream, body, kind="text/plain", **headers):
        answer = self.client.post(f"{self.base}/{stream}", content=body, headers={"Content-Type": kind, **headers})
        assert answer.status_code in (200, 204), answer.text

    def close(self, stream):
        assert self.client.post(f"{self.base}/{stream}", headers={"Stream-Closed": "true"}).status_code == 204

    def delete(self, stream):
        assert self.client.delete(f"{self.base}/{stream}").status_code == 204

    def feed(self, **query):
        return self.client.get(f"{self.base}/streams/feed", params=query)

    def page(self, **query):
        answer = self.feed(**query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert page["bucket_id"] == self.name
        assert answer.headers["Stream-Next-Position"] == page["next_position"]
        assert (answer.headers.get("Stream-Up-To-Date") == "true") == page["up_to_date"]
        return page

    def entries(self, after="earliest", **query):
        """All entries behind a position, over as many pages as it takes."""
        found = []
        while True:
            page = self.page(after=after, **query)
            found += page["entries"]
            after = page["next_position"]
            if page["up_to_date"]:
                return found

    def kinds(self, **query):
        return [(entry["stream"], entry["kind"]) for entry in self.entries(**query)]


@pytest.fixture(scope="module")
def client(module_server):
    running = module_server({"checkpoint_age_s": 0.1, "sse_heartbeat_s": 0.3})
    with httpx.Client(base_url=running.url, timeout=20) as client:
        client.running = running
        yield client


@pytest.fixture(scope="module")
def quiet(module_server):
    """A server that archives nothing in the time of a test."""
    running = module_server({"checkpoint_age_s": 3600})
    with httpx.Client(base_url=running.url, timeout=20) as client:
        yield client


names = iter(f"bucket-{number}" for number in range(1000))


@pytest.fixture(params=["archived", "in memory"])
def bucket(request):
    """A bucket whose history is read from the archive, or from memory: it makes no difference."""
    archived = request.param == "archived"
    made = Bucket(request.getfixturevalue("client" if archived else "quiet"), next(names))
    made.settle = (lambda: settle(made.client)) if archived else (lambda: None)
    return made


def test_every_change_is_an_entry_in_commit_order(bucket):
    bucket.create("a", b"one")
    bucket.append("a", b"two")
    bucket.create("b", b"[1,2]", "application/json")
    bucket.append("a", b"three", **{"Stream-Closed": "true"})
    bucket.close("b")
    snapshot = f"{bucket.base}/a/snapshot/{3:020d}"
    assert bucket.client.put(snapshot, content=b"state", headers={"Content-Type": "text/plain"}).status_code < 300
    bucket.delete("b")
    bucket.settle()
    entries = bucket.entries()
    assert [(e["stream"], e["kind"], e["first_offset"], e["next_offset"]) for e in entries] == [
        ("a", "created", 0, 0),
        ("a", "appended", 0, 3),
        ("a", "appended", 3, 6),
        ("b", "created", 0, 0),
        ("b", "appended", 0, 2),
        ("a", "appended", 6, 11),
        ("a", "closed", 11, 11),
        ("b", "closed", 2, 2),
        ("a", "snapshot", 3, 3),
        ("b", "deleted", 2, 2),
    ]
    assert all(tuple(entry) == KINDS for entry in entries)
    assert entries[5]["position"] == entries[6]["position"]
    times = [entry["timestamp_ms"] for entry in entries]
    assert times == sorted(times)
    assert abs(times[-1] / 1000 - time.time()) < 60


def test_with_data_entries_carry_the_messages(bucket):
    bucket.create("text", b"first words")
    bucket.create("json", b'[{"n": 1.0}, "two\\n"]', "application/json")
    bucket.append("json", b'{"odd":\n1e2}', "application/json")
    bucket.settle()
    text, first, second = [entry for entry in bucket.entries(data="true") if entry["kind"] == "appended"]
    assert (text["encoding"], text["messages"]) == ("base64", [base64.b64encode(b"first words").decode()])
    assert (first["encoding"], first["messages"]) == ("json", [{"n": 1.0}, "two\n"])
    assert (second["encoding"], second["messages"]) == ("json", [{"odd": 100.0}])
    created = bucket.entries(data="true")[0]
    assert "messages" not in created
    assert "encoding" not in created


def test_a_large_body_is_one_entry(bucket):
    body = bytes(range(256)) * 4096
    bucket.create("big", b"", "application/octet-stream")
    bucket.append("big", body, "application/octet-stream")
    bucket.append("big", b"tail", "application/octet-stream")
    bucket.settle()
    _, big, tail = bucket.entries(data="true")
    assert base64.b64decode(big["messages"][0]) == body
    assert base64.b64decode(tail["messages"][0]) == b"tail"


def test_deleted_and_trimmed_messages_are_gaps_wherever_they_lie(bucket):
    bucket.create("kept", b"[1,2]", "application/json")
    bucket.append("kept", b"[3,4]", "application/json")
    bucket.create("gone", b"data")
    bucket.settle()
    snapshot = f"{bucket.base}/kept/snapshot/{3:020d}"
    assert bucket.client.put(snapshot, content=b"state", headers={"Content-Type": "text/plain"}).status_code < 300
    bucket.delete("gone")
    expected = [
        ("kept", "created", 0, 0, None),
        ("kept", "gap", 0, 2, None),
        ("kept", "gap", 2, 3, None),
        ("kept", "appended", 3, 4, [4]),
        ("gone", "created", 0, 0, None),
        ("gone", "gap", 0, 4, None),
        ("kept", "snapshot", 3, 3, None),
        ("gone", "deleted", 4, 4, None),
    ]
    for _ in range(2):
        entries = bucket.entries(data="true")
        found = [(e["stream"], e["kind"], e["first_offset"], e["next_offset"], e.get("messages")) for e in entries]
        assert found == expected
        bucket.settle()
    assert ("gone", "appended") in bucket.kinds()  # what happened, happened


def test_pages_follow_each_other_without_loss(bucket):
    bucket.create("a")
    for number in range(25):
        bucket.append("a", b"%d" % number)
    bucket.settle()
    after, pages = "earliest", []
    while True:
        page = bucket.page(after=after, limit=4)
        pages += [entry["first_offset"] for entry in page["entries"] if entry["kind"] == "appended"]
        assert len(page["entries"]) <= 4
        after = page["next_position"]
        if page["up_to_date"]:
            break
    assert pages == [entry["first_offset"] for entry in bucket.entries() if entry["kind"] == "appended"]
    assert bucket.page(after=after)["entries"] == []


def test_two_entries_of_one_change_are_never_parted(bucket):
    bucket.create("a")
    bucket.append("a", b"last", **{"Stream-Closed": "true"})
    bucket.settle()
    page = bucket.page(limit=2)
    assert [entry["kind"] for entry in page["entries"]] == ["created"]
    rest = bucket.page(after=page["next_position"], limit=1)
    assert [entry["kind"] for entry in rest["entries"]] == ["appended", "closed"]


def test_a_page_with_data_keeps_to_read_bytes_max(module_server):
    running = module_server({"read_bytes_max": 1000, "checkpoint_age_s": 0.1})
    with httpx.Client(base_url=running.url, timeout=20) as client:
        bucket = Bucket(client, "bounded")
        bucket.create("a")
        for _ in range(6):
            bucket.append("a", b"x" * 400)
        bucket.append("a", b"y" * 4000)
        sizes = []
        after = "earliest"
        for _ in range(20):
            page = bucket.page(after=after, data="true")
            sizes.append([e["next_offset"] - e["first_offset"] for e in page["entries"] if e["kind"] == "appended"])
            after = page["next_position"]
            if page["up_to_date"]:
                break
        assert sum(map(sum, sizes)) == 6 * 400 + 4000
        assert all(sum(page) <= 1000 or page == [4000] for page in sizes)


def test_a_prefix_filters(bucket):
    for stream in ("user-1", "user-2", "other"):
        bucket.create(stream, b"x")
    bucket.settle()
    assert {stream for stream, _ in bucket.kinds(prefix="user-")} == {"user-1", "user-2"}
    assert bucket.kinds(prefix="nobody") == []


def test_after_now_and_after_a_time(bucket):
    bucket.create("a", b"early")
    bucket.settle()
    page = bucket.page(after="now")
    assert page["entries"] == []
    assert page["up_to_date"]
    time.sleep(0.01)
    between_ms = int(time.time() * 1000)
    time.sleep(0.01)
    bucket.append("a", b"late")
    bucket.settle()
    late = [("a", "appended")]
    assert bucket.kinds(after=page["next_position"]) == late
    assert bucket.kinds(after=str(between_ms)) == late
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between_ms / 1000)) + f".{between_ms % 1000:03d}Z"
    assert bucket.kinds(after=moment) == late
    assert bucket.kinds(after="2100-01-01T00:00:00Z") == []
    assert len(bucket.kinds(after="2000-01-01T00:00:00Z")) == 3


def test_both_prefixes_and_buckets_of_the_flat_surface_have_a_feed(client):
    client.put("/v1/stream/b/deep/path", content=b"x", headers={"Content-Type": "text/plain"})
    for base in ("/b", "/ds/b"):
        found = client.get(f"{base}/streams/feed", params={"prefix": "deep/"}).json()["entries"]
        assert [(entry["stream"], entry["kind"]) for entry in found] == [
            ("deep/path", "created"),
            ("deep/path", "appended"),
        ]
    client.put("/v1/stream/alone", content=b"x")
    assert client.get("/ds/_default/streams/feed").json()["entries"]


def test_expiry_is_told(client):
    bucket = Bucket(client, next(names))
    bucket.create("short", b"x", **{"Stream-TTL": "1"})
    after = bucket.page(after="now")["next_position"]
    give_up = time.monotonic() + 10
    while not (found := bucket.kinds(after=after)):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    assert found == [("short", "expired")]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("after=", "bad_position"),
        ("after=yesterday", "bad_position"),
        ("after=0123456789abcdef.", "bad_position"),
        ("after=0123456789abcdef.1.x", "bad_position"),
        ("after=2030-13-01T00:00:00Z", "bad_position"),
        ("after=now&after=now", "repeated_parameter"),
        ("limit=0", "bad_limit"),
        ("limit=1001", "bad_limit"),
        ("limit=many", "bad_limit"),
        ("data=yes", "bad_data"),
        ("live=always&after=now", "bad_live"),
        ("live=sse", "after_missing"),
        ("live=long-poll", "after_missing"),
        ("live=long-poll&after=now&timeout_ms=-1", "bad_timeout_ms"),
        ("prefix=%ff", "bad_query"),
    ],
)
def test_bad_parameters(client, query, code):
    answer = client.get(f"/ds/_default/streams/feed?{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


def test_other_methods_and_unknown_buckets(client):
    assert client.get("/ds/nowhere/streams/feed").json()["error"]["code"] == "bucket_not_found"
    refused = client.post("/ds/nowhere/streams/feed")
    assert (refused.status_code, refused.headers["Allow"]) == (405, "GET, OPTIONS")
    assert client.get("/ds/nowhere/streams/feed/more").json()["error"]["code"] == "unknown_route"


def test_a_position_ahead_or_of_another_log_is_refused(client):
    bucket = Bucket(client, next(names))
    token = bucket.page(after="now")["next_position"]
    incarnation, sequence = token.split(".")
    ahead = bucket.feed(after=f"{incarnation}.{int(sequence) + 1000000}")
    assert (ahead.status_code, ahead.json()["error"]["code"]) == (400, "bad_position")
    shards = bucket.feed(after=f"{token}.1")
    assert (shards.status_code, shards.json()["error"]["code"]) == (400, "bad_position")
    other = bucket.feed(after=f"{int(incarnation, 16) ^ 1:016x}.0")
    assert (other.status_code, other.json()["error"]["code"]) == (410, "position_gone")
    assert other.headers["Stream-Earliest-Position"].startswith(incarnation)


def test_positions_survive_restarts_and_kills(server):
    running = server({"checkpoint_age_s": 0.1})
    expected, after = [], "earliest"
    for round_ in range(3):
        with httpx.Client(base_url=running.url, timeout=20) as client:
            if round_ == 0:
                bucket = Bucket(client, "survivor")
                bucket.create("a")
                expected.append(0)
            bucket.client = client
            for number in range(10):
                bucket.append("a", b"%d%d" % (round_, number))
            if round_ % 2:
                settle(client)
            found = bucket.entries(after=after, limit=3)
            assert len(found) == 10 + (round_ == 0)
            after = bucket.page(after="now")["next_position"]
            assert len(bucket.entries()) == 1 + 10 * (round_ + 1)
        running.kill() if round_ < 2 else running.stop()
        running.start()
    with httpx.Client(base_url=running.url, timeout=20) as client:
        bucket.client = client
        tails = [entry["next_offset"] for entry in bucket.entries(data="true")]
        assert tails == [0, *range(2, 62, 2)]
        assert bucket.entries(after=after) == []


def test_what_is_older_than_the_archive_is_410_with_the_way_on(server):
    running = server({"checkpoint_age_s": 0.1, "archive_bytes_max": 0})
    with httpx.Client(base_url=running.url, timeout=20) as client:
        bucket = Bucket(client, "forgetful")
        start = bucket.page(after="now")["next_position"]
        bucket.create("a", b"x")
        before_ms = int(time.time() * 1000)
        give_up = time.monotonic() + 10
        while (gone := bucket.feed(after=start)).status_code == 200:
            assert time.monotonic() < give_up, "the archive was not dropped"
            time.sleep(0.05)
        assert (gone.status_code, gone.json()["error"]["code"]) == (410, "position_gone")
        assert "messages" in gone.json()["error"]["message"]
        for mode in ("long-poll", "sse"):
            assert bucket.feed(after=start, live=mode).status_code == 410
        assert bucket.feed(after=str(before_ms - 60_000)).status_code == 410
        bucket.append("a", b"late")
        earliest = bucket.feed(after=gone.headers["Stream-Earliest-Position"])
        assert earliest.status_code in (200, 410)
        assert bucket.feed(after="earliest").status_code == 200


# --- live


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
    for events in everyone[::2]:
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
