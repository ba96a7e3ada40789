"""`millstream snapshot` and `millstream bootstrap` against a real server."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def page(cli, request) -> str:
    """A JSON stream of four messages of one byte each."""
    name = f"docs/{request.node.name}"
    cli("stream", "create", name, "--type", "application/json").ok()
    cli("stream", "append", name, "--json-lines", stdin=b"1\n2\n3\n4\n").ok()
    return name


def test_publish_find_and_get(cli, page, tmp_path):
    assert cli("snapshot", "latest", page).code == 4
    assert cli("snapshot", "get", page).code == 4
    assert cli("snapshot", "publish", page, "2", stdin=b'{"sum": 3}').ok().text.startswith(f"published  {page} at 2")
    latest = cli("snapshot", "latest", page).ok().text.strip()
    assert latest == cli("snapshot", "latest", page, "--json").json["offset"] == "2".zfill(20)
    assert cli("snapshot", "get", page).ok().out == b'{"sum": 3}'
    found = cli("snapshot", "get", page, "--at", latest, "--json").ok().json
    assert (found["json"], found["bytes"], found["content_type"]) == ({"sum": 3}, 10, "application/json")
    assert cli("snapshot", "get", page, "-o", str(tmp_path / "sum.json")).ok().text.startswith("written")
    assert json.loads((tmp_path / "sum.json").read_text()) == {"sum": 3}
    assert cli("snapshot", "get", page, "--at", "1").code in (4, 6)


def test_history_before_a_snapshot_is_trimmed_or_kept(cli, page):
    kept = cli("snapshot", "publish", page, "1", "--keep-history", "--type", "text/plain", "--json", stdin=b"one").ok()
    assert kept.json["trimmed"] is False
    assert cli("stream", "read", page).ok().out == b"1\n2\n3\n4\n"
    cli("snapshot", "publish", page, "2", stdin=b"3").ok()
    gone = cli("stream", "read", page)
    assert gone.code == 6
    assert "millstream bootstrap" in gone.err


@pytest.mark.parametrize(("offset", "code"), [("99", 5), ("x", 2)])
def test_snapshots_at_a_wrong_place(cli, page, offset, code):
    assert cli("snapshot", "publish", page, offset, stdin=b"{}").code == code
    assert cli("snapshot", "latest", page).code == 4


def test_the_latest_snapshot_cannot_be_deleted(cli, page):
    cli("snapshot", "publish", page, "2", stdin=b"{}").ok()
    assert cli("snapshot", "delete", page, "2", "--yes").code == 5
    assert cli("snapshot", "delete", page, "3", "--yes").code in (4, 6)


# --- bootstrap


def test_bootstrap_prints_the_snapshot_and_what_is_after_it(cli, page):
    cli("snapshot", "publish", page, "2", stdin=b'{"sum":3}').ok()
    printed = cli("bootstrap", page).ok()
    assert printed.out == b'{"sum":3}\n3\n4\n'
    place = printed.err.split("--from ")[1].strip()
    cli("stream", "append", page, "-m", "5").ok()
    assert cli("stream", "read", page, "--from", place).ok().out == b"5\n"


def test_bootstrap_as_json(cli, page):
    cli("snapshot", "publish", page, "3", "--type", "text/plain", stdin=b"six").ok()
    snapshot, update, end = cli("bootstrap", page, "--json").ok().lines
    assert snapshot == {"kind": "snapshot", "content_type": "text/plain", "text": "six"}
    assert update == {"kind": "update", "content_type": "application/json", "json": 4}
    assert end["kind"] == "end"
    assert end["next"].startswith("4".zfill(20))


def test_bootstrap_into_a_folder(cli, page, tmp_path):
    cli("snapshot", "publish", page, "2", stdin=b'{"sum":3}').ok()
    folder = tmp_path / "new" / "page"
    summary = cli("bootstrap", page, "--into", str(folder), "--json").ok().json
    assert summary["updates"] == 2
    assert {path.name: path.read_text() for path in folder.iterdir() if path.name != "bootstrap.json"} == {
        "snapshot.json": '{"sum":3}',
        "update-000001.json": "3",
        "update-000002.json": "4",
    }
    assert json.loads((folder / "bootstrap.json").read_text()) == summary
    again = cli("bootstrap", page, "--into", str(folder))
    assert again.code == 2
    assert "there already" in again.err


def test_a_bootstrap_that_fails_leaves_no_folder(cli, tmp_path):
    assert cli("bootstrap", "docs/nothing-here", "--into", str(tmp_path / "page")).code == 4
    assert list(tmp_path.iterdir()) == []


def test_bootstrap_without_a_snapshot(cli, page):
    assert cli("bootstrap", page).ok().out == b"1\n2\n3\n4\n"
