"""Snapshots, bootstrap and retention over HTTP (extension sections 2 and 3)."""

import email
import email.policy
import json
import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

SETTINGS = {"checkpoint_age_s": 0.3, "retention_every_s": 0.2, "snapshot_bytes_max": "8MiB"}
MIB = 1 << 20
EMPTY = ("application/octet-stream", b"")  # the first part of a bootstrap without a snapshot


@pytest.fixture(scope="module")
def running(module_server):
    return module_server(SETTINGS)


@pytest.fixture(scope="module")
def client(running):
    with httpx.Client(base_url=running.url, timeout=20) as client:
        yield client


@pytest.fixture
def bucket(client, request):
    name = f"b-{abs(hash(request.node.name)) % 10**12}"
    assert client.put(f"/ds/{name}").status_code == 201
    return name


@pytest.fixture
def stream(client, bucket):
    """A text stream that holds `one`, `two` and `three`."""
    url = f"/ds/{bucket}/notes"
    assert client.put(url, headers={"content-type": "text/plain"}).status_code == 201
    for word in ("one", "two", "three"):
        append(client, url, word)
    return url


def append(client, url, text, content_type="text/plain"):
    answer = client.post(url, content=text, headers={"content-type": content_type})
    assert answer.status_code == 204, answer.text
    return int(answer.headers["stream-next-offset"])


def publish(client, url, offset, body=b"state", content_type="application/x-state", **options):
    headers = {"content-type": content_type} if content_type else {}
    return client.put(f"{url}/snapshot/{offset}", content=body, headers=headers, **options)


def code(answer):
    return answer.json()["error"]["code"]


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)
    return found


def hot_bytes(client):
    lines = client.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("millstream_hot_bytes ")))


def chunks(data, size=100_000):
    """A body without a known length."""
    for at in range(0, len(data), size):
        yield data[at : at + size]


def parts(answer):
    """A bootstrap as Python's own mail parser reads it: (content type, bytes) of each part."""
    assert answer.status_code == 200, answer.text
    text = b"Content-Type: " + answer.headers["content-type"].encode() + b"\r\n\r\n" + answer.content
    message = email.message_from_bytes(text, policy=email.policy.HTTP)
    assert message.is_multipart()
    assert not message.defects
    return [(part.get_content_type(), part.get_payload(decode=True)) for part in message.iter_parts()]


# --- publishing and reading


def test_a_snapshot_is_published_found_and_read(client, stream):
    assert client.get(f"{stream}/snapshot").status_code == 404
    assert "stream-snapshot-offset" not in client.head(stream).headers
    answer = publish(client, stream, 6, b"\x00one two")
    assert (answer.status_code, answer.headers["stream-snapshot-offset"]) == (204, f"{6:020d}")

    latest = client.get(f"{stream}/snapshot")
    assert latest.status_code == 307
    assert latest.headers["location"].endswith(f"{stream}/snapshot/{6:020d}")
    read = client.get(latest.headers["location"])
    assert (read.status_code, read.content) == (200, b"\x00one two")
    assert read.headers["content-type"] == "application/x-state"
    assert read.headers["stream-next-offset"] == read.headers["stream-snapshot-offset"] == f"{6:020d}"
    assert read.headers["stream-up-to-date"] == "false"
    head = client.head(stream).headers
    assert (head["stream-snapshot-offset"], head["stream-earliest-offset"]) == (f"{6:020d}", f"{6:020d}")


def test_a_snapshot_at_the_tail_is_up_to_date(client, stream):
    publish(client, stream, 11)
    read = client.get(f"{stream}/snapshot/11")
    assert read.headers["stream-up-to-date"] == "true"
    assert client.get(stream, params={"offset": 11}).text == ""


