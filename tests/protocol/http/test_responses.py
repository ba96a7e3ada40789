"""The heads of responses: status lines, what they say about the stream, and how long it may be kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.records import Lease, StreamRecord
from millstream.model.replies import Outcome, Receipt
from millstream.protocol.http.requests import parse_time_ms
from millstream.protocol.http.responses import (
    NO_STORE,
    SANDBOX,
    appended_format,
    cache_lines,
    content_lines,
    format_time,
    head,
    is_active,
    metadata_lines,
    read_lines,
    write_lines,
    write_status,
)

ID = "0000abcd-7"
COMMON = b"Date: today\r\n"


def fields(lines: bytes) -> dict[str, str]:
    """Header lines as a dictionary; none may be there twice."""
    assert lines.endswith(b"\r\n")
    pairs = [line.split(": ", 1) for line in lines.decode("latin-1").split("\r\n")[:-1]]
    assert len({name.lower() for name, _ in pairs}) == len(pairs)
    return dict(pairs)


def receipt(outcome: Outcome, tail: int = 5, closed: bool = False, producer: tuple[int, int] | None = None) -> Receipt:
    return Receipt(outcome, 7, tail, closed, "text/plain", *(producer or (None, None)))


# --- heads


def test_a_whole_head():
    assert head(200, COMMON, b"ETag: x\r\n", 5) == (
        b"HTTP/1.1 200 OK\r\nDate: today\r\nETag: x\r\nContent-Length: 5\r\n\r\n"
    )


def test_a_head_without_a_length():
    assert head(204, COMMON, b"", None) == b"HTTP/1.1 204 No Content\r\nDate: today\r\n\r\n"


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (201, b"201 Created"),
        (304, b"304 Not Modified"),
        (400, b"400 Bad Request"),
        (403, b"403 Forbidden"),
        (404, b"404 Not Found"),
        (405, b"405 Method Not Allowed"),
        (409, b"409 Conflict"),
        (410, b"410 Gone"),
        (412, b"412 Precondition Failed"),
        (413, b"413 Content Too Large"),
        (421, b"421 Misdirected Request"),
        (429, b"429 Too Many Requests"),
        (500, b"500 Internal Server Error"),
        (503, b"503 Service Unavailable"),
    ],
)
def test_status_lines(status, line):
    assert head(status, b"", b"", 0).startswith(b"HTTP/1.1 " + line + b"\r\n")


# --- writing


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome.CREATED, 201),
        (Outcome.EXISTED, 200),
        (Outcome.APPENDED, 204),
        (Outcome.DUPLICATE, 204),
        (Outcome.CLOSED, 204),
        (Outcome.DELETED, 204),
    ],
)
def test_the_status_of_each_outcome(outcome, status):
    assert write_status(receipt(outcome)) == status


def test_with_a_producer_new_data_is_200_and_known_data_204():
    assert write_status(receipt(Outcome.APPENDED, producer=(0, 0))) == 200
    assert write_status(receipt(Outcome.DUPLICATE, producer=(0, 0))) == 204
    assert write_status(receipt(Outcome.CLOSED, producer=(0, 0))) == 204


def test_a_write_says_where_the_stream_ends():
    assert fields(write_lines(receipt(Outcome.APPENDED), ID)) == {
        "Stream-Next-Offset": "00000000000000000005",
        "ETag": '"0000abcd-7:5"',
        "Stream-Id": ID,
    }


def test_a_write_says_that_the_stream_is_closed():
    said = fields(write_lines(receipt(Outcome.CLOSED, closed=True), ID))
    assert (said["Stream-Closed"], said["ETag"]) == ("true", '"0000abcd-7:5:c"')


def test_a_write_echoes_its_producer():
    said = fields(write_lines(receipt(Outcome.APPENDED, producer=(3, 9)), ID))
    assert (said["Producer-Epoch"], said["Producer-Seq"]) == ("3", "9")


@given(st.integers(0, 10**15), st.sampled_from([COMMON, COMMON + b"X-Share: 100%\r\n"]))
def test_the_short_cut_for_plain_appends_says_the_same(tail, common):
    answer = receipt(Outcome.APPENDED, tail)
    long_way = head(204, common, write_lines(answer, ID), None)
    assert appended_format(common, 0xABCD) % (tail, answer.number, tail, answer.number) == long_way


# --- content types


def test_content_keeps_its_type_and_gets_no_rights():
    assert content_lines("Text/Plain;x=1") == b"Content-Type: Text/Plain;x=1\r\nContent-Security-Policy: sandbox\r\n"


@pytest.mark.parametrize(
    "content_type",
    [
        *("text/html", "TEXT/HTML; charset=utf-8", "application/xhtml+xml", "image/svg+xml", "text/xml"),
        *("application/xml", "text/javascript", "application/ecmascript", "application/pdf", "text/xsl"),
    ],
)
def test_what_a_browser_might_run_is_downloaded(content_type):
    assert is_active(content_type)
    assert fields(content_lines(content_type))["Content-Disposition"] == "attachment"


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/json", "application/octet-stream", "image/png", "text/plain; x=html"]
)
def test_the_rest_is_shown(content_type):
    assert not is_active(content_type)
    assert "Content-Disposition" not in fields(content_lines(content_type))


def test_a_content_type_in_latin_1_survives():
    assert "text/é".encode("latin-1") in content_lines("text/é")


# --- metadata


def record(**changes: object) -> StreamRecord:
    return StreamRecord(7, "shop/orders", "text/plain", 0, 0, **{"tail": 5, **changes})


def test_metadata_of_an_open_stream():
    assert fields(metadata_lines(record(), ID, None)) == {
        "Content-Type": "text/plain",
        "Content-Security-Policy": "sandbox",
        "Cache-Control": "no-store",
        "Stream-Next-Offset": "00000000000000000005",
        "ETag": '"0000abcd-7:5"',
        "Stream-Id": ID,
    }


def test_metadata_of_a_closed_and_trimmed_stream():
    said = fields(metadata_lines(record(closed=True, earliest=2), ID, None))
    assert said["Stream-Closed"] == "true"
    assert said["Stream-Earliest-Offset"] == "00000000000000000002"
    assert said["ETag"] == '"0000abcd-7:5:c"'


def test_metadata_has_the_seconds_that_are_left():
    said = fields(metadata_lines(record(lease=Lease(60, None, 0)), ID, 17))
    assert said["Stream-TTL"] == "17"
    assert "Stream-Expires-At" not in said


def test_metadata_has_the_expiry():
    said = fields(metadata_lines(record(lease=Lease(None, 1_896_091_200_123, 0)), ID, 17))
    assert said["Stream-Expires-At"] == "2030-01-31T12:00:00.123Z"
    assert "Stream-TTL" not in said


# --- reading


def test_a_range_in_the_middle():
    lines, etag = read_lines(record(), ID, 0, 3)
    assert fields(lines) == {"Stream-Next-Offset": "00000000000000000003", "Stream-Id": ID}
    assert etag == '"0000abcd-7:0:3"'


def test_a_range_up_to_the_tail():
    lines, etag = read_lines(record(), ID, 0, 5)
    assert fields(lines)["Stream-Up-To-Date"] == "true"
    assert "Stream-Closed" not in fields(lines)
    assert etag == '"0000abcd-7:0:5"'


def test_a_range_up_to_the_end():
    lines, etag = read_lines(record(closed=True), ID, 5, 5)
    assert (fields(lines)["Stream-Up-To-Date"], fields(lines)["Stream-Closed"]) == ("true", "true")
    assert etag == '"0000abcd-7:5:5:c"'


def test_a_range_in_the_middle_of_a_closed_stream_does_not_say_so():
    lines, etag = read_lines(record(closed=True), ID, 0, 3)
    assert not {"Stream-Up-To-Date", "Stream-Closed"} & set(fields(lines))
    assert etag == '"0000abcd-7:0:3"'


# --- caching


def ages(seconds_left: int | None) -> str:
    return fields(cache_lines(seconds_left))["Cache-Control"]


def test_a_range_may_be_kept_for_a_minute():
    assert ages(None) == "public, max-age=60, stale-while-revalidate=300"
    assert ages(10_000) == "public, max-age=60, stale-while-revalidate=300"


def test_but_not_past_the_end_of_the_stream():
    assert ages(100) == "public, max-age=60, stale-while-revalidate=40"
    assert ages(60) == "public, max-age=60, stale-while-revalidate=0"
    assert ages(7) == "public, max-age=7, stale-while-revalidate=0"
    assert ages(0) == "public, max-age=0, stale-while-revalidate=0"


@given(st.integers(0, 10_000))
def test_both_ages_together_never_exceed_what_is_left(seconds_left):
    age, revalidate = (int(part.split("=")[1]) for part in ages(seconds_left).split(", ")[1:])
    assert age <= 60
    assert revalidate <= 300
    assert age + revalidate <= seconds_left


def test_lines_that_are_always_the_same():
    assert fields(NO_STORE) == {"Cache-Control": "no-store"}
    assert fields(SANDBOX) == {"Content-Security-Policy": "sandbox"}


# --- times


def test_times_are_written_as_javascript_writes_them():
    assert format_time(0) == "1970-01-01T00:00:00.000Z"
    assert format_time(1_896_091_200_123) == "2030-01-31T12:00:00.123Z"


@given(st.integers(-(10**13), 253_402_300_799_999))
def test_a_time_is_read_back_as_it_was_written(at_ms):
    assert parse_time_ms(format_time(at_ms)) == at_ms


def test_a_time_after_the_last_year_is_written_as_its_last_second():
    assert format_time(10**17).startswith("9999-12-31T23:59:59")
