"""Bulk reads and read plans over HTTP: rows as Arrow and NDJSON, and the same rows out of the object store."""

import base64
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from tests.conftest import free_port
from tests.server.settling import settle

from millstream.storage.archive.arrow import SCHEMA, record_batch
from millstream.storage.archive.plan import rows_of_range
from millstream.storage.files import Files
from millstream.storage.objects import LocalObjects

ARROW = "application/vnd.apache.arrow.stream"
COLUMNS = ["bucket", "stream", "offset", "next_offset", "position", "id", "timestamp", "content_type", "kind", "value"]
TEXT = {"Content-Type": "text/plain"}
names = iter(f"bulk-{number}" for number in range(1000))


@pytest.fixture(scope="module")
def client(module_server):
    running = module_server({"checkpoint_age_s": 0.1, "lease_s": 5})
    with httpx.Client(base_url=running.url, timeout=20) as client:
        yield client


@pytest.fixture(scope="module")
def forgetful(module_server):
    """A server that keeps no archive: what is checkpointed is read from segments."""
    running = module_server({"checkpoint_age_s": 0.1, "archive_bytes_max": 0, "block_bytes": 1024})
    with httpx.Client(base_url=running.url, timeout=20) as client:
        yield client


@pytest.fixture(params=["client", "forgetful"])
def either(request):
    return request.getfixturevalue(request.param)


def fill(client, bucket=None):
    """A bucket with three streams in different tiers; its name and its messages by stream."""
    bucket = bucket or next(names)
    client.put(f"/ds/{bucket}").raise_for_status()
    expected = {"words": [], "numbers": [], "user-1": []}
    for stream, kind in (("words", "text/plain"), ("numbers", "application/json"), ("user-1", "image/png")):
        client.put(f"/ds/{bucket}/{stream}", headers={"Content-Type": kind}).raise_for_status()
    for round_ in range(3):
        for number in range(8):
            expected["words"].append(b"word %d %d" % (round_, number))
            client.post(f"/ds/{bucket}/words", content=expected["words"][-1], headers=TEXT).raise_for_status()
        expected["numbers"] += [b"%d" % (round_ * 10 + index) for index in range(3)]
        batch = b"[%b]" % b", ".join(expected["numbers"][-3:])
        client.post(f"/ds/{bucket}/numbers", content=batch, headers={"Content-Type": "application/json"})
        expected["user-1"].append(bytes(range(256)))
        client.post(f"/ds/{bucket}/user-1", content=expected["user-1"][-1], headers={"Content-Type": "image/png"})
        if round_ < 2:
            settle(client)
    return bucket, expected


_filled = {}


def filled(client):
    """A bucket like that, the same for all tests of a server that change nothing in it."""
    port = client.base_url.port
    if port not in _filled:
        _filled[port] = fill(client)
    return _filled[port]


def arrow(client, bucket, **query):
    answer = client.get(f"/ds/{bucket}/streams/messages", params=query, headers={"Accept": ARROW})
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, ARROW), answer.text
    return pa.ipc.open_stream(answer.content).read_all(), answer.headers["Stream-Next-Position"]


def lines(client, bucket, **query):
    answer = client.get(f"/ds/{bucket}/streams/messages", params=query)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/x-ndjson"), answer.text
    return [json.loads(line) for line in answer.text.splitlines()], answer.headers["Stream-Next-Position"]


def as_arrow(rows):
    """NDJSON's rows as `to_pylist` gives those of Arrow."""
    found = []
    for row in rows:
        assert list(row) == COLUMNS
        moment = None if row["timestamp"] is None else datetime.fromisoformat(row["timestamp"])
        value = None if row["value"] is None else base64.b64decode(row["value"])
        found.append({**row, "timestamp": moment, "value": value})
    return found


def by_stream(rows):
    found = {}
    for row in rows:
        found.setdefault(row["stream"], []).append(row["value"])
    return found


