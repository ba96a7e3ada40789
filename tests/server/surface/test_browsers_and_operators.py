"""Who else asks: pages in a browser, and operators."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.surface.client import (
    eventually,
    tag_of,
    varies,
)

# --- browsers


@pytest.mark.parametrize(
    "content_type", ["text/html", "image/svg+xml", "application/xhtml+xml; x=1", "text/javascript", "application/pdf"]
)
def test_what_a_browser_might_run_is_downloaded_and_caged(client, path, content_type):
    client.put(path, b"<script>alert(1)</script>", content_type)
    for answer in (client.get(path), client.head(path), client.get(f"{path}?offset=now")):
        assert answer["Content-Disposition"] == "attachment"
        assert answer["Content-Security-Policy"] == "sandbox"
        assert answer["Content-Type"] == content_type


def test_harmless_content_is_shown_but_caged_too(client, path):
    client.put(path, b"hello")
    answer = client.get(path)
    assert (answer["Content-Disposition"], answer["Content-Security-Policy"]) == (None, "sandbox")
    feed = client.follow(f"{path}?offset=-1&live=sse")
    assert feed.headers["Content-Security-Policy"] == "sandbox"


def test_every_answer_has_the_headers_that_browsers_heed(client, path):
    answers = [client.put(path, b"x"), client.post(path, b"y"), client.get(path), client.head(path)]
    answers += [client.get(path + "-missing"), client("PATCH", path), client.get("/healthz"), client("OPTIONS", path)]
    answers += [client.get(path, if_none_match=tag_of(answers[2])), client.get(f"{path}?offset=x")]
    for answer in answers:
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert answer["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer["Date"] is not None


def test_pages_of_this_machine_are_let_in(client, path):
    client.put(path, b"hello")
    answer = client.get(path, origin="http://localhost:3000")
    assert answer["Access-Control-Allow-Origin"] == "http://localhost:3000"
    assert "stream-next-offset" in answer["Access-Control-Expose-Headers"]
    assert "Origin" in varies(answer)
    appended = client.post(path, b"!", origin="http://localhost:3000")
    assert (appended.status, appended["Access-Control-Allow-Origin"]) == (204, "http://localhost:3000")
    feed = client.follow(f"{path}?offset=-1&live=sse", origin="http://localhost:3000")
    assert feed.headers["Access-Control-Allow-Origin"] == "http://localhost:3000"


def test_an_answer_that_caches_keep_varies_by_origin_whoever_asked_first(client, path):
    """Fetch standard, "CORS protocol and HTTP caches": a copy made for a client without Origin lacks
    Access-Control-Allow-Origin, and a cache that does not know better gives it to a page."""
    client.put(path, b"hello")
    answer = client.get(path)
    assert answer["Cache-Control"].startswith("public")
    assert "Origin" in varies(answer)


def test_other_pages_are_kept_out(client, path):
    client.put(path, b"hello")
    for method in ("GET", "POST", "DELETE"):
        answer = client(method, path, b"x" if method == "POST" else None, origin="https://evil.example")
        assert (answer.status, answer["Access-Control-Allow-Origin"]) == (403, None)
    assert client.get(path).body == b"hello"


def test_a_preflight_lists_what_is_allowed(client, path):
    allowed = client("OPTIONS", path, origin="http://localhost:3000", access_control_request_method="PUT")
    assert allowed.status == 204
    assert allowed["Access-Control-Allow-Origin"] == "http://localhost:3000"
    assert "PUT" in allowed["Access-Control-Allow-Methods"]
    assert "if-none-match" in allowed["Access-Control-Allow-Headers"]
    refused = client("OPTIONS", path, origin="https://evil.example", access_control_request_method="PUT")
    assert refused["Access-Control-Allow-Origin"] is None


def test_a_name_that_points_here_from_elsewhere_is_not_served(client, path):
    client.put(path, b"hello")
    answer = client.get(path, host="evil.example")
    assert (answer.status, answer.code()) == (421, "unknown_host")


# --- operators


def test_health_and_readiness(client):
    assert (client.get("/healthz").status, client.get("/healthz").body) == (200, b"ok\n")
    assert (client.get("/readyz/local").status, client.get("/readyz/local").body) == (200, b"ready\n")
    assert client.head("/healthz").body == b""


def test_metrics_are_what_prometheus_reads(client, path):
    client.put(path, b"hello")
    client.get(path)
    client.get(path + "-missing")
    answer = client.get("/metrics")
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    requests = {
        (sample.labels["method"], sample.labels["status"]): sample.value
        for sample in families["millstream_http_requests"].samples
    }
    assert requests["PUT", "201"] >= 1
    assert requests["GET", "200"] >= 1
    assert requests["GET", "404"] >= 1
    values = {name: family.samples[0].value for name, family in families.items() if family.samples}
    assert values["millstream_journal_commits"] >= 1
    assert values["millstream_hot_bytes"] >= 5
    assert values["millstream_hot_streams"] >= 1
    assert values["millstream_ready"] == 1
    assert all(family.documentation for family in families.values())


def test_live_readers_are_counted_while_they_wait(client, path):
    def count() -> float:
        families = text_string_to_metric_families(client.get("/metrics").body.decode())
        return next(family.samples[0].value for family in families if family.name == "millstream_live_readers")

    eventually(lambda: count() == 0)  # those of other stories have hung up
    client.put(path)
    feed = client.follow(f"{path}?offset=-1&live=sse")
    feed.next()
    assert count() == 1
    client.delete(path)
    assert feed.rest() == []
    assert count() == 0


@pytest.mark.parametrize("method", ["PATCH", "TRACE", "PROPFIND"])
def test_a_method_that_a_stream_does_not_know(client, path, method):
    answer = client(method, path)
    assert answer.status == 405
    assert {"GET", "HEAD", "PUT", "POST", "DELETE"} <= set(answer["Allow"].split(", "))
    assert answer.code() == "method_not_allowed"


def test_operators_routes_are_read_only(client):
    for route in ("/healthz", "/readyz/local", "/metrics"):
        answer = client.post(route, b"x")
        assert (answer.status, answer["Allow"]) == (405, "GET, HEAD, OPTIONS")


def test_unknown_routes_are_404_and_say_so_in_json(client):
    for route in ("/v1", "/v1/nothing", "/v1/stream"):
        answer = client.get(route)
        assert (answer.status, answer.code()) == (404, "unknown_route")


def test_a_stream_needs_a_good_name(client):
    for name in ("", "a/../b", "a%00b", "shop/streams", "%ff", "x" * 1025):
        answer = client.put(f"/v1/stream/{name}")
        assert (answer.status, answer.code()) == (400, "bad_name")
