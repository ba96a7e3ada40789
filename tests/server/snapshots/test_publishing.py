"""Snapshots over HTTP (extension section 2): publishing, reading, and what is no longer kept."""

import random
import time

import httpx
import pytest
from tests.server.snapshots.words import MIB, SETTINGS, append, chunks, code, hot_bytes, publish, wait_for

# --- publishing and reading


def test_a_snapshot_is_published_found_and_read(client, stream):
    assert client.get(f"{stream}/snapshot").status_code == 404
    assert "stream-snapshot-offset" not in client.head(stream).headers
    answer = publish(client, stream, 6, b"\x00one two")
    assert (answer.status_code, answer.headers["stream-snapshot-offset"]) == (204, f"{6:020d}")

    latest = client.get(f"{stream}/snapshot")
    assert latest.status_code == 307
    assert latest.headers["location"] == f"{stream}/snapshot/{6:020d}"  # whatever a proxy has made of scheme and host
    read = client.get(latest.headers["location"])
    assert (read.status_code, read.content) == (200, b"\x00one two")
    assert read.headers["content-type"] == "application/x-state"
    assert read.headers["stream-next-offset"] == read.headers["stream-snapshot-offset"] == f"{6:020d}"
    assert read.headers["stream-up-to-date"] == "false"
    head = client.head(stream).headers
    assert (head["stream-snapshot-offset"], head["stream-earliest-offset"]) == (f"{6:020d}", f"{6:020d}")


def test_the_way_to_the_latest_says_where_it_leads(client, stream):
    publish(client, stream, 6)
    way = client.get(f"{stream}/snapshot")
    assert (way.status_code, way.headers["stream-next-offset"]) == (307, f"{6:020d}")
    assert (way.headers["stream-up-to-date"], way.headers.get("stream-closed")) == ("false", None)


def test_the_last_snapshot_of_a_closed_stream_is_its_end(client, stream):
    client.post(stream, headers={"stream-closed": "true"})
    publish(client, stream, 6)
    assert "stream-closed" not in client.get(f"{stream}/snapshot/6").headers
    publish(client, stream, 11)
    for url in (f"{stream}/snapshot", f"{stream}/snapshot/11"):
        answer = client.get(url)
        assert (answer.headers["stream-up-to-date"], answer.headers["stream-closed"]) == ("true", "true")


@pytest.mark.parametrize("offset", ["abc", "-1", "now", "6x"])
def test_what_is_no_offset_names_no_snapshot(client, stream, offset):
    publish(client, stream, 6)
    for method in ("GET", "HEAD", "DELETE"):
        assert client.request(method, f"{stream}/snapshot/{offset}").status_code == 404
    refused = publish(client, stream, offset)
    assert (refused.status_code, code(refused)) == (400, "bad_offset")


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
        assert (answer.status_code, code(answer)) == (413, "snapshot_too_large")
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


def test_a_large_snapshot_that_loses_its_stream_while_it_arrives_leaves_nothing(running, client, stream):
    """The stream is there when the body begins, and gone when it ends."""
    folder = running.data_dir / "objects" / "snapshots"
    before = sorted(folder.iterdir())

    def body():
        yield b"x" * MIB
        with httpx.Client(base_url=running.url) as other:
            assert other.delete(stream).status_code == 204
        yield b"x" * MIB

    assert publish(client, stream, 6, body()).status_code == 404
    assert sorted(folder.iterdir()) == before


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