def test_arrow_has_the_columns_that_were_promised(client):
    bucket, expected = filled(client)
    table, until = arrow(client, bucket)
    assert table.schema == SCHEMA
    assert table.schema.names == COLUMNS
    assert table.schema.field("offset").type == table.schema.field("next_offset").type == pa.int64()
    assert table.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert table.schema.field("value").type == pa.binary()
    assert by_stream(table.to_pylist()) == expected
    assert table.column("bucket").unique().to_pylist() == [bucket]
    assert set(table.column("kind").to_pylist()) == {"message"}
    assert until.split(".")[0] == table.column("position")[0].as_py().split(".")[0]
    for row in table.to_pylist():
        assert row["next_offset"] - row["offset"] == len(row["value"])
        assert row["id"].split("-")[0] == str(round(row["timestamp"].timestamp() * 1000))


def test_ndjson_says_the_same_as_arrow(either):
    bucket, expected = filled(either)
    rows, until = lines(either, bucket)
    table, _ = arrow(either, bucket, until=until)
    key = lambda row: (int(row["position"].split(".")[1]), row["stream"], row["offset"])  # noqa: E731
    assert sorted(as_arrow(rows), key=key) == sorted(table.to_pylist(), key=key)
    assert by_stream(as_arrow(rows)) == expected


