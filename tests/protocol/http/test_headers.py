"""Header names: spelled once, in the case they are looked up in, and open to web pages."""

from __future__ import annotations

from millstream.model import errors as e
from millstream.model.records import Lease, StreamRecord
from millstream.model.replies import Outcome, Receipt
from millstream.protocol.http import headers as h
from millstream.protocol.http.error_table import error_lines
from millstream.protocol.http.responses import metadata_lines, read_lines, write_lines

NAMES = {value for name, value in vars(h).items() if name.isupper() and isinstance(value, bytes) and b"," not in value}


def listed(value: bytes) -> set[bytes]:
    return set(value.split(b", "))


def test_request_headers_are_spelled_as_they_are_looked_up():
    assert len(NAMES) > 10
    assert all(name == name.lower() for name in NAMES)


def test_headers_whose_repetition_would_change_the_meaning_are_single():
    assert NAMES >= h.SINGLE
    assert {name for name in NAMES if name.startswith((b"stream-", b"producer-"))} <= h.SINGLE
    assert h.CONTENT_TYPE in h.SINGLE
    assert h.ACCEPT_ENCODING not in h.SINGLE


def test_web_pages_may_send_every_header_of_the_protocol():
    ours = {name for name in NAMES if name.startswith((b"stream-", b"producer-"))}
    assert listed(h.ALLOWED_BY_CORS) >= ours | {h.CONTENT_TYPE, h.IF_MATCH, h.IF_NONE_MATCH, h.LAST_EVENT_ID}


def test_web_pages_may_read_every_header_of_the_protocol():
    record = StreamRecord(1, "a/b", "text/plain", 0, 0, closed=True, earliest=1, lease=Lease(1, 2, 3))
    said = write_lines(Receipt(Outcome.APPENDED, 1, 5, True, "text/plain", 0, 0), "id")
    said += metadata_lines(record, "id", 1) + read_lines(record, "id", 0, record.tail)[0]
    for error in (e.SequenceGap("m", expected=0, received=1), e.Gone("m", earliest=1), e.Unavailable("m")):
        said += error_lines(error)
    names = {line.split(b":")[0].lower() for line in said.split(b"\r\n")} - {b""}
    safelisted = {b"content-type", b"cache-control", b"content-security-policy"}
    assert listed(h.EXPOSED_BY_CORS) >= (names - safelisted) | {
        b"location",
        b"stream-cursor",
        b"stream-sse-data-encoding",
    }