def test_head_and_etag_of_a_snapshot(client, stream):
    publish(client, stream, 6, b"state")
    head = client.head(f"{stream}/snapshot/6")
    assert (head.headers["content-length"], head.content) == ("5", b"")
    again = client.get(f"{stream}/snapshot/6", headers={"if-none-match": head.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_without_a_content_type_it_is_bytes(client, stream):
    publish(client, stream, 6, content_type=None)
    assert client.get(f"{stream}/snapshot/6").headers["content-type"] == "application/octet-stream"


def test_active_content_gets_no_rights(client, stream):
    publish(client, stream, 6, b"<script>", content_type="text/html")
    headers = client.get(f"{stream}/snapshot/6").headers
    assert (headers["content-security-policy"], headers["content-disposition"]) == ("sandbox", "attachment")


@pytest.mark.parametrize("size", [0, 1, 300_000, 3 * MIB])
@pytest.mark.parametrize("chunked", [False, True])
def test_every_size_comes_back_before_and_after_a_checkpoint_and_a_restart(server, size, chunked):
    running = server(SETTINGS)
    body = random.Random(size).randbytes(size)
    with httpx.Client(base_url=running.url, timeout=20) as client:
        client.put("/ds/sizes")
        client.put("/ds/sizes/s", headers={"content-type": "text/plain"})
        append(client, "/ds/sizes/s", "hello")
        sent = chunks(body) if chunked else body
        assert publish(client, "/ds/sizes/s", 5, sent).status_code == 204
        assert client.get("/ds/sizes/s/snapshot/5").content == body
        wait_for(lambda: hot_bytes(client) == 0)
        assert client.get("/ds/sizes/s/snapshot/5").content == body
        running.kill()
        running.start()
        assert client.get("/ds/sizes/s/snapshot/5").content == body
        objects = list((running.data_dir / "objects" / "snapshots").iterdir())
        assert len(objects) == (1 if size > 512 * 1024 else 0)


def test_a_kill_right_after_the_answer_loses_no_snapshot(server):
    running = server()
    with httpx.Client(base_url=running.url, timeout=20) as client:
        client.put("/ds/kill")
        for index, size in enumerate((100, MIB)):
            client.put(f"/ds/kill/{index}", content=b"x", headers={"content-type": "text/plain"})
            assert publish(client, f"/ds/kill/{index}", 1, b"s" * size).status_code == 204
        running.kill()
        running.start()
        for index, size in enumerate((100, MIB)):
            assert client.get(f"/ds/kill/{index}/snapshot/1").content == b"s" * size


# --- what may be published


def test_the_same_again_is_fine_and_anything_else_is_not(client, stream):
    publish(client, stream, 6)
    assert publish(client, stream, 6).status_code == 204
    assert code(publish(client, stream, 6, b"other")) == "snapshot_exists"
    assert code(publish(client, stream, 6, content_type="text/plain")) == "snapshot_exists"


def test_the_same_large_one_again_leaves_one_object(running, client, stream):
    folder = running.data_dir / "objects" / "snapshots"
    body = random.Random(7).randbytes(2 * MIB)
    assert publish(client, stream, 6, body).status_code == 204
    before = len(list(folder.iterdir()))
    assert publish(client, stream, 6, body).status_code == 204
    assert code(publish(client, stream, 6, body[::-1])) == "snapshot_exists"
    assert len(list(folder.iterdir())) == before


@pytest.mark.parametrize(
    ("offset", "status", "why"),
    [("4", 400, "offset_not_a_boundary"), ("12", 409, "snapshot_beyond_tail"), ("-1", 400, "bad_offset"),
     ("now", 400, "bad_offset"), ("abc", 400, "bad_offset"), ("%20", 400, "bad_offset"), ("9" * 21, 400, "bad_offset")],
)  # fmt: skip
@pytest.mark.parametrize("size", [10, MIB])
def test_offsets_that_cannot_be_published(client, stream, offset, status, why, size):
    answer = publish(client, stream, offset, b"x" * size)
    assert (answer.status_code, code(answer)) == (status, why)
    assert client.get(f"{stream}/snapshot").status_code == 404
    assert client.get(stream, params={"offset": "-1"}).text == "onetwothree"


def test_boundaries_are_known_in_segments_too(client, bucket):
    url = f"/ds/{bucket}/json"
    client.put(url, headers={"content-type": "application/json"})
    end = append(client, url, '[{"a":1},{"b":22},3]', "application/json")
    wait_for(lambda: hot_bytes(client) == 0)
    assert code(publish(client, url, 3)) == "offset_not_a_boundary"
    assert publish(client, url, 7).status_code == 204
    assert client.get(url, params={"offset": 7}).json() == [{"b": 22}, 3]
    assert end == 16


def test_older_than_kept_and_older_than_the_latest(client, stream):
    client.put(f"{stream}/snapshot/6?trim=false", content=b"s")
    assert client.get(stream, params={"offset": "-1"}).text == "onetwothree"
    assert code(publish(client, stream, 3)) == "snapshot_superseded"
    publish(client, stream, 11)
    older = publish(client, stream, 6)
    assert (older.status_code, code(older)) == (410, "snapshot_too_old")
    assert older.headers["stream-earliest-offset"] == f"{11:020d}"


def test_trim_is_true_or_false(client, stream):
    assert code(client.put(f"{stream}/snapshot/6?trim=maybe", content=b"s")) == "bad_query"
    assert code(client.put(f"{stream}/snapshot/6?trim=maybe", content=b"s" * MIB)) == "bad_query"


@pytest.mark.parametrize("chunked", [False, True])
def test_too_large_is_refused_and_leaves_nothing(running, client, stream, chunked):
    before = sorted((running.data_dir / "objects" / "snapshots").iterdir())
    body = b"x" * (8 * MIB + 1)
    try:
        answer = publish(client, stream, 6, chunks(body) if chunked else body)
        assert answer.status_code == 413
    except httpx.WriteError:
        pass  # refused before all of it was sent
    assert client.get(f"{stream}/snapshot").status_code == 404
    wait_for(lambda: sorted((running.data_dir / "objects" / "snapshots").iterdir()) == before)


def test_a_client_that_leaves_in_the_middle_leaves_nothing(running, client, stream):
    before = sorted((running.data_dir / "objects" / "snapshots").iterdir())

    def endless():
        yield b"x" * MIB
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        publish(client, stream, 6, endless())
    wait_for(lambda: sorted((running.data_dir / "objects" / "snapshots").iterdir()) == before)
    assert client.get(f"{stream}/snapshot").status_code == 404


@pytest.mark.parametrize("size", [10, MIB])
def test_missing_streams_and_buckets(client, bucket, size):
    for url in (f"/ds/{bucket}/nobody", "/ds/nowhere/nobody"):
        assert publish(client, url, 0, b"x" * size).status_code == 404
        assert client.get(f"{url}/snapshot").status_code == 404
        assert client.get(f"{url}/bootstrap").status_code == 404


def test_methods_and_routes(client, stream):
    assert client.post(f"{stream}/snapshot/6").status_code == 405
    assert client.put(f"{stream}/snapshot").status_code == 405
    assert client.post(f"{stream}/bootstrap").status_code == 405
    assert code(client.get(f"{stream}/snapshots")) == "unknown_route"
    assert code(client.get(f"{stream}/snapshot/6/more")) == "unknown_route"


def test_deleting_a_snapshot_is_refused(client, stream):
    assert client.delete(f"{stream}/snapshot/6").status_code == 404
    publish(client, stream, 6)
    latest = client.delete(f"{stream}/snapshot/6")
    assert (latest.status_code, code(latest)) == (409, "snapshot_is_latest")
    assert client.delete(f"{stream}/snapshot/3").status_code == 404


# --- what is no longer kept


def test_trimmed_history_is_gone_and_says_where_to_go(client, stream):
    publish(client, stream, 6)
    for offset in ("-1", "0", "3"):
        for live in ({}, {"live": "long-poll"}, {"live": "sse"}):
            answer = client.get(stream, params={"offset": offset, **live})
            assert (answer.status_code, code(answer)) == (410, "offset_trimmed")
            assert answer.headers["stream-earliest-offset"] == f"{6:020d}"
            assert answer.headers["stream-next-offset"] == f"{6:020d}"
            assert answer.headers["link"] == f'<{stream}/bootstrap>; rel="bootstrap"'
    assert client.get(stream, params={"offset": 6}).text == "three"


def test_a_live_reader_that_is_overtaken_is_told(client, stream):
    """SSE from the beginning, with a snapshot published while it runs: the next request gets the 410."""
    with client.stream("GET", stream, params={"offset": 11, "live": "sse"}) as feed:
        lines = feed.iter_lines()
        assert next(lines) == "event: control"
        publish(client, stream, 11)
        append(client, stream, "more")
        assert any("more" in line for line in lines)


def test_overwriting_ten_times_keeps_the_disk_small(server):
    running = server({"checkpoint_age_s": 0.1, "journal_file_bytes": "1MiB"})
    rng = random.Random(3)
    with httpx.Client(base_url=running.url, timeout=20) as client:
        client.put("/ds/space")
        client.put("/ds/space/s", headers={"content-type": "application/octet-stream"})
        for _ in range(10):
            for _ in range(8):
                end = append(client, "/ds/space/s", rng.randbytes(200_000), "application/octet-stream")
            assert publish(client, "/ds/space/s", end, rng.randbytes(400_000)).status_code == 204
            time.sleep(0.15)
        live = 400_000
        folder = running.data_dir / "objects"

        def used():
            kept = [folder / "segments", folder / "snapshots"]
            return sum(path.stat().st_size for part in kept for path in part.iterdir())

        wait_for(lambda: hot_bytes(client) == 0 and used() <= 2 * live)


# --- bootstrap


def test_bootstrap_without_a_snapshot(client, stream):
    answer = client.get(f"{stream}/bootstrap")
    assert parts(answer) == [
        ("application/octet-stream", b""),
        *(("text/plain", w) for w in (b"one", b"two", b"three")),
    ]
    assert answer.headers["stream-snapshot-offset"] == "-1"
    assert answer.headers["stream-next-offset"] == f"{11:020d}"
    assert answer.headers["stream-up-to-date"] == "true"
    assert answer.headers["cache-control"] == "no-store"


def test_bootstrap_with_a_snapshot(client, stream):
    publish(client, stream, 3, b"\r\n--odd\r\n")
    answer = client.get(f"{stream}/bootstrap")
    assert parts(answer) == [
        ("application/x-state", b"\r\n--odd\r\n"),
        ("text/plain", b"two"),
        ("text/plain", b"three"),
    ]
    assert answer.headers["stream-snapshot-offset"] == f"{3:020d}"


def test_bootstrap_starts_at_the_snapshot_where_more_is_kept(client, stream):
    client.put(f"{stream}/snapshot/6?trim=false", content=b"s")
    assert [body for _, body in parts(client.get(f"{stream}/bootstrap"))] == [b"s", b"three"]


def test_bootstrap_of_an_empty_and_of_a_closed_stream(client, bucket):
    url = f"/ds/{bucket}/empty"
    client.put(url, headers={"content-type": "text/plain"})
    assert parts(client.get(f"{url}/bootstrap")) == [EMPTY]
    client.post(url, headers={"stream-closed": "true"})
    assert client.get(f"{url}/bootstrap").headers["stream-closed"] == "true"


def test_bootstrap_refuses_live_and_answers_head(client, stream):
    assert code(client.get(f"{stream}/bootstrap", params={"live": "sse"})) == "bad_live"
    head = client.head(f"{stream}/bootstrap")
    assert (head.status_code, head.content, head.headers["stream-snapshot-offset"]) == (200, b"", "-1")
    assert client.get(f"{stream}/bootstrap").status_code == 200


def test_bootstrap_of_messages_in_segments_and_in_memory(client, bucket):
    url = f"/ds/{bucket}/long"
    client.put(url, headers={"content-type": "application/json"})
    items = [{"n": index, "text": "x" * (index % 300)} for index in range(5_000)]
    append(client, url, json.dumps(items[:4_000]), "application/json")
    wait_for(lambda: hot_bytes(client) == 0)
    for item in items[4_000:4_050]:
        append(client, url, json.dumps(item), "application/json")
    append(client, url, json.dumps(items[4_050:]), "application/json")
    found = parts(client.get(f"{url}/bootstrap"))
    assert [json.loads(body) for _, body in found[1:]] == items
    assert {kind for kind, _ in found[1:]} == {"application/json"}


def test_javascript_reads_the_bootstrap_too(running, client, stream, node):
    """`Response.formData` is for another kind of multipart, so this is a parser as a page would write it."""
    publish(client, stream, 3, b"caf\xc3\xa9")
    script = """
      const answer = await fetch(process.argv[1]);
      const boundary = /boundary=(.+)$/.exec(answer.headers.get("content-type"))[1];
      const text = Buffer.from(await answer.arrayBuffer()).toString("utf8");
      const [first, ...rest] = ("\\r\\n" + text).split("\\r\\n--" + boundary);
      const parts = rest.slice(0, -1).map((part) => part.slice(part.indexOf("\\r\\n\\r\\n") + 4));
      console.log(JSON.stringify({parts, end: rest.at(-1)}));
    """
    url = running.url + f"{stream}/bootstrap"
    done = subprocess.run(
        [node, "--input-type=module", "-e", script, url], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == {"parts": ["café", "two", "three"], "end": "--\r\n"}


def test_a_bootstrap_while_appends_go_on_is_a_prefix(client, bucket):
    url = f"/ds/{bucket}/busy"
    client.put(url, headers={"content-type": "text/plain"})

    def write():
        for index in range(300):
            append(client, url, f"{index:04d}")

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done():
            answer = client.get(f"{url}/bootstrap")
            found = [body for _, body in parts(answer)[1:]]
            assert found == [f"{index:04d}".encode() for index in range(len(found))]
            assert int(answer.headers["stream-next-offset"]) == 4 * len(found)
        writing.result()


def test_snapshots_of_streams_with_a_slash_in_their_name(client):
    client.put("/v1/stream/flat/a/b", content=b"x", headers={"content-type": "text/plain"})
    assert publish(client, "/ds/flat/a%2Fb", 1).status_code == 204
    gone = client.get("/v1/stream/flat/a/b", params={"offset": "-1"})
    assert (gone.status_code, gone.headers["link"]) == (410, '</ds/flat/a%2Fb/bootstrap>; rel="bootstrap"')
    assert parts(client.get("/ds/flat/a%2Fb/bootstrap")) == [("application/x-state", b"state")]


# --- retention


def test_retention_by_size_keeps_at_least_what_was_asked(client):
    client.put("/ds/bysize", json={"retention_bytes": 1_000_000})
    client.put("/ds/bysize/s", headers={"content-type": "application/octet-stream"})
    for index in range(40):
        end = append(client, "/ds/bysize/s", bytes([index]) * 100_000, "application/octet-stream")

    def earliest():
        return int(client.head("/ds/bysize/s").headers.get("stream-earliest-offset", 0))

    wait_for(lambda: end - earliest() < 1_300_000)
    assert end - earliest() >= 1_000_000
    kept = client.get("/ds/bysize/s", params={"offset": "-1"})
    assert int(kept.content[0]) == earliest() // 100_000
    assert client.get("/ds/bysize/s", params={"offset": 0}).status_code == 410


def test_retention_by_age_lets_old_messages_go(client):
    client.put("/ds/byage", json={"retention_seconds": 1})
    client.put("/ds/byage/s", content=b"old", headers={"content-type": "text/plain"})
    client.put("/ds/byage/keep", content=b"old", headers={"content-type": "text/plain"})
    client.put("/ds/byage/keep/snapshot/0", content=b"s")
    wait_for(lambda: client.head("/ds/byage/s").headers.get("stream-earliest-offset") == f"{3:020d}")
    append(client, "/ds/byage/s", "new")
    assert client.get("/ds/byage/s", params={"offset": "-1"}).text == "new"
    assert client.get("/ds/byage/keep", params={"offset": "0"}).text == "old"  # never past a snapshot


def test_the_listing_says_where_the_latest_snapshot_is(client, bucket, stream):
    def listed():
        (entry,) = client.get(f"/ds/{bucket}/streams").json()["streams"]
        return entry["snapshot_offset"]

    assert listed() is None
    publish(client, stream, 6)
    assert listed() == 6
    time.sleep(0.8)  # a checkpoint: from the catalog it is the same
    assert listed() == 6


# --- compression


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_bootstrap_and_listing_come_compressed_to_who_asks(client, bucket, encoding):
    url = f"/ds/{bucket}/words"
    client.put(url, headers={"content-type": "text/plain"})
    for number in range(20):
        append(client, url, "the same words again " * 20)
        client.put(f"/ds/{bucket}/{'long' * 20}-{number}", headers={"content-type": "text/plain"})
    for path in (f"{url}/bootstrap", f"/ds/{bucket}/streams"):
        plain = client.get(path, headers={"accept-encoding": "identity"})
        packed = client.get(path, headers={"accept-encoding": encoding})
        assert packed.headers["content-encoding"] == encoding
        assert "content-encoding" not in plain.headers
        if path.endswith("bootstrap"):
            assert parts(packed) == parts(plain)
        else:
            assert packed.json() == plain.json()
