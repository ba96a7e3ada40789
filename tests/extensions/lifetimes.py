"""More of what the state machine does: what time and settings do to streams, who reads live, and buckets that go."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import httpx
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.extensions.model import JSON, TEXT, ModelStream
from tests.extensions.operations import Operations, names, words
from tests.torture.harness import eventually

RETENTION_EVERY_S = 0.05  # of the server that this is for
MOMENT_S = 0.1
FOREVER = "2999-01-01T00:00:00Z"
TTLS = (None, 1000, 2000)

SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "content_type": st.sampled_from([None, TEXT, JSON]),
        "ttl_seconds": st.sampled_from(TTLS),
        "caching": st.sampled_from(["public", "private"]),
    },
)
RETENTIONS = st.sampled_from(
    [{"retention_seconds": 0}, {"retention_bytes": 0}, {"retention_bytes": 5}, {"retention_bytes": 25}]
)


class AllOperations(Operations):
    # -- time to live --------------------------------------------------------------------------------------

    @rule(name=names, messages=words)
    def create_for_a_moment(self, name: str, messages: list[bytes]) -> None:
        if self.stream(name) is not None:
            return
        ends_s = time.time() + MOMENT_S
        headers = {"content-type": TEXT, "stream-expires-at": datetime.fromtimestamp(ends_s, UTC).isoformat()}
        url = f"/v1/stream/{self.bucket}/{name}"
        self.send("PUT", url, headers=headers, content=messages[0], status=201)
        time.sleep(max(0.0, ends_s - time.time()) + 0.01)
        self.model.create(name, TEXT, messages[:1], closed=False)
        self.model.lapse(name)
        self.done["lapsed"] += 1

    @rule(default=st.sampled_from([TEXT, JSON]))
    def create_as_the_bucket_says(self, default: str) -> None:
        self._change({"content_type": default})
        known = self.stream("e")
        if known is None:
            self.send("PUT", self.url("e"), status=201)
            self.model.create("e", default, [], closed=False)
            self.done["defaults"] += 1
        else:
            same = (known.content_type, known.ttl_s) == (default, self.model.settings["ttl_seconds"])
            self.send("PUT", self.url("e"), status=200 if same else 409)

    # -- settings ------------------------------------------------------------------------------------------

    @rule(changed=SETTINGS)
    def change_the_bucket(self, changed: dict[str, object]) -> None:
        self._change(changed)
        self.done["changed"] += 1

    def _change(self, changed: dict[str, object]) -> None:
        self.model.settings.update(changed)
        told = self.send("PATCH", f"/ds/{self.bucket}", json=changed, status=200).json()
        assert told["settings"] == self.model.settings

    @rule(changed=st.sampled_from([{"colour": 1}, {"ttl_seconds": -1}, {"caching": "never"}, {"content_type": "x"}]))
    def change_the_bucket_to_nonsense(self, changed: dict[str, object]) -> None:
        self.send("PATCH", f"/ds/{self.bucket}", json=changed, status=400)

    @rule(wish=RETENTIONS)
    def let_retention_work(self, wish: dict[str, int]) -> None:
        """By age everything goes. By size it depends on what lies in one block; never too much, nor past a snapshot."""
        for name, known in self.model.streams.items():
            if not known.closed:
                self._append_one(name, known)
        self.follow_the_feed()
        self._change(wish)
        if "retention_seconds" in wish:
            eventually(lambda: all(map(self._is_all_trimmed, self.model.streams)), "everything is too old")
        else:
            time.sleep(3 * RETENTION_EVERY_S)
        self._change(dict.fromkeys(wish))
        time.sleep(2 * RETENTION_EVERY_S)  # what was under way ends
        for event in self.news():
            if event.kind == "expired":
                self.model.expired(event.stream)
                continue
            known = self.stream(event.stream)
            assert (event.kind, event.first) == ("trimmed", 0), event
            limit = known.tail - wish.get("retention_bytes", 0)
            assert known.earliest < event.next <= min(limit, known.snapshot[0] if known.snapshot else limit)
            assert event.next in known.boundaries
            self.model.trim(event.stream, event.next)
            self.done["trimmed"] += 1
        self.fed = len(self.model.events)
        for name in self.model.streams:
            self.head(name)

    def _is_all_trimmed(self, name: str) -> bool:
        known = self.model.streams[name]
        told = self.send("HEAD", self.url(name), status=200).headers
        kept_from = known.snapshot[0] if known.snapshot else known.tail
        return int(told.get("stream-earliest-offset", 0)) == max(kept_from, known.earliest)

    # -- reading -------------------------------------------------------------------------------------------

    @rule(name=names, data=st.data())
    def read_since(self, name: str, data: st.DataObject) -> None:
        known = self.stream(name)
        if known is None:
            self.send("GET", self.url(name), params={"timestamp": 0}, status=404)
            return
        times = self._times(name, known)
        assert times == sorted(times)
        moment = data.draw(st.sampled_from([0, *times, *(ms + 1 for ms in times), FOREVER]))
        later = [
            offset for (offset, _), ms in zip(known.messages, times, strict=True) if moment != FOREVER and ms >= moment
        ]
        answer = self.send("GET", self.url(name), params={"timestamp": moment}, status=200)
        assert answer.content == self._body(known, known.kept(max(min(later, default=known.tail), known.earliest)))
        self.done["since"] += 1

    def _times(self, name: str, known: ModelStream) -> list[int]:
        """When each message was committed, as bulk reads have it; those of earlier streams of that name come before."""
        rows = [row for row in self.arrow_rows(name) if row["stream"] == name and row["kind"] != "snapshot"]
        rows = rows[len(rows) - len(known.messages) :]
        assert [row["offset"] for row in rows] == [offset for offset, _ in known.messages]
        return [round(row["timestamp"].timestamp() * 1000) for row in rows]

    def _body(self, known: ModelStream, messages: list[bytes]) -> bytes:
        return b"[%b]" % b",".join(messages) if known.content_type == JSON else b"".join(messages)

    @rule(name=names, mode=st.sampled_from(["long-poll", "sse"]), data=st.data())
    def read_live(self, name: str, mode: str, data: st.DataObject) -> None:
        known = self.stream(name)
        if known is None:
            self.send("GET", self.url(name), params={"offset": "-1", "live": mode}, status=404)
            return
        offset = data.draw(st.sampled_from([*sorted(known.boundaries), "now"]))
        start = known.tail if offset == "now" else offset
        params = {"offset": offset, "live": mode, "timeout_ms": 1}
        if start < known.earliest:
            self.send("GET", self.url(name), params=params, status=410)
            return
        expected = known.kept(start)
        if mode == "sse":
            whole = expected if known.content_type == JSON else [b"".join(expected)]
            assert self._events(name, known, params) == whole
        else:
            answer = self.send("GET", self.url(name), params=params, status=200 if expected else 204)
            assert answer.content == (self._body(known, expected) if expected else b"")
            assert ("stream-closed" in answer.headers) == known.closed
            assert int(answer.headers["stream-next-offset"]) == known.tail
        self.done[mode] += 1

    def _events(self, name: str, known: ModelStream, params: dict[str, object]) -> list[bytes]:
        """Up to the tail: the messages of a JSON stream, everything in one piece of another."""
        found: list[bytes] = []
        kind, lines = "", list[str]()
        with self.client.stream("GET", self.url(name), params=params) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    kind, lines = line[7:], []
                elif line.startswith("data:"):
                    lines.append(line[5:])
                elif kind == "data" and lines:
                    found.append("\n".join(lines).encode())
                    lines = []
                elif kind == "control" and lines:
                    told = json.loads(lines[0])
                    if "upToDate" in told or "streamClosed" in told:
                        break
            assert ("streamClosed" in told) == known.closed
            assert int(told["streamNextOffset"]) == known.tail
        if known.content_type != JSON:
            return [b"".join(found)]
        return [json.dumps(value, separators=(",", ":")).encode() for array in found for value in json.loads(array)]

    @rule(name=names, ending=st.sampled_from(["append", "append", "close", "delete"]))
    def wait_for_news(self, name: str, ending: str) -> None:
        """A long-poll at the tail hears of what happens to its stream."""
        known = self.stream(name)
        if known is None or known.closed:
            return
        with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=self.server.url, timeout=30) as other:
            params = {"offset": known.tail, "live": "long-poll", "timeout_ms": 20_000}
            waiting = pool.submit(other.get, self.url(name), params=params)
            if ending == "append":
                message = self._append_one(name, known)
                assert waiting.result().content == self._body(known, [message])
            elif ending == "close":
                self.close(name)
                assert (waiting.result().status_code, waiting.result().headers["stream-closed"]) == (204, "true")
            else:
                self.delete(name)
                assert waiting.result().status_code == 404
        self.done["news"] += 1

    def _append_one(self, name: str, known: ModelStream) -> bytes:
        message = b'{"n":1}' if known.content_type == JSON else b"news"
        self.send("POST", self.url(name), headers={"content-type": known.content_type}, content=message, status=204)
        self.model.append(name, [message])
        return message

    # -- a bucket that goes --------------------------------------------------------------------------------

    @rule(is_wanted=st.booleans())
    def delete_the_bucket_and_make_it_again(self, is_wanted: bool) -> None:
        """What was staged for it goes with it."""
        if not is_wanted:
            return
        for name in list(self.model.streams):
            self.delete(name)
        base = f"/ds/{self.bucket}"
        part = json.dumps({"stream": "a", "json": 1}).encode()
        staged = f"{base}/streams/transactions/late/1"
        self.send("PUT", f"{staged}/0", content=part, headers={"content-type": "application/x-ndjson"}, status=200)
        self.send("DELETE", base, status=204)
        for name in list(self.model.lapsed):  # whose time was up is not in the way, and the log has it by now
            self.model.expired(name)
        for url in (base, f"{base}/streams", f"{base}/streams/feed", f"{base}/streams/messages", f"{base}/a"):
            self.send("GET", url, status=404)
        self.send("PUT", f"{base}/a", headers={"content-type": TEXT}, status=404)
        self.send("DELETE", base, status=404)
        self.send("PUT", base, status=201)
        self.model = self.model.made_again()
        refused = self.send("POST", staged, json={"parts": ["0"], "create": True}, status=409).json()
        assert [reason["code"] for reason in refused["error"]["reasons"]] == ["part_missing"]
        self.done["buckets"] += 1
