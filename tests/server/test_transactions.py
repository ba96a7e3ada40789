"""Transactions over HTTP: staging, committing, and every way to get it wrong."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pyarrow as pa
import pytest

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
JSON = "application/json"


@pytest.fixture(scope="module")
def running(module_server):
    return module_server({"checkpoint_age_s": 0.3, "staged_part_bytes_max": "8MiB", "transaction_apps_max": 3})


@pytest.fixture(scope="module")
def client(running):
    with httpx.Client(base_url=running.url, timeout=30) as client:
        yield client


@pytest.fixture
def desk(client, request):
    name = f"bucket-{abs(hash(request.node.name)) % 10**9}"
    assert client.put(f"/ds/{name}").status_code == 201
    return Desk(client, name)


class Desk:
    """What an application says, in few words."""

    def __init__(self, client: httpx.Client, bucket: str) -> None:
        self.client = client
        self.bucket = bucket
        self.root = f"/ds/{bucket}/streams/transactions"

    def stage(self, where: str, body: bytes | str, kind: str = NDJSON) -> httpx.Response:
        return self.client.put(f"{self.root}/{where}", content=body, headers={"Content-Type": kind})

    def commit(self, where: str, *parts: object, **fields: object) -> httpx.Response:
        return self.client.post(f"{self.root}/{where}", json={"parts": parts, "create": True, **fields})

    def last(self, app: str = "etl") -> object:
        return self.client.get(f"{self.root}/{app}").json()["version"]

    def parts(self, where: str) -> list[str]:
        return [part["part"] for part in self.client.get(f"{self.root}/{where}").json()["parts"]]

    def read(self, stream: str) -> bytes:
        answer = self.client.get(f"/ds/{self.bucket}/{stream}", params={"offset": "-1"})
        assert answer.status_code == 200, answer.text
        return answer.content


def lines(*rows: tuple[str, object]) -> str:
    return "\n".join(json.dumps({"stream": stream, "json": value}) for stream, value in rows)


def arrow(streams: list[str], values: list[bytes], **columns: object) -> bytes:
    table = pa.table({"stream": streams, "value": pa.array(values, pa.binary()), **columns})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def code(answer: httpx.Response) -> str:
    return answer.json()["error"]["code"]


# --- the story


def test_stage_commit_and_again(desk):
    staged = desk.stage("etl/7/0", lines(("a", 1), ("b", {"x": [2]}), ("a", 3)))
    assert staged.status_code == 200
    told = staged.json()
    assert {key: told[key] for key in ("app", "version", "part", "messages", "duplicate")} == {
        "app": "etl",
        "version": 7,
        "part": "0",
        "messages": 3,
        "duplicate": False,
    }
    assert desk.last() is None
    assert desk.parts("etl/7") == ["0"]
    done = desk.commit("etl/7", {"part": "0", "etag": told["etag"]}, content_type=JSON)
    assert done.status_code == 200
    figures = done.json()
    assert figures.pop("committed_at_ms") > 1_700_000_000_000
    assert figures == {
        "app": "etl",
        "version": 7,
        "duplicate": False,
        "messages": 3,
        "bytes": told["bytes"],
        "streams": 2,
        "created": 2,
    }
    assert (desk.read("a"), desk.read("b")) == (b"[1,3]", b'[{"x": [2]}]')
    again = desk.commit("etl/7", "whatever")
    assert again.json() == {**done.json(), "duplicate": True}
    assert desk.last() == 7
    assert desk.client.get(f"{desk.root}/etl/7").json()["state"] == "committed"
    assert desk.client.get(f"{desk.root}/etl/6").json()["state"] == "fenced"
    assert desk.client.get(f"{desk.root}/etl/8").json()["state"] == "staged"
    assert desk.stage("etl/7/0", lines(("a", 1))).json()["duplicate"] is True
    assert desk.read("a") == b"[1,3]"


def test_arrow_with_an_order(desk):
    desk.stage("etl/1/0", arrow(["a", "a"], [b"3", b"1"], order=[3, 1]), ARROW)
    desk.stage("etl/1/1", arrow(["a", "a"], [b"2", b"4"], order=[2, 4]), ARROW)
    assert desk.commit("etl/1", "0", "1").status_code == 200
    assert desk.read("a") == b"1234"


def test_without_the_prefix_and_with_the_flat_one(desk):
    desk.root = desk.root.removeprefix("/ds")
    desk.stage("etl/1/0", lines(("a", 1)))
    assert desk.commit("etl/1", "0").status_code == 200
    assert desk.client.get(f"/v1/stream/{desk.bucket}/a").content == b"1"


def test_a_large_part_comes_in_pieces_with_and_without_a_length(desk):
    rng = random.Random(1)
    rows = [(f"s{rng.randrange(20)}", rng.randbytes(2000)) for _ in range(2000)]
    body = arrow([row[0] for row in rows], [row[1] for row in rows])
    assert len(body) > 4_000_000

    def pieces():
        for at in range(0, len(body), 100_000):
            yield body[at : at + 100_000]

    for version, content in ((1, body), (2, pieces())):
        assert desk.stage(f"etl/{version}/0", content, ARROW).json()["messages"] == 2000
        assert desk.commit(f"etl/{version}", "0").status_code == 200
    for stream in {row[0] for row in rows}:
        assert desk.read(stream) == b"".join(value for name, value in rows if name == stream) * 2


@contextlib.contextmanager
def without_a_place_for_bodies(running):
    bodies = running.data_dir / "objects" / "bodies"
    away = bodies.with_name("away")
    bodies.rename(away)
    try:
        yield
    finally:
        away.rename(bodies)


@pytest.mark.parametrize("count", [1, 50_000])
def test_a_part_that_cannot_be_written_is_refused_whatever_its_size(running, desk, count):
    body = lines(*(("a", 1) for _ in range(count)))
    with without_a_place_for_bodies(running):
        refused = desk.stage("etl/1/0", body)
        assert (refused.status_code, code(refused)) == (503, "body_not_stored")
    assert desk.stage("etl/1/0", body).json()["messages"] == count
    assert "Traceback" not in running.log()


def test_a_large_part_of_a_committed_version_is_not_written(running, desk):
    body = lines(*(("a", 1) for _ in range(50_000)))
    assert desk.stage("etl/1/0", body).json()["duplicate"] is False
    assert desk.commit("etl/1", "0").status_code == 200
    with without_a_place_for_bodies(running):
        assert desk.stage("etl/1/0", body).json()["duplicate"] is True
        too_large = desk.stage("etl/1/0", b"x" * 9_000_000)
        assert (too_large.status_code, code(too_large)) == (413, "body_too_large")
    assert desk.client.get(f"{desk.root}/etl").json()["version"] == 1  # the connection is in order


def test_tasks_stage_at_the_same_time(desk):
    with ThreadPoolExecutor(8) as pool:
        staged = list(pool.map(lambda n: desk.stage(f"etl/1/{n}", lines(("a", n), (f"own{n}", n))), range(40)))
    assert {answer.status_code for answer in staged} == {200}
    done = desk.commit("etl/1", *(str(n) for n in range(40)), content_type=JSON)
    assert done.json()["streams"] == 41
    assert json.loads(desk.read("a")) == list(range(40))


def test_an_empty_transaction(desk):
    assert desk.stage("etl/1/0", b"").json()["messages"] == 0
    assert desk.commit("etl/1", "0").json()["messages"] == 0
    assert desk.commit("etl/2").json()["version"] == 2
    assert desk.last() == 2


def test_dropping_and_forgetting(desk):
    desk.stage("etl/1/0", lines(("a", 1)))
    assert desk.client.delete(f"{desk.root}/etl/1").status_code == 204
    assert desk.client.delete(f"{desk.root}/etl/1").status_code == 204
    assert desk.parts("etl/1") == []
    desk.commit("etl/5")
    assert desk.client.delete(f"{desk.root}/etl").status_code == 204
    assert desk.last() is None
    assert desk.commit("etl/1").json()["duplicate"] is False


def test_a_bucket_of_transactions_only_can_be_deleted(desk):
    desk.commit("etl/1")
    assert desk.client.delete(f"/ds/{desk.bucket}").status_code == 204
    assert code(desk.client.get(f"{desk.root}/etl")) == "bucket_not_found"


# --- refusals


def test_all_the_reasons(desk):
    desk.client.put(f"/ds/{desk.bucket}/closed", headers={"Stream-Closed": "true"})
    desk.client.put(f"/ds/{desk.bucket}/json", headers={"Content-Type": JSON})
    no_json = json.dumps({"stream": "json", "value": base64.b64encode(b"no json").decode()})
    desk.stage("etl/1/0", lines(("closed", 1), ("new", 1)) + "\n" + no_json)
    missing = desk.commit("etl/1", "0", "9", create=False)
    assert (missing.status_code, code(missing)) == (409, "transaction_refused")
    assert [reason["part"] for reason in missing.json()["error"]["reasons"]] == ["9"]
    error = desk.commit("etl/1", "0", create=False).json()["error"]
    assert error["reason_count"] == 3
    found = {reason["stream"]: reason["code"] for reason in error["reasons"]}
    assert found == {"closed": "stream_closed", "new": "stream_not_found", "json": "invalid_json"}
    assert all(reason["message"].endswith(".") for reason in error["reasons"])
    assert desk.parts("etl/1") == ["0"], "it stays staged"
    assert desk.last() is None


def test_a_zombie(desk):
    desk.commit("etl/5")
    for answer in (desk.commit("etl/4"), desk.stage("etl/4/0", lines(("a", 1)))):
        assert (answer.status_code, code(answer)) == (409, "transaction_fenced")


def test_so_many_applications(desk):
    for app in ("one", "two", "three"):
        assert desk.commit(f"{app}/1").status_code == 200
    answer = desk.commit("four/1")
    assert (answer.status_code, code(answer)) == (429, "too_many_apps")
    assert answer.headers["Retry-After"]


@pytest.mark.parametrize(
    "where", ["etl/x/0", "etl/-1/0", "etl/01/0", "etl/9223372036854775808/0", "e%20tl/1/0", "etl/1/p%2Fq", "%2E%2E/1/0"]
)
def test_bad_names(desk, where):
    answer = desk.stage(where, lines(("a", 1)))
    assert (answer.status_code, code(answer)) == (400, "bad_transaction")
    assert answer.json()["error"]["message"].endswith(".")


def test_long_names(desk):
    assert desk.stage(f"{'x' * 128}/{2**63 - 1}/{'y' * 128}", lines(("a", 1))).status_code == 200
    assert code(desk.stage(f"{'x' * 129}/1/0", lines(("a", 1)))) == "bad_transaction"
    assert code(desk.stage(f"x/1/{'y' * 129}", lines(("a", 1)))) == "bad_transaction"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b'{"parts":"0"}',
        b'{"parts":[0]}',
        b'{"parts":["0","0"]}',
        b'{"parts":[{"part":"0","tag":"x"}]}',
        b'{"parts":["0"],"create":"yes"}',
        b'{"parts":["0"],"content_type":"nonsense"}',
        b'{"parts":["0"],"content_type":"a/b\\u0000"}',
        b'{"parts":["0"],"unknown":1}',
        b"[" * 100_000,
        b'{"parts":["\xff"]}',
    ],
)
def test_bad_commits(desk, body):
    desk.stage("etl/1/0", lines(("a", 1)))
    answer = desk.client.post(f"{desk.root}/etl/1", content=body)
    assert (answer.status_code, code(answer)) == (400, "bad_transaction")
    assert desk.parts("etl/1") == ["0"]
    assert desk.last() is None


@pytest.mark.parametrize(
    ("body", "kind", "status", "said"),
    [
        (b"x", NDJSON, 400, "bad_part"),
        (b"x", ARROW, 400, "bad_part"),
        (lines(("a", 1)), JSON, 415, "unsupported_media_type"),
        (lines(("a", 1)), "", 415, "unsupported_media_type"),
        (b"x" * 1_000_000, JSON, 415, "unsupported_media_type"),
        (b"x" * 9_000_000, ARROW, 413, "body_too_large"),
        (b"x" * 8_000_000, ARROW, 400, "bad_part"),
        (arrow([""], [b"x"]), ARROW, 400, "bad_part"),
    ],
)
def test_bad_parts(desk, body, kind, status, said):
    answer = desk.stage("etl/1/0", body, kind)
    assert (answer.status_code, code(answer)) == (status, said)
    assert desk.parts("etl/1") == []


def test_parameters_of_the_content_type_do_not_matter(desk):
    assert desk.stage("etl/1/0", lines(("a", 1)), "Application/X-NDJSON; charset=utf-8").status_code == 200


@pytest.mark.parametrize(
    ("method", "where", "allowed"),
    [
        ("POST", "etl", "GET, HEAD, DELETE, OPTIONS"),
        ("PUT", "etl", "GET, HEAD, DELETE, OPTIONS"),
        ("PUT", "etl/1", "GET, HEAD, POST, DELETE, OPTIONS"),
        ("POST", "etl/1/0", "PUT, OPTIONS"),
        ("GET", "etl/1/0", "PUT, OPTIONS"),
    ],
)
def test_other_methods(desk, method, where, allowed):
    answer = desk.client.request(method, f"{desk.root}/{where}")
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)


@pytest.mark.parametrize("where", ["", "/etl/1/0/more"])
def test_there_is_nothing_else(desk, where):
    assert code(desk.client.get(f"{desk.root}{where}")) == "unknown_route"
    assert code(desk.client.get(f"{desk.root}/")) == "bad_transaction"


@pytest.mark.parametrize("size", [10, 2_000_000])
def test_a_missing_bucket(client, size):
    desk = Desk(client, "no-such-bucket")
    answers = [desk.stage("etl/1/0", b"x" * size), desk.commit("etl/1"), client.get(f"{desk.root}/etl")]
    answers += [client.delete(f"{desk.root}/etl"), client.delete(f"{desk.root}/etl/1")]
    assert [code(answer) for answer in answers] == ["bucket_not_found"] * 5


def test_a_body_that_breaks_off_changes_nothing(running, desk):
    assert desk.stage("etl/1/0", lines(("a", "whole"))).status_code == 200
    for chunked in (False, True):
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
        connection.putrequest("PUT", f"{desk.root}/etl/1/0")
        connection.putheader("Content-Type", NDJSON)
        if chunked:
            connection.putheader("Transfer-Encoding", "chunked")
        else:
            connection.putheader("Content-Length", "5000000")
        connection.endheaders()
        connection.send((b"186a0\r\n" if chunked else b"") + b"x" * 100_000)
        time.sleep(0.1)
        connection.close()
    time.sleep(0.2)
    assert desk.commit("etl/1", "0").status_code == 200
    assert desk.read("a") == b'"whole"'
    bodies = running.data_dir / "objects" / "bodies"
    assert list(bodies.iterdir()) == []


def test_parts_expire(server):
    with httpx.Client(base_url=server({"staged_ttl_s": 0.3}).url, timeout=30) as client:
        client.put("/ds/shop")
        desk = Desk(client, "shop")
        desk.stage("etl/1/0", lines(("a", 1)))
        time.sleep(0.4)
        refused = desk.commit("etl/1", "0")
        assert refused.json()["error"]["reasons"][0]["code"] == "part_missing"


def test_everything_survives_a_kill(server):
    running = server({"checkpoint_age_s": 3600})
    with httpx.Client(base_url=running.url, timeout=30) as client:
        client.put("/ds/shop")
        desk = Desk(client, "shop")
        desk.stage("etl/1/0", lines(("a", 1)))
        desk.commit("etl/1", "0")
        desk.stage("etl/2/0", lines(("a", 2)))
        running.kill()
        running.start()
        assert desk.last() == 1
        assert desk.commit("etl/1", "0").json()["duplicate"] is True
        assert desk.commit("etl/2", "0").json()["duplicate"] is False
        assert desk.read("a") == b"12"


def test_without_pyarrow_lines_still_work(tmp_path, monkeypatch, server):
    """A server that cannot find pyarrow: as if the extra were not installed."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyarrow'] = None\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with httpx.Client(base_url=server().url, timeout=30) as client:
        client.put("/ds/shop")
        desk = Desk(client, "shop")
        for body in (b"small", b"x" * 2_000_000):
            refused = desk.stage("etl/1/0", body, ARROW)
            assert (refused.status_code, code(refused)) == (415, "arrow_missing")
        desk.stage("etl/1/0", lines(("a", 1)))
        assert desk.commit("etl/1", "0").status_code == 200
        assert desk.read("a") == b"1"


def test_metrics_tell_of_it(desk, client):
    def figure(name: str) -> float:
        return next(
            float(line.split()[1]) for line in client.get("/metrics").text.splitlines() if line.startswith(name)
        )

    before = figure("millstream_transactions_total")
    desk.stage("etl/1/0", lines(("a", 1)))
    assert figure("millstream_staged_parts ") >= 1
    assert figure("millstream_staged_bytes ") >= 1
    desk.commit("etl/1", "0")
    desk.commit("etl/1", "0")
    assert figure("millstream_transactions_total") == before + 1
