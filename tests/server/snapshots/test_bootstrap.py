"""The bootstrap over HTTP (extension section 3)."""

import asyncio
import json
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.server.snapshots.words import EMPTY, MIB, append, code, hot_bytes, parts, publish, wait_for

from millstream.server.compression import compressed

# --- bootstrap


def test_bootstrap_without_a_snapshot(client, stream):
    answer = client.get(f"{stream}/bootstrap")
    assert parts(answer) == [
        ("application/octet-stream", b""),
        *(("text/plain", w) for w in (b"one", b"two", b"three")),
    ]
    assert answer.headers["stream-snapshot-offset"] == "-1"
    assert "stream-earliest-offset" not in answer.headers
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
    assert answer.headers["stream-earliest-offset"] == f"{3:020d}"


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


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize("path", ["bootstrap", f"snapshot/{6:020d}"])
def test_a_snapshot_that_cannot_be_read_is_refused_before_the_answer_begins(running, client, stream, path, encoding):
    folder = running.data_dir / "objects" / "snapshots"
    before = set(folder.iterdir())
    assert publish(client, stream, 6, b"x" * 2 * MIB).status_code == 204
    (published,) = set(folder.iterdir()) - before
    content = published.read_bytes()
    published.unlink()
    replaced = client.get(f"{stream}/{path}", headers={"accept-encoding": encoding})
    assert (replaced.status_code, code(replaced)) == (404, "no_such_snapshot")
    published.mkdir()
    unreadable = client.get(f"{stream}/{path}", headers={"accept-encoding": encoding})
    assert (unreadable.status_code, code(unreadable)) == (503, "unavailable")
    published.rmdir()
    published.symlink_to(published)  # it cannot even be opened
    unreadable = client.get(f"{stream}/{path}", headers={"accept-encoding": encoding})
    assert (unreadable.status_code, code(unreadable)) == (503, "unavailable")
    published.unlink()
    published.write_bytes(content)
    assert client.get(f"{stream}/{path}").status_code == 200


# --- compression


def test_who_stops_to_read_compressed_pieces_closes_what_they_are_made_of():
    is_closed = []

    async def source():
        try:
            while True:
                yield random.randbytes(100_000)
        finally:
            is_closed.append(True)

    async def read_one():
        pieces = compressed(source(), b"gzip")
        assert await anext(pieces)
        await pieces.aclose()
        assert is_closed

    asyncio.run(read_one())


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
