"""`millstream bucket` against a real server."""

from __future__ import annotations

import pytest


def shown(cli, name: str) -> dict[str, str]:
    return dict(line.split("\t") for line in cli("bucket", "show", name).ok().text.splitlines())


def test_the_life_of_a_bucket(cli):
    created = cli("bucket", "create", "lives", "--type", "application/json", "--ttl", "3600").ok()
    assert created.text == "created  lives\n"
    again = cli("bucket", "create", "lives")
    assert again.code == 5
    assert again.err.startswith("millstream: ")
    cli("stream", "create", "lives/one").ok()
    assert cli("bucket", "show", "lives", "--json").ok().json["streams"] == 1
    assert cli("stream", "head", "lives/one", "--json").json["content_type"] == "application/json"
    assert cli("bucket", "delete", "lives", "--yes").code == 5
    cli("stream", "delete", "lives/one", "-y").ok()
    assert cli("bucket", "delete", "lives", "--yes", "--json").ok().json == {"bucket": "lives", "deleted": True}
    assert cli("bucket", "show", "lives").code == 4


def test_settings_are_set_changed_and_taken_back(cli):
    cli("bucket", "create", "keeps", "--retention-bytes", "1GiB", "--retention-seconds", "60").ok()
    assert shown(cli, "keeps")["retention bytes"] == "1.0 GiB"
    changed = cli("bucket", "change", "keeps", "--retention-bytes", "none", "--caching", "private", "--json").ok()
    assert changed.json["changed"] == {"retention_bytes": None, "caching": "private"}
    settings = shown(cli, "keeps")
    assert "retention bytes" not in settings
    assert (settings["retention seconds"], settings["caching"]) == ("60", "private")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("change", "keeps"), "nothing to change"),
        (("create", "other", "--ttl", "soon"), "whole number"),
        (("create", "other", "--retention-bytes", "lots"), "1GiB"),
        (("create", "other", "--caching", "sometimes"), "caching"),
        (("create", "NO"), "4 to 64"),
        (("show", ""), "needs a name"),
    ],
)
def test_what_a_bucket_does_not_take(cli, arguments, expected):
    refused = cli("bucket", *arguments)
    assert refused.code == 2
    assert expected in refused.err
    assert cli("bucket", "show", "other").code == 4
