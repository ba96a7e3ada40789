"""What the state machine does to streams, snapshots, a bucket and its transactions, and what must come back.

One server serves all examples; each example has a bucket of its own.
"""

from __future__ import annotations

import base64
import email
import email.policy
import itertools
import json
from collections import Counter, defaultdict
from typing import ClassVar

import httpx
import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.extensions.model import JSON, TEXT, Event, ModelBucket, ModelStream

NAMES = ("a", "b", "c/d")  # the last is made on the flat surface
ARROW = "application/vnd.apache.arrow.stream"
numbers = itertools.count()
names = st.sampled_from(NAMES)
words = st.lists(st.text("abcé\n", min_size=1, max_size=12).map(str.encode), min_size=1, max_size=4)
values = st.lists(st.integers(0, 999).map(lambda n: b'{"n":%d}' % n), min_size=1, max_size=4)


def url_name(name: str) -> str:
    return name.replace("/", "%2F")


class Operations(RuleBasedStateMachine):
    server = None  # set by the test
    done: ClassVar[Counter[str]]  # what was shown, and how often

    def __init__(self) -> None:
        super().__init__()
        self.client = httpx.Client(base_url=self.server.url, timeout=30)
        self.bucket = f"case-{next(numbers)}"
        self.model: ModelBucket | None = None
        self.position = "earliest"  # where the feed was read to
        self.fed = 0

    def teardown(self) -> None:
        self.client.close()

    # -- talking -------------------------------------------------------------------------------------------

    def url(self, name: str) -> str:
        return f"/ds/{self.bucket}/{url_name(name)}"

    def send(self, method: str, url: str, *, status: int, **options: object) -> httpx.Response:
        answer = self.client.request(method, url, **options)
        assert answer.status_code == status, (method, url, options, answer.status_code, answer.text)
        if status >= 400 and method != "HEAD":
            assert answer.json()["error"]["message"]
        return answer

    def stream(self, name: str) -> ModelStream | None:
        return self.model.streams.get(name) if self.model else None

    # -- the server ----------------------------------------------------------------------------------------

    @initialize()
    def first_bucket(self) -> None:
        """And something in it, as most rules do little without."""
        self.send("PUT", f"/ds/{self.bucket}", status=201)
        self.model = ModelBucket()
        for name, content_type in (("a", TEXT), ("b", JSON)):
            answer = self.send("PUT", self.url(name), headers={"content-type": content_type}, status=201)
            self.model.create(name, content_type, [], closed=False).stream_id = answer.headers["stream-id"]

    @rule(how=st.sampled_from(["nothing", "kill", "nothing", "nothing", "stop", "nothing"]))
    def restart(self, how: str) -> None:
        if how == "nothing":
            return
        self.server.kill() if how == "kill" else self.server.stop()
        self.server.start()
        self.done["restarts"] += 1

    # -- buckets and streams -------------------------------------------------------------------------------

    @rule()
    def make_the_bucket_again(self) -> None:
        self.send("PUT", f"/ds/{self.bucket}", status=409)

    @rule()
    def delete_a_bucket_that_is_not_empty(self) -> None:
        if self.model.streams:
            self.send("DELETE", f"/ds/{self.bucket}", status=409)

    @rule(name=names, content_type=st.sampled_from([TEXT, JSON]), closed=st.booleans(), data=st.data())
    def create(self, name: str, content_type: str, closed: bool, data: st.DataObject) -> None:
        messages = data.draw(st.just([]) | (values if content_type == JSON else words.map(lambda w: w[:1])))
        closed = closed and data.draw(st.booleans())
        headers = {"content-type": content_type} | ({"stream-closed": "true"} if closed else {})
        body = b"[%b]" % b",".join(messages) if content_type == JSON and messages else b"".join(messages)
        url = f"/v1/stream/{self.bucket}/{name}" if "/" in name else self.url(name)
        known = self.stream(name)
        if known is None:
            answer = self.send("PUT", url, headers=headers, content=body, status=201)
            stream = self.model.create(name, content_type, messages, closed)
            stream.stream_id = answer.headers["stream-id"]
        else:
            wanted = (content_type, closed, self.model.settings["ttl_seconds"])
            same = (known.content_type, known.closed, known.ttl_s) == wanted
            self.send("PUT", url, headers=headers, content=body, status=200 if same else 409)

    @rule(name=names)
    def delete(self, name: str) -> None:
        known = self.stream(name)
        self.send("DELETE", self.url(name), status=404 if known is None else 204)
        if known is not None:
            self.model.delete(name)

    @rule(name=names)
    def head(self, name: str) -> None:
        known = self.stream(name)
        answer = self.send("HEAD", self.url(name), status=404 if known is None else 200)
        if known is None:
            return
        told = answer.headers
        assert (int(told["stream-next-offset"]), told["content-type"]) == (known.tail, known.content_type)
        assert ("stream-closed" in told) == known.closed
        assert int(told.get("stream-earliest-offset", 0)) == known.earliest
        assert told.get("stream-snapshot-offset") == (f"{known.snapshot[0]:020d}" if known.snapshot else None)
        assert told["stream-id"] == known.stream_id or known.stream_id is None
        assert ("stream-ttl" in told) == (known.ttl_s is not None)
        assert known.ttl_s is None or known.ttl_s - 500 < int(told["stream-ttl"]) <= known.ttl_s

    # -- appending -----------------------------------------------------------------------------------------

    @rule(name=names, data=st.data(), closes=st.integers(0, 9).map(lambda n: n == 0))
    def append(self, name: str, data: st.DataObject, closes: bool) -> None:
        known = self.stream(name)
        kind = known.content_type if known else TEXT
        sent_kind = data.draw(st.sampled_from([kind, kind, kind, kind, TEXT, JSON]))
        messages = data.draw(values if sent_kind == JSON else words.map(lambda w: w[:1]))
        headers = {"content-type": sent_kind} | ({"stream-closed": "true"} if closes else {})
        seq = data.draw(st.none() | st.none() | st.sampled_from("abc"))
        headers |= {"stream-seq": seq} if seq else {}
        match = data.draw(st.sampled_from(["", "", "", "right", "wrong"]))
        headers |= {"if-match": self._etag(known, match == "right")} if match else {}
        producer = data.draw(st.none() | st.tuples(st.sampled_from("pq"), st.integers(0, 1), st.integers(0, 3)))
        if producer:
            fields = ("producer-id", "producer-epoch", "producer-seq")
            headers |= dict(zip(fields, map(str, producer), strict=True))
        body = b"[%b]" % b",".join(messages) if sent_kind == JSON else b"".join(messages)
        expected = self._judge(known, sent_kind, producer, match, seq)
        self.send("POST", self.url(name), headers=headers, content=body, status=expected)
        is_new = expected == (200 if producer else 204)
        if not is_new or (producer and self._is_duplicate(known, producer)):
            return
        self.model.append(name, messages)
        if seq:
            known.stream_seq = seq
        if producer:
            known.producers[producer[0]] = producer[1:]
        if closes:
            self.model.close(name)
            known.closed_by = producer

    def _etag(self, known: ModelStream | None, right: bool) -> str:
        if known is None or not right:
            return '"nothing"'
        if known.stream_id is None:  # a transaction has made it
            name = next(name for name, stream in self.model.streams.items() if stream is known)
            known.stream_id = self.send("HEAD", self.url(name), status=200).headers["stream-id"]
        return f'"{known.stream_id}:{known.tail}{":c" if known.closed else ""}"'

    def _is_duplicate(self, known: ModelStream, producer: tuple[str, int, int]) -> bool:
        state = known.producers.get(producer[0])
        return state is not None and producer[1] == state[0] and producer[2] <= state[1]

    def _judge(self, known, kind, producer, match, seq) -> int:  # noqa: C901 - the order of checks is the point
        """The order of checks: closed, content type, producer, If-Match, Stream-Seq."""
        if known is None:
            return 404
        if known.closed:
            return 204 if producer is not None and producer == known.closed_by else 409
        if kind != known.content_type:
            return 409
        if producer is not None:
            _, epoch, number = producer
            state = known.producers.get(producer[0])
            if state is None:
                if number != 0:
                    return 409
            elif epoch < state[0]:
                return 403
            elif epoch > state[0]:
                if number != 0:
                    return 400
            elif number <= state[1]:
                return 204
            elif number != state[1] + 1:
                return 409
        if match == "wrong":
            return 412
        if seq is not None and known.stream_seq is not None and seq <= known.stream_seq:
            return 409
        return 204 if producer is None else 200

    @rule(name=names)
    def close(self, name: str) -> None:
        known = self.stream(name)
        self.send("POST", self.url(name), headers={"stream-closed": "true"}, status=404 if known is None else 204)
        if known is not None and not known.closed:
            self.model.close(name)

    @rule(name=names, body=st.sampled_from([b"{", b"[1,", b"[]", b"", b"\xff"]))
    def append_what_is_no_json(self, name: str, body: bytes) -> None:
        known = self.stream(name)
        if known is not None and known.content_type == JSON and not known.closed:
            self.send("POST", self.url(name), headers={"content-type": JSON}, content=body, status=400)

    # -- reading -------------------------------------------------------------------------------------------

    @rule(name=names, data=st.data())
    def read(self, name: str, data: st.DataObject) -> None:
        known = self.stream(name)
        if known is None:
            self.send("GET", self.url(name), params={"offset": "-1"}, status=404)
            return
        places = sorted(known.boundaries | {known.tail + 1})
        offset = data.draw(st.sampled_from([*places, "-1", "now"]))
        answer = self.client.get(self.url(name), params={"offset": offset})
        start = {"now": known.tail, "-1": 0}.get(offset, offset)
        if start > known.tail:
            assert answer.status_code == 400
            return
        if start < known.earliest and not (offset == "-1" and known.snapshot is None):
            assert answer.status_code == 410
            assert int(answer.headers["stream-earliest-offset"]) == known.earliest
            return
        expected = known.kept(max(start, known.earliest))
        assert answer.status_code == 200, answer.text
        assert int(answer.headers["stream-next-offset"]) == known.tail
        if known.content_type == JSON:
            assert answer.content == b"[%b]" % b",".join(expected)
        else:
            assert answer.content == b"".join(expected)

    @rule(prefix=st.sampled_from(["", "a", "c/", "x"]))
    def list_streams(self, prefix: str) -> None:
        answer = self.send("GET", f"/ds/{self.bucket}/streams", params={"prefix": prefix}, status=200).json()
        found = {stream["stream_id"]: (stream["tail_offset"], stream["status"]) for stream in answer["streams"]}
        assert found == {
            name: (stream.tail, "closed" if stream.closed else "open")
            for name, stream in sorted(self.model.streams.items())
            if name.startswith(prefix)
        }

    # -- snapshots -----------------------------------------------------------------------------------------

    @rule(name=names, data=st.data(), trims=st.booleans(), value=st.binary(max_size=20))
    def publish(self, name: str, data: st.DataObject, trims: bool, value: bytes) -> None:
        known = self.stream(name)
        tail = known.tail if known else 0
        boundaries = sorted(known.boundaries) if known else [0]
        offset = data.draw(st.sampled_from(boundaries) | st.integers(0, tail + 2))
        url = f"{self.url(name)}/snapshot/{offset}?trim={str(trims).lower()}"
        expected = self._judge_snapshot(known, offset, value, trims)
        is_again = known is not None and known.snapshot == (offset, TEXT, value)
        self.send("PUT", url, content=value, headers={"content-type": TEXT}, status=expected)
        if expected == 204 and not (is_again and (not trims or known.earliest == offset)):
            self.model.publish(name, offset, TEXT, value, trims)

    def _judge_snapshot(self, known: ModelStream | None, offset: int, value: bytes, trims: bool) -> int:
        if known is None:
            return 404
        if offset < known.earliest:
            return 410
        if offset > known.tail:
            return 409
        if offset not in known.boundaries:
            return 400
        if known.snapshot is None or offset > known.snapshot[0]:
            return 204
        return 204 if known.snapshot == (offset, TEXT, value) else 409

    @rule(name=names)
    def read_the_snapshot(self, name: str) -> None:
        known = self.stream(name)
        if known is None or known.snapshot is None:
            self.send("GET", f"{self.url(name)}/snapshot", status=404)
            return
        latest = self.send("GET", f"{self.url(name)}/snapshot", status=307).headers["location"]
        answer = self.send("GET", latest, status=200)
        offset, content_type, value = known.snapshot
        assert (answer.content, answer.headers["content-type"]) == (value, content_type)
        assert int(answer.headers["stream-snapshot-offset"]) == offset
        assert answer.headers["stream-up-to-date"] == str(offset == known.tail).lower()
        self.send("DELETE", latest, status=409)

    @rule(name=names)
    def bootstrap(self, name: str) -> None:
        known = self.stream(name)
        answer = self.send("GET", f"{self.url(name)}/bootstrap", status=404 if known is None else 200)
        if known is None:
            return
        text = b"Content-Type: %b\r\n\r\n%b" % (answer.headers["content-type"].encode(), answer.content)
        message = email.message_from_bytes(text, policy=email.policy.HTTP)
        parts = [part.get_payload(decode=True) for part in message.iter_parts()]
        state = known.snapshot[2] if known.snapshot else b""
        start = known.snapshot[0] if known.snapshot else known.earliest
        assert parts == [state, *known.kept(start)]
        assert int(answer.headers["stream-next-offset"]) == known.tail

    # -- the whole bucket ----------------------------------------------------------------------------------

    @rule()
    def follow_the_feed(self) -> None:
        """Everything since we asked last, stream by stream; one transaction may touch streams in any order."""
        found, expected = defaultdict(list), defaultdict(list)
        for event in self.news():
            found[event.stream].append(event)
        for name in list(self.model.lapsed):
            if found[name] and found[name][-1].kind == "expired":
                self.model.expired(name)
        for event in self.model.events[self.fed :]:
            expected[event.stream].append(event)
        assert {name: events for name, events in found.items() if events} == expected
        self.fed = len(self.model.events)

    def news(self) -> list[Event]:
        entries = []
        while True:
            params = {"after": self.position, "limit": 7}
            page = self.send("GET", f"/ds/{self.bucket}/streams/feed", params=params, status=200).json()
            entries += page["entries"]
            self.position = page["next_position"]
            if page["up_to_date"]:
                break
        return [Event(entry["stream"], entry["kind"], entry["first_offset"], entry["next_offset"]) for entry in entries]

    @rule(prefix=st.sampled_from(["", "a", "c/"]), is_arrow=st.booleans())
    def read_all_messages(self, prefix: str, is_arrow: bool) -> None:
        found, expected = defaultdict(list), defaultdict(list)
        for row in self.arrow_rows(prefix) if is_arrow else self.line_rows(prefix):
            said = (row["stream"], row["offset"], row["next_offset"], row["kind"], row["value"])
            found[row["stream"]].append(said)
        for row in self.model.rows:
            if row.name.startswith(prefix):
                expected[row.name].append(row.shown(self.model.is_alive(row.stream)))
        for name, stream in self.model.lapsed.items():
            if found[name] != expected[name]:  # the log does not have it yet, and bulk reads go by the log
                expected[name] = [row.shown(row.stream is stream) for row in self.model.rows if row.name == name]
        assert {**found} == {**expected}
        self.done["arrow" if is_arrow else "lines"] += len(found) > 0

    def line_rows(self, prefix: str) -> list[dict]:
        rows = [json.loads(line) for line in self._messages(prefix, "application/x-ndjson").splitlines()]
        return [{**row, "value": None if row["value"] is None else base64.b64decode(row["value"])} for row in rows]

    def arrow_rows(self, prefix: str) -> list[dict]:
        with pa.ipc.open_stream(self._messages(prefix, ARROW)) as reader:
            return reader.read_all().to_pylist()

    def _messages(self, prefix: str, accept: str) -> bytes:
        params = {"after": "earliest", "prefix": prefix}
        url = f"/ds/{self.bucket}/streams/messages"
        return self.send("GET", url, params=params, headers={"accept": accept}, status=200).content

    # -- transactions --------------------------------------------------------------------------------------

    @rule(
        app=st.sampled_from(["x", "y"]),
        step=st.sampled_from([1, 1, 1, 2, 0, -1]),
        rows=st.lists(st.tuples(st.sampled_from(("a", "b", "new")), st.integers(0, 9)), max_size=6),
        creates=st.booleans(),
    )
    def transaction(self, app: str, step: int, rows: list[tuple[str, int]], creates: bool) -> None:
        last = self.model.versions.get(app)
        version = max(0, (0 if last is None else last) + step)
        base = f"/ds/{self.bucket}/streams/transactions/{app}/{version}"
        lines = [{"stream": name, "json": {"n": n}, "order": n} for name, n in rows]
        body = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines).encode()
        is_fenced, is_again = last is not None and version < last, version == last
        parts = ["0"] if rows else []
        if rows:
            headers = {"content-type": "application/x-ndjson"}
            self.send("PUT", f"{base}/0", content=body, headers=headers, status=409 if is_fenced else 200)
        wish = {"parts": parts, "create": creates, "content_type": JSON}
        if is_fenced or is_again:
            answer = self.send("POST", base, json=wish, status=409 if is_fenced else 200).json()
            assert is_fenced or answer["duplicate"]
            return
        missing = {name for name, _ in rows if name not in self.model.streams}
        closed = {name for name, _ in rows if name in self.model.streams and self.model.streams[name].closed}
        if closed or (missing and not creates):
            answer = self.send("POST", base, json=wish, status=409).json()
            reasons = {(reason["code"], reason["stream"]) for reason in answer["error"]["reasons"]}
            absent = set() if creates else {("stream_not_found", name) for name in missing}
            assert reasons == absent | {("stream_closed", name) for name in closed}
            return
        answer = self.send("POST", base, json=wish, status=200).json()
        assert (answer["messages"], answer["duplicate"]) == (len(rows), False)
        self.model.versions[app] = version
        for name in sorted({name for name, _ in rows}):
            messages = [b'{"n":%d}' % n for _, n in sorted((n, n) for who, n in rows if who == name)]
            if name in missing:
                self.model.create(name, JSON, [], closed=False)
            self.model.append(name, messages)

    @invariant()
    def the_bucket_knows_how_many(self) -> None:
        if self.model is not None:
            told = self.send("GET", f"/ds/{self.bucket}", status=200).json()
            living = len(self.model.streams)
            assert living <= told["streams"] <= living + len(self.model.lapsed)
            assert told["settings"] == self.model.settings
