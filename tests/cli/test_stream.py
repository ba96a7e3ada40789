"""`millstream stream` against a real server."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta

import pytest

from millstream.cli import appending
from millstream.cli.intake import Cut, Messages
from millstream.cli.moments import Start, start_of
from millstream.cli.output import CommandError, size_text, visible

JSON = ("--type", "application/json")
TEXT = ("--type", "text/plain")


@pytest.fixture
def small_requests(monkeypatch):
    """So that the producer is used for a few messages already."""
    monkeypatch.setattr(appending, "ONE_REQUEST_MESSAGES_MAX", 1)


# --- life


def test_create_twice(cli):
    first = cli("stream", "create", "life/twice", *JSON, "--json").ok().json
    assert (first["created"], first["content_type"], first["stream"]) == (True, "application/json", "life/twice")
    assert cli("stream", "create", "life/twice", *JSON).ok().text == "exists  life/twice (application/json)\n"
    assert cli("stream", "create", "life/twice", *TEXT).code == 5


def test_create_with_content_and_lifetime(cli):
    cli("stream", "create", "life/short", *TEXT, "-m", "all there is", "--closed", "--ttl", "60").ok()
    head = cli("stream", "head", "life/short", "--json").ok().json
    assert (head["closed"], int(head["offset"])) == (True, 12)
    assert 50 < head["ttl_s"] <= 60
    shown = dict(line.split("\t") for line in cli("stream", "head", "life/short").ok().text.splitlines())
    assert shown["status"] == "closed"
    assert shown["end"] == "00000000000000000012 (12 B)"
    assert shown["lifetime"].endswith(" s left")
    assert cli("stream", "create", "life/until", "--expires-at", "2099-01-01T00:00:00Z").code == 0
    assert "until 2099-01-01T00:00:00" in cli("stream", "head", "life/until").text


def test_close_with_a_last_message_then_append(cli):
    cli("stream", "create", "life/closing", *TEXT).ok()
    assert cli("stream", "close", "life/closing", "-m", "bye", "--json").ok().json["closed"] is True
    assert cli("stream", "read", "life/closing").ok().out == b"bye"
    refused = cli("stream", "append", "life/closing", "-m", "more")
    assert refused.code == 5
    assert "closed" in refused.err


def test_delete(cli):
    cli("stream", "create", "life/gone").ok()
    assert cli("stream", "delete", "life/gone", "--yes").ok().text == "deleted  life/gone\n"
    assert cli("stream", "head", "life/gone").code == 4


def test_a_full_url_is_a_name(cli, live):
    cli("stream", "create", f"{live.url}/v1/stream/by-url", *TEXT).ok()
    assert cli("stream", "head", "by-url", "--json").ok().json["content_type"] == "text/plain"


# --- append


def test_the_whole_input_is_one_message(cli, tmp_path):
    cli("stream", "create", "in/whole", "--type", "application/octet-stream").ok()
    body = bytes(range(256)) * 100
    done = cli("stream", "append", "in/whole", "--json", stdin=body).ok().json
    assert (done["messages"], done["bytes"], done["producer_id"]) == (1, len(body), None)
    (tmp_path / "body").write_bytes(body)
    cli("stream", "append", "in/whole", str(tmp_path / "body")).ok()
    cli("stream", "append", "in/whole", "-", stdin=b"end").ok()
    assert cli("stream", "read", "in/whole").ok().out == body + body + b"end"


def test_small_json_lines_are_one_request(cli):
    cli("stream", "create", "in/json", *JSON).ok()
    lines = b'{"n": 1.10}\n\n  [2, 3]\r\n"four"'
    done = cli("stream", "append", "in/json", "--json-lines", "--json", stdin=lines).ok().json
    assert (done["messages"], done["producer_id"]) == (3, None)
    assert cli("stream", "read", "in/json").ok().out == b'{"n": 1.10}\n[2, 3]\n"four"\n'


def test_many_json_lines_go_through_a_producer(cli):
    cli("stream", "create", "in/many", *JSON).ok()
    lines = b"".join(b'{"n":%d}\n' % number for number in range(50_000))
    done = cli("stream", "append", "in/many", "--json-lines", "--close", "--json", stdin=lines).ok().json
    assert done["messages"] == 50_000
    assert done["bytes"] == len(lines) - 50_000
    assert done["producer_id"]
    assert done["closed"] is True
    assert cli("stream", "read", "in/many").ok().out == lines


def test_lines_of_text_come_back_as_they_were(cli):
    cli("stream", "create", "in/text", *TEXT).ok()
    text = b"one\r\n\ntwo\rstill two\nno end"
    assert cli("stream", "append", "in/text", "--lines", "--json", stdin=text).ok().json["messages"] == 4
    assert cli("stream", "read", "in/text").ok().out == text


def test_merged_lines_are_fewer_requests(cli, small_requests):
    cli("stream", "create", "in/merged", *TEXT).ok()
    text = b"".join(b"line %d\n" % number for number in range(20_000))
    cli("stream", "append", "in/merged", "--lines", "--merge", stdin=text).ok()
    assert cli("stream", "read", "in/merged").ok().out == text
    cli("bucket", "create", "merged").ok()
    cli("stream", "create", "merged/one", *TEXT).ok()
    cli("stream", "append", "merged/one", "--lines", "--merge", stdin=text).ok()
    appended = [entry for entry in cli("feed", "merged", "--json").lines if entry["kind"] == "appended"]
    assert len(appended) < 200, "twenty thousand lines go in few requests"


def test_lines_into_a_json_stream_become_strings(cli):
    cli("stream", "create", "in/strings", *JSON).ok()
    cli("stream", "append", "in/strings", "--lines", stdin='say "hi"\n\nübrig'.encode()).ok()
    assert cli("stream", "read", "in/strings").lines == ['say "hi"', "", "übrig"]
    assert "line 1" in cli("stream", "append", "in/strings", "--lines", stdin=b"\xff").err


def test_chunks(cli):
    cli("stream", "create", "in/chunks", "--type", "application/octet-stream").ok()
    body = os.urandom(300_000)
    done = cli("stream", "append", "in/chunks", "--chunks", "64KiB", "--json", stdin=body).ok().json
    assert done["messages"] == 5
    assert cli("stream", "read", "in/chunks").ok().out == body


def test_a_named_producer_can_come_back(cli):
    cli("stream", "create", "in/named", *JSON).ok()
    for number in (b"1\n", b"2\n"):
        done = cli("stream", "append", "in/named", "--json-lines", "--producer-id", "import", "--json", stdin=number)
        assert done.ok().json["producer_id"] == "import"
    assert cli("stream", "read", "in/named").out == b"1\n2\n"


def test_if_match(cli):
    cli("stream", "create", "in/match", *TEXT).ok()
    etag = cli("stream", "head", "in/match", "--json").json["etag"]
    cli("stream", "append", "in/match", "-m", "first", "--if-match", etag).ok()
    assert cli("stream", "append", "in/match", "-m", "second", "--if-match", etag).code == 5
    assert cli("stream", "read", "in/match").out == b"first"


def test_a_bad_line_of_a_small_input_stores_nothing(cli):
    cli("stream", "create", "in/bad", *JSON).ok()
    refused = cli("stream", "append", "in/bad", "--json-lines", stdin=b"1\n\nnope\n4\n")
    assert refused.code == 2
    assert "line 3" in refused.err
    assert cli("stream", "read", "in/bad").out == b""


def test_a_bad_line_far_in_says_what_is_stored(cli, small_requests):
    cli("stream", "create", "in/far", *JSON).ok()
    lines = b"".join(b"%d\n" % number for number in range(100_000))
    refused = cli("stream", "append", "in/far", "--json-lines", stdin=lines + b"nope\n")
    assert refused.code == 2
    assert "line 100001" in refused.err
    kept = cli("stream", "read", "in/far").out
    assert lines.startswith(kept)
    assert f"The first {kept.count(b'%c' % 10):,} messages are stored" in refused.err


def test_a_refusal_far_in_says_what_is_stored(cli, small_requests):
    cli("stream", "create", "in/refused", *JSON, "--closed").ok()
    assert cli("stream", "append", "in/refused", "--json-lines", stdin=b"1\n2\n").code == 5
    refused = cli("stream", "append", "in/refused", "--json-lines", "--producer-id", "p", stdin=b"1\n2\n")
    assert refused.code == 5
    assert "Nothing is stored." in refused.err


@pytest.mark.parametrize(
    ("options", "stdin", "expected"),
    [
        ((), b"", "empty"),
        (("--lines",), b"", "empty"),
        (("-m", ""), b"", "empty"),
        (("--lines", "--json-lines"), b"x", "exclude each other"),
        (("-m", "x", "--lines"), b"x", "--message"),
        (("--chunks", "many"), b"x", "4MiB"),
        (("--chunks", "1GiB"), b"x", "4MiB"),
        (("--json-lines",), b"x", "--json-lines is for JSON"),
        (("--producer-id", "p"), b"x", "--lines"),
        (("--merge",), b"x", "--lines"),
        (("no-such-file",), b"", "no-such-file"),
    ],
)
def test_what_append_does_not_take(cli, options, stdin, expected):
    cli("stream", "create", "in/wrong", *TEXT).ok()
    refused = cli("stream", "append", "in/wrong", *options, stdin=stdin)
    assert refused.code == 2
    assert expected in refused.err
    assert cli("stream", "read", "in/wrong").out == b""


def test_chunks_do_not_cut_json(cli):
    cli("stream", "create", "in/no-chunks", *JSON).ok()
    assert "--json-lines" in cli("stream", "append", "in/no-chunks", "--chunks", "1KiB", stdin=b"1").err


@pytest.mark.parametrize("cut_at", range(1, 12))
def test_messages_are_the_same_wherever_the_input_is_cut(cut_at):
    data = b"ab\ncd\r\n\nef\ngh"
    ends = os.pipe()
    source = Messages(ends[0], Cut.LINES, json_stream=False, chunk_bytes=0)
    try:
        os.write(ends[1], data[:cut_at])
        found = source.next()
        os.write(ends[1], data[cut_at:])
        found += source.next()
        os.close(ends[1])
        found += source.next()
    finally:
        os.close(ends[0])
    assert source.ended
    assert found == [b"ab\n", b"cd\r\n", b"\n", b"ef\n", b"gh"]


# --- read and tail


def test_read_as_json_has_offsets(cli):
    cli("stream", "create", "out/json", *JSON).ok()
    cli("stream", "append", "out/json", "--json-lines", stdin=b"1e2\n[2]\n").ok()
    (batch,) = cli("stream", "read", "out/json", "--json").ok().lines
    assert batch["messages"] == [1e2, [2]]
    assert batch["up_to_date"] is True
    assert cli("stream", "read", "out/json", "--from", batch["offset"]).ok().out == b""
    assert cli("stream", "read", "out/json", "--from", f"{batch['offset']}@{batch['stream_id']}").ok().out == b""
    assert cli("stream", "read", "out/json", "--from", f"{batch['offset']}@another-9").code == 6
    assert cli("stream", "read", "out/json", "--from", "3").ok().out == b"[2]\n"


def test_read_of_text_and_bytes_as_json(cli):
    for name, kind in (("out/text", "text/plain"), ("out/bytes", "application/octet-stream")):
        cli("stream", "create", name, "--type", kind).ok()
        cli("stream", "append", name, "-m", "grüß").ok()
    (text,) = cli("stream", "read", "out/text", "--json").ok().lines
    assert text["text"] == "grüß"
    (binary,) = cli("stream", "read", "out/bytes", "--json").ok().lines
    assert binary["base64"] == "Z3LDvMOf"


def test_read_from_a_time(cli):
    cli("stream", "create", "out/time", *TEXT, "-m", "now").ok()
    ahead = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert cli("stream", "read", "out/time", "--from", "10m").ok().out == b"now"
    assert cli("stream", "read", "out/time", "--from", ahead).ok().out == b""
    assert cli("stream", "read", "out/time", "--from", "now").ok().out == b""


def test_read_into_a_file(cli, tmp_path):
    cli("stream", "create", "out/file", *TEXT, "-m", "kept").ok()
    target = tmp_path / "file.txt"
    target.write_text("before")
    assert cli("stream", "read", "out/missing", "--output", str(target)).code == 4
    assert target.read_text() == "before"
    assert cli("stream", "read", "out/file", "--output", str(target)).ok().out == b""
    assert target.read_text() == "kept"
    assert list(tmp_path.iterdir()) == [target]
    assert cli("stream", "read", "out/file", "--output", str(tmp_path)).code == 2


def test_tail_ends_with_the_stream_or_when_idle(cli):
    cli("stream", "create", "out/tail", *JSON).ok()
    cli("stream", "append", "out/tail", "-m", '{"n": 1}').ok()
    assert cli("stream", "tail", "out/tail", "--idle", "0.2").ok().out == b""
    assert cli("stream", "tail", "out/tail", "--from", "-1", "--idle", "0.2").ok().out == b'{"n": 1}\n'
    assert cli("stream", "tail", "out/tail", "--from", "beginning", "--no-follow").ok().out == b'{"n": 1}\n'
    cli("stream", "close", "out/tail", "-m", '{"n": 2}').ok()
    assert cli("stream", "tail", "out/tail", "--from", "8").ok().out == b'{"n": 2}\n'


# --- ls


def test_ls(cli):
    for name in ("a-1", "a-2", "b-1"):
        cli("stream", "create", f"listed/{name}", *TEXT, "-m", "x" * 2000).ok()
    names = [line.split("\t")[0] for line in cli("stream", "ls", "listed").ok().text.splitlines()]
    assert names == ["a-1", "a-2", "b-1"]
    name, status, size, kind, written = cli("stream", "ls", "listed/a", "--after", "a-1").ok().text.strip().split("\t")
    assert (name, status, size, kind) == ("a-2", "open", "2000", "text/plain")
    assert written.endswith("Z")
    (only,) = cli("stream", "ls", "listed", "--limit", "1", "--json").ok().lines
    assert (only["bucket"], only["stream_id"], only["tail_offset"]) == ("listed", "a-1", 2000)
    assert cli("stream", "ls", "listed/zzz").ok().out == b""
    cli("stream", "create", "without-bucket").ok()
    assert "without-bucket\topen" in cli("stream", "ls").ok().text
    assert cli("stream", "ls", "missing").code == 4
    assert cli("stream", "ls", "listed", "--limit", "0").code == 2


# --- the smaller parts


def test_where_a_read_starts():
    now = datetime(2026, 11, 15, 6, tzinfo=UTC)
    assert start_of("beginning") == start_of("-1") == Start()
    assert start_of("now") == Start("now")
    assert start_of("42") == Start("42")
    assert start_of("42@ab-1") == Start("42", "ab-1")
    assert start_of("90m", now).timestamp == datetime(2026, 11, 15, 4, 30, tzinfo=UTC)
    assert start_of("2026-11-15T06:00:00+02:00").timestamp == datetime(2026, 11, 15, 4, tzinfo=UTC)
    for wrong in ("", "yesterday", "42@", "-2", "999999999d", "1" * 21):
        with pytest.raises(CommandError, match="no place in a stream"):
            start_of(wrong, now)


def test_sizes_for_people():
    sizes = [0, 1023, 1024, 1536, 1024**2, 5 * 1024**4, 2000 * 1024**4]
    assert list(map(size_text, sizes)) == ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "5.0 TiB", "2000.0 TiB"]


def test_control_characters_are_shown_not_obeyed():
    assert visible("tab\tline\nümlaut") == "tab\tline\nümlaut"
    assert visible("\x1b[2Jgone\x9b1m\r") == "\\x1b[2Jgone\\x9b1m\\x0d"


def test_json_output_is_json_even_for_awkward_messages(cli):
    cli("stream", "create", "out/awkward", *JSON).ok()
    messages = ['{"a":\n 1}', '"\\ud800"', "12345678901234567890.10"]
    cli("stream", "append", "out/awkward", stdin=b"[" + ",".join(messages).encode() + b"]").ok()
    assert cli("stream", "read", "out/awkward").out.splitlines() == [
        b'{"a":  1}',
        b'"\\ud800"',
        b"12345678901234567890.10",
    ]
    assert json.loads(cli("stream", "read", "out/awkward", "--json").out)["messages"][0] == {"a": 1}
