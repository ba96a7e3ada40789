"""Exit codes, and what stands on stderr with them."""

from __future__ import annotations

import http.client
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from tests.conftest import free_port

from millstream import client
from millstream.cli.connection import exit_code_of
from millstream.cli.exits import Exit
from millstream.cli.main import run

KINDS = [kind for kind in vars(client).values() if isinstance(kind, type) and issubclass(kind, client.ClientError)]

EXPECTED = {
    client.ConnectionLost: Exit.UNREACHABLE,
    client.Unavailable: Exit.UNREACHABLE,
    client.OutcomeUnknown: Exit.OUTCOME_UNKNOWN,
    client.ProtocolError: Exit.NOT_SUPPORTED,
    client.NotSupported: Exit.NOT_SUPPORTED,
    client.BadRequest: Exit.USAGE,
    client.Unauthorized: Exit.UNAUTHORIZED,
    client.NotFound: Exit.NOT_FOUND,
    client.Gone: Exit.GONE,
    client.Conflict: Exit.CONFLICT,
    client.Fenced: Exit.CONFLICT,
    client.PreconditionFailed: Exit.CONFLICT,
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not client.ClientError], ids=lambda k: k.__name__)
def test_every_error_of_the_client_has_its_exit_code(kind):
    (wanted,) = [code for parent, code in EXPECTED.items() if issubclass(kind, parent)]
    assert exit_code_of(kind("said so")) == wanted


class QuietHandler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """The test's output is not the place."""


class QuietServer(http.server.ThreadingHTTPServer):
    def handle_error(self, *arguments: object) -> None:
        """Connections break here on purpose."""


@contextmanager
def serving(handler: type[QuietHandler]) -> Iterator[str]:
    server = QuietServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def answering(status: int, headers: dict[str, str], wanted_token: str | None = None) -> AbstractContextManager[str]:
    """A server that gives one answer to everything, or 401 to those without the token."""

    class Handler(QuietHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            refused = wanted_token and self.headers.get("authorization") != f"Bearer {wanted_token}"
            self.send_response(401 if refused else status)
            for name, value in {**headers, "Content-Length": "0"}.items():
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_HEAD = do_PUT = do_POST = answer

    return serving(Handler)


def losing_answers(port: int) -> AbstractContextManager[str]:
    """A proxy that passes everything on to the port, but gives no answers to POST."""

    class Handler(QuietHandler):
        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            kept = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            upstream.request(self.command, self.path, body, kept)
            answer = upstream.getresponse()
            answer.read()
            upstream.close()
            if self.command == "POST":
                self.connection.close()
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                self.send_header(name, value)
            self.end_headers()

        do_HEAD = do_POST = pass_on

    return serving(Handler)


STREAM = {"Content-Type": "text/plain", "Stream-Next-Offset": "0", "Stream-Up-To-Date": "true"}


@pytest.mark.parametrize(
    ("status", "headers", "arguments", "expected"),
    [
        (503, {}, ["stream", "head", "a/b"], Exit.UNREACHABLE),
        (404, {}, ["stream", "head", "a/b"], Exit.NOT_FOUND),
        (400, {}, ["stream", "close", "a/b"], Exit.USAGE),
        (413, {}, ["stream", "close", "a/b"], Exit.USAGE),
        (409, {}, ["stream", "create", "a/b"], Exit.CONFLICT),
        (412, STREAM, ["stream", "append", "a/b", "-m", "x", "--if-match", "y"], Exit.CONFLICT),
        (410, {}, ["stream", "close", "a/b"], Exit.GONE),
        (403, {}, ["stream", "close", "a/b"], Exit.UNAUTHORIZED),
        (200, STREAM, ["bucket", "show", "abcd"], Exit.NOT_SUPPORTED),
        (200, {}, ["stream", "head", "a/b"], Exit.NOT_SUPPORTED),
        (500, {}, ["stream", "close", "a/b", "-m", "x"], Exit.UNREACHABLE),
    ],
)
def test_what_a_server_answers_decides_the_exit_code(status, headers, arguments, expected, capsys):
    with answering(status, headers) as url:
        assert run([*arguments, "--url", url]) == expected
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("millstream: ")
    assert printed.err.count("\n") == 1


def test_a_lost_answer_is_an_unknown_outcome(cli, live):
    """The server takes the append, but the connection breaks before its answer."""
    with losing_answers(live.port) as url:
        cli("stream", "create", "exits/lost", "--type", "text/plain").ok()
        lost = cli("stream", "append", "exits/lost", "-m", "once", "--url", url)
    assert lost.code == Exit.OUTCOME_UNKNOWN
    assert "may or may not" in lost.err
    assert cli("stream", "read", "exits/lost").ok().out == b"once"


def test_a_server_that_is_not_there(capsys):
    assert run(["stream", "head", "a/b", "--url", f"http://127.0.0.1:{free_port()}"]) == Exit.UNREACHABLE
    printed = capsys.readouterr().err
    assert "millstream serve" in printed
    assert "--url" in printed


def test_the_token_comes_from_the_environment(monkeypatch, capsys):
    with answering(200, STREAM, wanted_token="secret") as url:
        assert run(["stream", "head", "a/b", "--url", url]) == Exit.UNAUTHORIZED
        assert "MILLSTREAM_TOKEN" in capsys.readouterr().err
        monkeypatch.setenv("MILLSTREAM_TOKEN", "secret")
        assert run(["stream", "head", "a/b", "--url", url]) == Exit.DONE


def test_errors_are_json_with_json(cli):
    refused = cli("stream", "head", "exits/missing", "--json")
    assert refused.out == b""
    problem = json.loads(refused.err)["error"]
    assert (problem["code"], problem["exit_code"]) == ("not_found", 4)
    assert "stream create" in problem["message"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["stream", "head", "a/b", "--url", "ftp://x"], "http://127.0.0.1:4437"),
        (["stream", "head", "/"], "needs a name"),
        (["stream", "frobnicate"], "frobnicate"),
        (["stream", "head"], "STREAM"),
        (["stream", "read", "a/b", "--from", "whenever"], "10m"),
        (["bucket", "show"], "BUCKET"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(arguments, expected, capsys):
    assert run(arguments) == Exit.USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert expected in printed.err
