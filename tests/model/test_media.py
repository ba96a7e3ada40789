"""Content types: what makes two of them the same, and which of them travel as text."""

from __future__ import annotations

import pytest

from millstream.model.media import DEFAULT_CONTENT_TYPE, is_json, is_text, media_type


def test_case_and_parameters_do_not_count():
    assert media_type("application/json") == "application/json"
    assert media_type("Application/JSON; charset=UTF-8") == "application/json"
    assert media_type(" text/plain ;x=1;y=2") == "text/plain"


@pytest.mark.parametrize("content_type", ["application/json", "APPLICATION/Json", "application/json;charset=utf-8"])
def test_json_is_json_however_it_is_written(content_type):
    assert is_json(content_type)


@pytest.mark.parametrize(
    "content_type", ["application/ndjson", "application/json-seq", "application/vnd.api+json", "text/json", "json", ""]
)
def test_only_one_type_has_json_mode(content_type):
    assert not is_json(content_type)


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "TEXT/html; charset=utf-8", "text/x;a=b ; Charset = 'UTF8'", "text/x-any", "application/json"],
)
def test_text_travels_as_text(content_type):
    assert is_text(content_type)


@pytest.mark.parametrize("charset", ["charset=UTF-8", 'Charset = "utf8"', "x=y ;charset=us-ascii; z"])
def test_text_is_utf8(charset):
    assert is_text(f"text/plain; {charset}")


@pytest.mark.parametrize("charset", ["charset=iso-8859-1", 'x=1;CHARSET="utf-16"', "charset=utf-8-bom"])
def test_other_text_travels_encoded(charset):
    assert not is_text(f"text/plain; {charset}")
    assert is_text(f"application/json; {charset}"), "which is always UTF-8"


@pytest.mark.parametrize(
    "content_type", ["application/ndjson", "image/png", "text", "textual/x", "text/plain; charset=latin1"]
)
def test_everything_else_travels_encoded(content_type):
    assert not is_text(content_type)


def test_without_a_type_a_stream_holds_bytes():
    assert DEFAULT_CONTENT_TYPE == "application/octet-stream"
    assert not is_text(DEFAULT_CONTENT_TYPE)