def test_reads_follow_each_other_without_loss(either):
    bucket, _ = fill(either)
    rows, until = lines(either, bucket)
    assert lines(either, bucket, after=until)[0] == []
    either.post(f"/ds/{bucket}/words", content=b"later", headers=TEXT)
    more, _ = lines(either, bucket, after=until)
    assert by_stream(as_arrow(more)) == {"words": [b"later"]}
    positions = sorted({row["position"] for row in rows}, key=lambda token: int(token.split(".")[1]))
    middle = positions[len(positions) // 2]
    first, reached = lines(either, bucket, until=middle)
    assert reached == middle
    second, _ = lines(either, bucket, after=middle, until=until)
    everything = sorted(map(json.dumps, first + second))
    assert everything == sorted(map(json.dumps, rows))
    assert len(first) > 5
    assert len(second) > 5


def test_a_prefix_filters(either):
    bucket, expected = filled(either)
    rows, _ = lines(either, bucket, prefix="user-")
    assert by_stream(as_arrow(rows)) == {"user-1": expected["user-1"]}
    assert arrow(either, bucket, prefix="nobody")[0].num_rows == 0


def test_times_bound_a_read(client):
    bucket = next(names)
    client.put(f"/ds/{bucket}")
    client.put(f"/ds/{bucket}/a", content=b"early", headers=TEXT)
    time.sleep(0.01)
    between = str(int(time.time() * 1000))
    time.sleep(0.01)
    client.post(f"/ds/{bucket}/a", content=b"late", headers=TEXT)
    for _ in range(2):
        assert [row["value"] for row in as_arrow(lines(client, bucket, after=between)[0])] == [b"late"]
        assert [row["value"] for row in as_arrow(lines(client, bucket, until=between)[0])] == [b"early"]
        settle(client)


def test_trimmed_and_deleted_messages_are_gaps(client):
    bucket, expected = fill(client)
    path = f"/ds/{bucket}/words/snapshot/{len(b''.join(expected['words'][:12])):020d}"
    assert client.put(path, content=b"state", headers=TEXT).status_code < 300
    client.delete(f"/ds/{bucket}/user-1").raise_for_status()
    for _ in range(2):
        rows = arrow(client, bucket)[0].to_pylist()
        words = [row for row in rows if row["stream"] == "words"]
        assert [row["kind"] for row in words] == ["gap"] * 12 + ["message"] * 12 + ["snapshot"]
        assert [row["value"] for row in words[:12]] == [None] * 12
        assert [row["value"] for row in words[12:24]] == expected["words"][12:]
        assert (words[-1]["value"], words[-1]["id"]) == (b"state", None)
        assert words[-1]["offset"] == words[-1]["next_offset"] == words[12]["offset"]
        assert {row["kind"] for row in rows if row["stream"] == "user-1"} == {"gap"}
        assert as_arrow(lines(client, bucket)[0]) == rows
        settle(client)


def test_a_trimmed_stream_without_an_archive_shows_one_gap(forgetful):
    bucket, expected = fill(forgetful)
    kept_from = len(b"".join(expected["words"][:12]))
    path = f"/ds/{bucket}/words/snapshot/{kept_from:020d}"
    assert forgetful.put(path, content=b"state", headers=TEXT).status_code < 300
    settle(forgetful, archived=False)
    rows = as_arrow(lines(forgetful, bucket, prefix="words")[0])
    gaps = [row for row in rows if row["kind"] == "gap"]
    assert [(row["offset"], row["next_offset"], row["id"], row["timestamp"]) for row in gaps] == [
        (0, kept_from, None, None)
    ]
    assert [row["value"] for row in rows if row["kind"] == "message"] == expected["words"][12:]
    table, _ = arrow(forgetful, bucket, prefix="words")
    assert table.column("kind").to_pylist().count("gap") == 1


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_the_body_can_be_compressed(client, encoding):
    bucket, expected = filled(client)
    headers = {"Accept": ARROW, "Accept-Encoding": encoding}
    answer = client.get(f"/ds/{bucket}/streams/messages", headers=headers)
    assert answer.headers["Content-Encoding"] == encoding
    assert by_stream(pa.ipc.open_stream(answer.content).read_all().to_pylist()) == expected


def test_flat_buckets_and_both_prefixes(client):
    client.put("/v1/stream/b/deep/path", content=b"x", headers=TEXT)
    for base in ("/b", "/ds/b"):
        answer = client.get(f"{base}/streams/messages")
        assert [json.loads(line)["stream"] for line in answer.text.splitlines()] == ["deep/path"]
        assert client.get(f"{base}/streams/plan").status_code == 200


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("after=x", "bad_position"),
        ("until=x", "bad_position"),
        ("until=", "bad_position"),
        ("until=now&until=now", "repeated_parameter"),
        ("after=now&until=earliest", "bad_position"),
    ],
)
@pytest.mark.parametrize("route", ["messages", "plan"])
def test_bad_parameters(client, route, query, code):
    client.put("/v1/stream/params/a", content=b"x")
    answer = client.get(f"/params/streams/{route}?{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


@pytest.mark.parametrize("query", ["max_bytes=0", "max_messages=0", "max_bytes=-1", "max_messages=1e3", "max_bytes="])
def test_bad_bounds(client, query):
    client.put("/v1/stream/params/a", content=b"x")
    answer = client.get(f"/params/streams/plan?{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, f"bad_{query.split('=')[0]}")


def test_what_cannot_be_had(client):
    client.put("/v1/stream/params/a", content=b"x")
    refused = client.get("/params/streams/messages", headers={"Accept": "text/html"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (406, "not_acceptable")
    assert client.get("/params/streams/messages", headers={"Accept": f"{ARROW};q=0, */*"}).status_code == 200
    for route in ("messages", "plan"):
        assert client.get(f"/ds/nowhere/streams/{route}").json()["error"]["code"] == "bucket_not_found"
        assert client.put(f"/params/streams/{route}").headers["Allow"] == "GET, OPTIONS"
    assert client.get("/params/streams/leases/x").headers["Allow"] == "POST, DELETE, OPTIONS"


def test_the_server_writes_arrow_without_pyarrow(tmp_path):
    """In a process of its own, in which pyarrow cannot be imported."""
    program = """
import sys
sys.modules["pyarrow"] = None
from millstream.cli.main import main
main()
"""
    port = free_port()
    command = [sys.executable, "-c", program, "serve", "--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            wait_until_ready(client)
            client.put("/v1/stream/box/a", content=b"x")
            assert arrow(client, "box")[0].column("value").to_pylist() == [b"x"]
            assert len(lines(client, "box")[0]) == 1
    finally:
        process.terminate()
        process.wait(10)


def wait_until_ready(client):
    give_up = time.monotonic() + 60
    while True:
        try:
            if client.get("/readyz/local").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_a_client_that_leaves_costs_nothing(client):
    bucket, _ = fill(client)
    for _ in range(5):
        client.post(f"/ds/{bucket}/user-1", content=bytes(1 << 20), headers={"Content-Type": "image/png"})
    with client.stream("GET", f"/ds/{bucket}/streams/messages") as answer:
        next(answer.iter_raw())
    assert arrow(client, bucket)[0].num_rows == 24 + 9 + 3 + 5


def test_writes_go_on_during_a_read(client):
    bucket, _ = fill(client)
    stop = threading.Event()

    def write():
        with httpx.Client(base_url=client.base_url) as other:
            while not stop.is_set():
                other.post(f"/ds/{bucket}/words", content=b"more", headers=TEXT)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        after, found = "earliest", []
        for _ in range(5):
            rows, after = lines(client, bucket, after=after)
            found += rows
    finally:
        stop.set()
        writer.join()
    rest, _ = lines(client, bucket, after=after)
    everything, _ = lines(client, bucket)
    assert found + rest == everything


# --- plans


def read_plan(client, plan):
    """The rows of a plan, from the objects themselves and, where it says so, over HTTP."""
    assert plan["store"]["kind"] == "fs"
    store = LocalObjects(Path(plan["store"]["root"]), Files())
    rows = as_arrow(plan["rows"])
    for part in plan["ranges"]:
        if part["kind"] == "hot":
            query = {"after": part["after"], "until": part["until"], "prefix": plan["prefix"]}
            rows += arrow(client, plan["bucket_id"], **query)[0].to_pylist()
        else:
            batch = record_batch(*rows_of_range(store, plan, part), int(plan["incarnation"], 16))
            rows += batch.to_pylist()
    return rows


def get_plan(client, bucket, **query):
    answer = client.get(f"/ds/{bucket}/streams/plan", params=query)
    assert answer.status_code == 200, answer.text
    plan = answer.json()
    assert answer.headers["Stream-Next-Position"] == plan["until"]
    assert (answer.headers.get("Stream-Up-To-Date") == "true") == plan["up_to_date"]
    return plan


@pytest.mark.parametrize("prefix", ["", "user-"])
def test_a_plan_gives_the_rows_of_the_bulk_read(either, prefix, client):
    bucket, _ = fill(either)
    settle(either, archived=either is client)
    either.delete(f"/ds/{bucket}/user-1")
    plan = get_plan(either, bucket, prefix=prefix)
    assert plan["up_to_date"]
    rows = read_plan(either, plan)
    query = {"after": plan["after"], "until": plan["until"], "prefix": prefix}
    assert rows == as_arrow(lines(either, bucket, **query)[0])
    settle(either, archived=either is client)
    again = get_plan(either, bucket, prefix=prefix)
    assert {part["kind"] for part in again["ranges"]} <= {"archive", "segment"}
    assert read_plan(either, again) == as_arrow(lines(either, bucket, prefix=prefix, until=again["until"])[0])


@pytest.mark.parametrize("bound", [{"max_messages": 7}, {"max_bytes": 300}, {"max_messages": 1, "max_bytes": 1}])
def test_bounded_plans_follow_each_other(either, bound):
    bucket, expected = filled(either)
    settle(either)
    after, rows, steps = "earliest", [], 0
    while True:
        plan = get_plan(either, bucket, after=after, **bound)
        part = read_plan(either, plan)
        if bound == {"max_messages": 7} and not any(range_["kind"] == "segment" for range_ in plan["ranges"]):
            assert len(part) <= 7
        rows += part
        after, steps = plan["until"], steps + 1
        assert either.delete(plan["lease"]["url"]).status_code == 204
        if plan["up_to_date"]:
            break
    assert by_stream(rows) == expected
    assert steps > 1


def test_leases_are_renewed_given_back_and_expire(client):
    bucket, _ = filled(client)
    lease = get_plan(client, bucket)["lease"]
    assert 3_000 < lease["expires_at_ms"] - time.time() * 1000 < 6_000
    time.sleep(0.05)
    renewed = client.post(lease["url"])
    assert renewed.status_code == 200
    assert renewed.json()["expires_at_ms"] > lease["expires_at_ms"]
    assert renewed.json()["id"] == lease["id"]
    assert client.delete(lease["url"]).status_code == 204
    for method in ("POST", "DELETE"):
        gone = client.request(method, lease["url"])
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "lease_not_found")


def test_a_lease_is_asked_for_under_its_own_bucket(client):
    bucket, _ = filled(client)
    client.put("/v1/stream/elsewhere/a", content=b"x")
    lease = get_plan(client, bucket)["lease"]
    for strange, code in (("elsewhere", "lease_not_found"), ("nowhere", "bucket_not_found")):
        for method in ("POST", "DELETE"):
            answer = client.request(method, f"/ds/{strange}/streams/leases/{lease['id']}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, code)
    assert client.post(lease["url"].removeprefix("/ds")).status_code == 200
    assert client.delete(lease["url"]).status_code == 204


def test_without_a_lease_nothing_is_read_by_name(server):
    running = server()
    with httpx.Client(base_url=running.url, timeout=20) as client:
        client.put("/v1/stream/box/a", content=b"x", headers=TEXT)
        in_the_way = running.data_dir / ".tmp-leases.json"
        in_the_way.mkdir()
        for route in ("messages", "plan"):
            refused = client.get(f"/ds/box/streams/{route}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        in_the_way.rmdir()
        assert len(lines(client, "box")[0]) == 1
        assert "millstream_read_leases 0" in client.get("/metrics").text
    assert "Traceback" not in running.log()


def test_bounded_reads_follow_each_other(either):
    bucket, expected = filled(either)
    settle(either)
    rows, now = lines(either, bucket)
    found, after, steps = [], "earliest", 0
    while after != now:
        part, after = lines(either, bucket, after=after, until=now, max_messages=7)
        found += part
        steps += 1
    assert by_stream(as_arrow(found)) == expected
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, rows))
    assert steps > 1


def test_a_plan_outlives_merges_and_restarts(server):
    running = server({"checkpoint_age_s": 0.05, "merge_segments_min": 2, "lease_s": 60})
    with httpx.Client(base_url=running.url, timeout=20) as client:
        bucket, expected = fill(client, "lasting")
        settle(client)
        plan = get_plan(client, bucket)
        before = read_plan(client, plan)
        assert by_stream(before) == expected
        for number in range(4):
            client.post(f"/ds/{bucket}/words", content=b"more %d" % number, headers=TEXT)
            settle(client)
    running.kill()
    running.start()
    with httpx.Client(base_url=running.url, timeout=20) as client:
        objects = [part for part in plan["ranges"] if part["kind"] != "hot"]
        assert read_plan(client, {**plan, "ranges": objects}) == [
            row for row in before if int(row["position"].split(".")[1]) <= max(part["until"] for part in objects)
        ]
        assert client.delete(plan["lease"]["url"]).status_code == 204


def test_a_read_that_stalls_longer_than_its_lease_gets_all_of_a_transaction(server):
    """Its lease lives as long as it does, and a transaction's object as long as the lease."""
    running = server({"checkpoint_age_s": 0.2, "lease_s": 1})
    message = json.dumps("x" * 99_000)
    rows = "\n".join(f'{{"stream": "s{number % 4}", "json": {message}}}' for number in range(300))
    with httpx.Client(base_url=running.url, timeout=30) as client:
        client.put("/ds/stalled").raise_for_status()
        root = "/ds/stalled/streams/transactions/etl/1"
        client.put(f"{root}/0", content=rows, headers={"Content-Type": "application/x-ndjson"}).raise_for_status()
        client.post(root, json={"parts": ["0"], "create": True}).raise_for_status()
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as reader:
        request = f"GET /ds/stalled/streams/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {ARROW}\r\n\r\n"
        reader.sendall(request.encode())
        answer = http.client.HTTPResponse(reader)
        answer.begin()
        deadline = time.monotonic() + 20
        objects = running.data_dir / "objects" / "transactions"
        time.sleep(7)  # a sweep of objects comes every five seconds
        with pa.ipc.open_stream(answer) as batches:
            found = batches.read_all().to_pylist()
    assert len([row for row in found if row["kind"] == "message"]) == 300
    while list(objects.iterdir()):
        assert time.monotonic() < deadline, "the object stays although nobody needs it"
        time.sleep(0.2)
