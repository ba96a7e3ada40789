"""Buckets and listings over HTTP (extension section 1), on both bucketed prefixes."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest


@pytest.fixture(scope="module")
def client(module_server):
    running = module_server({"checkpoint_age_s": 0.3})
    with httpx.Client(base_url=running.url, timeout=10) as client:
        yield client


@pytest.fixture
def bucket(client, request):
    name = f"bucket-{abs(hash(request.node.name)) % 10**9}"
    assert client.put(f"/ds/{name}").status_code == 201
    return name


def code(response):
    return response.json()["error"]["code"]


def names(response):
    assert response.status_code == 200, response.text
    return [stream["stream_id"] for stream in response.json()["streams"]]


def walk(client, bucket, limit, **query):
    """Every page of a listing, one after the other."""
    found, after = [], ""
    while True:
        page = client.get(f"/{bucket}/streams", params={"limit": limit, "after": after, **query})
        found += names(page)
        body = page.json()
        assert body["stream_count"] == len(body["streams"]) <= limit
        if not body["has_more"]:
            return found
        after = body["next_cursor"]


# --- buckets


def test_a_bucket_is_created_once_and_told_of(client, bucket):
    again = client.put(f"/{bucket}")
    assert (again.status_code, code(again)) == (409, "bucket_exists")
    told = client.get(f"/ds/{bucket}").json()
    assert (told["bucket_id"], told["streams"]) == (bucket, 0)
    assert client.head(f"/{bucket}").status_code == 200


@pytest.mark.parametrize(
    "name",
    ["abc", "A" * 5, "x" * 65, "with.dot", "sp%20ce", "a%2Fbcd", "v1", "ui", "readyz", "cluster", "__ds", "__new"],
)
def test_bad_names_are_refused_and_nothing_is_made(client, name):
    answer = client.put(f"/ds/{name}")
    assert (answer.status_code, code(answer)) == (400, "bad_bucket")
    for method, path in (("GET", ""), ("DELETE", ""), ("PUT", "/stream"), ("GET", "/stream"), ("GET", "/streams")):
        answer = client.request(method, f"/ds/{name}{path}")
        assert (answer.status_code, code(answer)) == (400, "bad_bucket")


@pytest.mark.parametrize("method", ["PUT", "GET", "POST", "DELETE"])
@pytest.mark.parametrize("path", ["/readyz/cluster", "/readyz/foo", "/cluster/x", "/ui/x", "/metrics/x", "/%72eadyz/x"])
def test_unknown_routes_of_operators_are_never_streams(client, method, path):
    flat = client.request(method, f"/v1/stream{path}", headers={"Content-Type": "text/plain"}, content=b"all is well")
    assert (flat.status_code, code(flat)) == (400, "bad_name")
    assert "reserved" in flat.text
    answer = client.request(method, path, headers={"Content-Type": "text/plain"}, content=b"all is well")
    assert (answer.status_code, code(answer)) == (404, "unknown_route")


def test_a_slash_at_the_end_is_a_stream_without_a_name(client, bucket):
    for path in ("/ds/trailing/", f"/{bucket}/"):
        answer = client.put(path)
        assert (answer.status_code, code(answer)) == (400, "bad_name")
        assert "name" in answer.text
    assert client.get("/ds/trailing").status_code == 404


def test_a_bucket_is_no_stream_and_says_so_to_whoever_reads_it_as_one(client, bucket):
    for query in ("offset=-1", "offset=now&live=sse", "live=long-poll"):
        answer = client.get(f"/{bucket}?{query}")
        assert (answer.status_code, code(answer)) == (400, "bad_query")
        assert "/v1/stream/" in answer.text


@pytest.mark.parametrize("name", ["_default", "_s3p"])
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_the_servers_own_buckets_are_left_alone(client, name, method):
    answer = client.request(method, f"/ds/{name}")
    assert (answer.status_code, code(answer)) == (409, "bucket_reserved")


def test_streams_of_a_missing_bucket_are_404_and_make_no_bucket(client):
    for method in ("PUT", "POST", "GET", "HEAD", "DELETE"):
        headers = {"Content-Type": "text/plain"}
        assert client.request(method, "/ds/nowhere/stream", headers=headers).status_code == 404
    assert client.get("/ds/nowhere").status_code == 404
    assert client.get("/ds/nowhere/streams").status_code == 404


def test_a_bucket_goes_only_when_it_is_empty(client, bucket):
    assert client.put(f"/{bucket}/one").status_code == 201
    full = client.delete(f"/{bucket}")
    assert (full.status_code, code(full)) == (409, "bucket_not_empty")
    assert client.delete(f"/{bucket}/one").status_code == 204
    assert client.delete(f"/{bucket}").status_code == 204
    assert client.get(f"/{bucket}").status_code == 404
    assert client.put(f"/{bucket}/one").status_code == 404
    assert client.put(f"/{bucket}").status_code == 201
    assert client.get(f"/{bucket}").json()["streams"] == 0


def test_all_prefixes_show_the_same_stream(client, bucket):
    made = client.put(f"/ds/{bucket}/doc", content=b"hello", headers={"Content-Type": "text/plain"})
    assert made.headers["Location"].endswith(f"/ds/{bucket}/doc")
    assert client.get(f"/{bucket}/doc").text == "hello"
    assert client.get(f"/v1/stream/{bucket}/doc").text == "hello"


def test_a_flat_stream_with_a_slash_is_reached_by_its_encoded_name(client, bucket):
    client.put(f"/v1/stream/{bucket}/a/b", content=b"deep")
    assert client.get(f"/{bucket}/a%2Fb").content == b"deep"
    assert names(client.get(f"/{bucket}/streams")) == ["a/b"]
    refused = client.put(f"/{bucket}/c%2Fd")
    assert (refused.status_code, code(refused)) == (400, "bad_name")


def test_implicit_buckets_list_and_go_like_any_other(client):
    client.put("/v1/stream/b1/x")
    assert names(client.get("/ds/b1/streams")) == ["x"]
    assert client.delete("/ds/b1/x").status_code == 204
    assert client.delete("/ds/b1").status_code == 204


@pytest.mark.parametrize("name", ["x" * 123, "%2E%2E", "a..b", "%00", "%ff"])
def test_bad_stream_names_are_400(client, bucket, name):
    assert client.put(f"/{bucket}/{name}").status_code == 400


def test_bucket_and_name_share_a_limit_in_which_the_slash_counts(client):
    bucket = "b" * 64
    assert client.put(f"/{bucket}").status_code == 201
    assert client.put(f"/{bucket}/{'s' * 57}").status_code == 201
    refused = client.put(f"/{bucket}/{'s' * 58}")
    assert (refused.status_code, code(refused)) == (400, "bad_name")
    assert "'/'" in refused.text


@pytest.mark.parametrize("name", ["%2E", "a%zz", "100%", "%"])
def test_a_name_that_no_url_can_hold_is_400(client, bucket, name):
    raw = httpx.URL(client.base_url, raw_path=f"/{bucket}/{name}".encode())
    answer = client.request("PUT", raw)
    assert (answer.status_code, code(answer)) == (400, "bad_name")


def test_other_methods_are_405_with_what_is_allowed(client, bucket):
    assert "PATCH" in client.post(f"/{bucket}").headers["Allow"]
    assert "GET" in client.delete(f"/{bucket}/streams").headers["Allow"]
    reserved = client.put(f"/{bucket}/streams")
    assert (reserved.status_code, code(reserved)) == (400, "bad_name")
    assert "reserved" in reserved.text


# --- settings


def test_a_buckets_defaults_hold_for_streams_that_say_nothing(client):
    settings = {"content_type": "application/json", "ttl_seconds": 500, "caching": "private"}
    assert client.put("/settled", json=settings).status_code == 201
    assert client.put("/settled/a").status_code == 201
    told = client.head("/settled/a").headers
    assert (told["Content-Type"], told["Stream-TTL"]) == ("application/json", "500")
    assert client.get("/settled/a").headers["Cache-Control"].startswith("private")
    assert client.put("/settled/b", headers={"Content-Type": "text/plain", "Stream-TTL": "9"}).status_code == 201
    assert client.head("/settled/b").headers["Stream-TTL"] == "9"
    unnamed = client.put("/settled/c", content=b"[1]")
    assert (unnamed.status_code, code(unnamed)) == (400, "content_type_missing")


def test_patch_changes_what_it_names_and_null_takes_back(client):
    client.put("/patched", json={"ttl_seconds": 5, "content_type": "text/plain"})
    settings = client.patch("/patched", json={"ttl_seconds": None, "retention_bytes": 1000}).json()["settings"]
    assert settings["ttl_seconds"] is None
    assert (settings["content_type"], settings["retention_bytes"]) == ("text/plain", 1000)
    assert client.patch("/missing-one", json={}).status_code == 404


def test_streams_whose_time_is_up_are_neither_counted_nor_in_the_way(client, bucket):
    for number in range(5):
        assert client.put(f"/{bucket}/{number}", headers={"Stream-TTL": "1"}).status_code == 201
    assert client.get(f"/{bucket}").json()["streams"] == 5
    time.sleep(1.05)
    assert client.get(f"/{bucket}").json()["streams"] == 0
    for number in range(5):
        assert client.put(f"/{bucket}/{number}", headers={"Stream-TTL": "1"}).status_code == 201
    time.sleep(1.05)
    assert client.delete(f"/{bucket}").status_code == 204


def test_a_bucket_that_is_changed_and_deleted_at_once_leaves_no_request_waiting(client, bucket):
    """Pipelined from two connections, both usually become durable in one batch."""
    with ThreadPoolExecutor() as pool:
        for _ in range(20):
            client.put(f"/{bucket}")
            patched = pool.submit(client.patch, f"/{bucket}", json={"ttl_seconds": 5})
            deleted = pool.submit(client.delete, f"/{bucket}")
            assert patched.result().status_code in (200, 404)
            assert deleted.result().status_code == 204


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"ttl_seconds": -1}', b'{"ttl": 1}', b'{"caching": "maybe"}', b'{"content_type": "x"}']
)
def test_bad_settings_are_400_and_change_nothing(client, bucket, body):
    before = client.get(f"/{bucket}").json()
    answer = client.patch(f"/{bucket}", content=body)
    assert (answer.status_code, code(answer)) == (400, "bad_settings")
    assert client.get(f"/{bucket}").json() == before


# --- listings


def test_a_listing_follows_streams_through_memory_and_catalog(client, bucket):
    """Random creating and deleting, with checkpoints in between: each page agrees with a sorted set."""
    rng = random.Random(7)
    alive = set()
    for step in range(150):
        name = f"{rng.choice('abc')}-{rng.randrange(40):02d}"
        if name in alive and rng.random() < 0.5:
            assert client.delete(f"/{bucket}/{name}").status_code == 204
            alive.discard(name)
        else:
            assert client.put(f"/{bucket}/{name}").status_code in (200, 201)
            alive.add(name)
        if step % 30 == 0:
            time.sleep(0.4)  # a checkpoint moves names from memory to the catalog
        if step % 10 == 0:
            assert walk(client, bucket, limit=7) == sorted(alive)
            assert walk(client, bucket, limit=3, prefix="b-") == sorted(n for n in alive if n.startswith("b-"))
    assert client.get(f"/{bucket}").json()["streams"] == len(alive)


def test_an_entry_says_how_its_stream_is(client, bucket):
    headers = {"Content-Type": "text/plain"}
    client.put(f"/{bucket}/doc", content=b"hello", headers=headers | {"Stream-Closed": "true"})
    (entry,) = client.get(f"/{bucket}/streams").json()["streams"]
    assert (entry["status"], entry["content_type"], entry["tail_offset"]) == ("closed", "text/plain", 5)
    assert entry["created_at_ms"] == entry["last_write_at_ms"] > 0


def test_an_expired_stream_is_not_listed(client, bucket):
    client.put(f"/{bucket}/short", headers={"Stream-TTL": "1"})
    client.put(f"/{bucket}/long")
    time.sleep(1.2)
    assert names(client.get(f"/{bucket}/streams")) == ["long"]


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "1.5", ""])
def test_a_bad_limit_is_400(client, bucket, limit):
    answer = client.get(f"/{bucket}/streams", params={"limit": limit})
    assert (answer.status_code, code(answer)) == (400, "bad_limit")


def test_names_sort_by_code_point_and_need_no_ascii(client, bucket):
    wanted = ["Z", "a", "\u00e9", "\ue000", "\U0001f600"]
    for name in wanted:
        assert client.put(f"/{bucket}/{name}").status_code == 201
    assert walk(client, bucket, limit=2) == sorted(wanted)
    assert names(client.get(f"/{bucket}/streams", params={"prefix": "\ue000"})) == ["\ue000"]
    time.sleep(0.6)
    assert walk(client, bucket, limit=2) == sorted(wanted)


# --- durability


def test_buckets_and_their_settings_survive_a_kill(server):
    running = server({"checkpoint_age_s": 3600})
    with httpx.Client(base_url=running.url) as client:
        client.put("/lasting", json={"ttl_seconds": 77})
        client.put("/lasting/doc")
        client.put("/fleeting")
        client.delete("/fleeting")
        running.kill()
        running.restart()
        assert client.get("/lasting").json()["settings"]["ttl_seconds"] == 77
        assert client.get("/lasting").json()["streams"] == 1
        assert client.get("/fleeting").status_code == 404
        assert names(client.get("/lasting/streams")) == ["doc"]
