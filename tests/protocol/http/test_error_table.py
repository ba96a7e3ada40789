"""How errors look over HTTP: one row for each, and the headers by which clients tell them apart."""

from __future__ import annotations

import json
import re

import pytest

from millstream.model import errors as e
from millstream.protocol.http.error_table import REASONS, STATUS, error_body, error_lines, status_of


def tree(kind: type[e.MillstreamError] = e.MillstreamError) -> list[type[e.MillstreamError]]:
    """Of the errors of the server; those of clients and of Spark grow on the same root."""
    children = [child for child in kind.__subclasses__() if child.__module__ == e.__name__]
    return [kind, *(each for child in children for each in tree(child))]


# Branches of the tree that nobody raises as such. `Conflict` and `Unavailable` are branches and errors at once.
BRANCHES = {e.MillstreamError, e.Refused, e.StorageError}


def test_the_tree_in_the_docstring_is_the_real_one():
    drawn = re.findall(r"^ +(?:[│ ]*[├└]── )?([A-Z]\w+)", e.__doc__, re.MULTILINE)
    assert [name for name in drawn if hasattr(e, name)] == [kind.__name__ for kind in tree()]


def test_every_error_that_can_be_raised_has_a_row():
    missing = [kind.__name__ for kind in tree() if kind not in BRANCHES and kind not in STATUS]
    assert missing == []


def test_every_status_has_a_reason():
    assert set(STATUS.values()) <= set(REASONS)
    assert 500 in REASONS


def test_codes_are_unique_and_machine_readable():
    codes = [kind.code for kind in tree()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (e.BadRequest("m"), 400),
        (e.Fenced("m", epoch=1), 403),
        (e.NotFound("m"), 404),
        (e.Conflict("m"), 409),
        (e.StreamClosed("m", tail=1), 409),
        (e.SequenceGap("m", expected=1, received=2), 409),
        (e.Gone("m"), 410),
        (e.PreconditionFailed("m"), 412),
        (e.TooLarge("m"), 413),
        (e.TooMany("m"), 429),
        (e.Unavailable("m"), 503),
        (e.OutcomeUnknown("m"), 503),
        (e.CorruptData("m"), 503),
    ],
)
def test_the_status_of_each_error(error, status):
    assert status_of(error) == status


def test_what_is_not_in_the_table_is_our_mistake():
    assert status_of(e.MillstreamError("m")) == 500


def test_a_code_may_say_more_than_the_kind():
    assert e.BadRequest("m").code == "bad_request"
    assert e.BadRequest("m", code="bad_offset").code == "bad_offset"
    assert e.BadRequest.code == "bad_request"


def test_the_body_is_for_people():
    assert json.loads(error_body("bad_offset", 'Say "now".')) == {
        "error": {"code": "bad_offset", "message": 'Say "now".'}
    }


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (
            e.StreamClosed("m", tail=5),
            b"Stream-Closed: true\r\nStream-Next-Offset: 00000000000000000005\r\n",
        ),
        (
            e.SequenceGap("m", expected=3, received=7),
            b"Producer-Expected-Seq: 3\r\nProducer-Received-Seq: 7\r\n",
        ),
        (e.Fenced("m", epoch=4), b"Producer-Epoch: 4\r\n"),
        (
            e.Gone("m", earliest=9),
            b"Stream-Earliest-Offset: 00000000000000000009\r\nStream-Next-Offset: 00000000000000000009\r\n",
        ),
        (e.Gone("m"), b""),
        (e.TooMany("m"), b"Retry-After: 1\r\n"),
        (e.Unavailable("m"), b"Retry-After: 1\r\n"),
        (e.OutcomeUnknown("m"), b"Retry-After: 1\r\n"),
        (e.BadRequest("m"), b""),
        (e.NotFound("m"), b""),
        (e.Conflict("m"), b""),
        (e.PreconditionFailed("m"), b""),
    ],
)
def test_the_headers_of_each_error(error, lines):
    assert error_lines(error) == lines
