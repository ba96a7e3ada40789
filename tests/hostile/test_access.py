"""Who may ask: hosts, origins, and addresses to listen on, as long as nobody has to log in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import StartServer, clean_environment
from tests.hostile.wire import Answer, ask, content


def ask_as(port: int, method: str, path: str, host: str, *lines: str) -> Answer:
    head = (f"{method} {path} HTTP/1.1", f"Host: {host}", "Content-Length: 0", *lines, "", "")
    return ask(port, "\r\n".join(head).encode("latin-1"), method)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:4437",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil-localhost",
        "10.0.0.1",
        "0.0.0.0",
        "127.1",
        "[::2]",
        "127.0.0.1@evil.example",
        "127.0.0.1, evil.example",
        "\xe9",
        "[",
        "]",
        ":",
        "[::1",
    ],
)
def test_a_foreign_host_is_421(port: int, path: str, host: str) -> None:
    """A page may point a name of its own at 127.0.0.1; its requests then carry that name."""
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert ask_as(port, method, path, host).status in (400, 421)
    assert content(port, path) == b""


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:1", "LocalHost:99", "[::1]:4437", "[::1]", "a.localhost"])
def test_a_loopback_host_is_served(port: int, path: str, host: str) -> None:
    assert ask_as(port, "GET", path, host).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://127.0.0.1.evil.example",
        "http://localhost.evil.example",
        "http://evil.example:80",
        "http://127.0.0.1@evil.example",
        "null",
        "file://",
        "localhost",
        "ftp://localhost",
        "",
        "\xe9",
    ],
)
def test_a_foreign_origin_is_403(port: int, path: str, origin: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        answer = ask_as(port, method, path, "127.0.0.1", f"Origin: {origin}")
        assert answer.status == 403, method
        assert "access-control-allow-origin" not in answer.headers
    preflight = ask_as(port, "OPTIONS", path, "127.0.0.1", f"Origin: {origin}")
    assert "access-control-allow-origin" not in preflight.headers
    assert content(port, path) == b""


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:8080"])
def test_a_page_on_this_machine_may_ask(port: int, path: str, origin: str) -> None:
    answer = ask_as(port, "GET", path, "127.0.0.1", f"Origin: {origin}")
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert "stream-next-offset" in answer.headers["access-control-expose-headers"]
    assert "Origin" in answer.headers["vary"]


def test_an_error_can_be_read_by_a_page_too(port: int) -> None:
    answer = ask_as(port, "GET", "/v1/stream/not/there", "127.0.0.1", "Origin: http://localhost:3000")
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (404, "http://localhost:3000")


def test_a_preflight_names_what_may_be_sent(port: int, path: str) -> None:
    lines = ("Origin: http://localhost:3000", "Access-Control-Request-Method: POST")
    answer = ask_as(port, "OPTIONS", path, "127.0.0.1", *lines)
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert {"POST", "PUT", "DELETE"} <= set(answer.headers["access-control-allow-methods"].split(", "))
    allowed = answer.headers["access-control-allow-headers"]
    for name in ("content-type", "if-none-match", "if-match", "producer-seq", "stream-closed", "stream-ttl"):
        assert name in allowed


def test_origins_and_hosts_can_be_opened(server: StartServer) -> None:
    port = server({"cors_origins": "https://app.example", "allowed_hosts": "streams.example"}).port
    assert ask_as(port, "PUT", "/v1/stream/a", "streams.example:80").status == 201
    opened = ask_as(port, "GET", "/v1/stream/a", "streams.example", "Origin: https://app.example")
    assert opened.headers["access-control-allow-origin"] == "https://app.example"
    for stranger in ("https://app.example.evil.example", "http://app.example", "https://app.example:444"):
        refused = ask_as(port, "GET", "/v1/stream/a", "streams.example", f"Origin: {stranger}")
        assert refused.status == 403, stranger


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_other_machines_are_not_served_by_accident(tmp_path: Path, listen: str) -> None:
    command = [sys.executable, "-m", "millstream", "serve", "--listen", listen, "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=clean_environment())
    assert done.returncode == 2
    assert "--insecure" in done.stderr
    assert list(tmp_path.iterdir()) == []
