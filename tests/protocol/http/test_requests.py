"""From an HTTP request to a command or a query: every header and every parameter, good and bad."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.commands import EMPTY_BODY, Append, Body, Create, Delete
from millstream.model.errors import BadRequest, NotSupported, UnsupportedMedia
from millstream.model.facts import Producer
from millstream.model.offsets import BEGINNING, NOW
from millstream.protocol.http.error_table import error_lines, status_of
from millstream.protocol.http.requests import (
    ReadQuery,
    Request,
    append_command,
    create_command,
    delete_command,
    is_closing,
    parse_time_ms,
    read_query,
)

KEY = "shop/orders"


def request(body: bytes = b"", query: bytes = b"", **headers: str | bytes) -> Request:
    """`request(b"x", stream_ttl="60")` has the header stream-ttl."""
    named = {
        name.replace("_", "-").encode(): value if isinstance(value, bytes) else value.encode("latin-1")
        for name, value in headers.items()
    }
    return Request(b"POST", b"/v1/stream/orders", query, named, body, True)


def appended(body: bytes = b"x", **headers: str | bytes) -> Append:
    return append_command(request(body, **{"content_type": "text/plain", **headers}), KEY)


def created(body: bytes = b"", **headers: str | bytes) -> Create:
    return create_command(request(body, **headers), KEY)


def refused(make, *args: object, **headers: object) -> str:
    with pytest.raises(BadRequest) as caught:
        make(*args, **headers)
    assert status_of(caught.value) == 400
    return caught.value.code


def fault(command: Append | Create) -> str:
    """What is wrong with a body: a value, as the engine decides when it is said."""
    assert command.body.fault is not None
    assert status_of(command.body.fault) == 400
    return command.body.fault.code


# --- appending


def test_a_plain_append():
    assert appended(b"hello") == Append(KEY, "text/plain", Body(b"hello"))


def test_an_append_with_everything():
    command = appended(
        b"hello",
        stream_closed="true",
        producer_id="p",
        producer_epoch="1",
        producer_seq="2",
        stream_seq="s",
        if_match='"tag"',
    )
    assert command == Append(KEY, "text/plain", Body(b"hello"), True, Producer("p", 1, 2), "s", '"tag"')


def test_the_content_type_is_taken_as_it_is():
    assert appended(content_type="Text/Plain; charset=X").content_type == "Text/Plain; charset=X"
    assert append_command(request(b"x"), KEY).content_type is None
    assert append_command(request(b"x", content_type=""), KEY).content_type is None


@pytest.mark.parametrize(
    "value", ["text", "/plain", "text/", "te xt/plain", "no slash here", "a/b/c", "a/b c", ";", "a;b/c"]
)
def test_a_content_type_that_is_no_media_type_is_refused(value):
    assert refused(appended, content_type=value) == "bad_content_type"
    assert refused(created, content_type=value) == "bad_content_type"


WRITES = {"append": appended, "create": created, "delete": lambda **headers: delete_command(request(**headers), KEY)}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize(
    "name", ["stream_forked_from", "stream_fork_offset", "stream_fork_sub_offset", "stream_record_match"]
)
def test_headers_of_later_protocols_are_refused_by_name(write, name):
    """Without them it would be another request, and succeed as that."""
    with pytest.raises(NotSupported, match=name.replace("_", "-").title()) as caught:
        write(**{name: "1"})
    assert status_of(caught.value) == 501


@pytest.mark.parametrize("write", [appended, created])
def test_a_body_in_another_coding_is_refused(write):
    with pytest.raises(UnsupportedMedia) as caught:
        write(b"x", content_encoding="gzip")
    assert status_of(caught.value) == 415
    assert error_lines(caught.value) == b"Accept-Encoding: identity\r\n"
    assert write(b"x", content_encoding="Identity").body == Body(b"x")


def test_an_empty_body_is_for_the_engine_to_judge():
    assert appended(b"", content_type="application/json") == Append(KEY, "application/json", EMPTY_BODY)
    assert appended(b"", stream_closed="true").body is EMPTY_BODY


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON; charset=utf-8"])
def test_json_is_split_into_messages(content_type):
    assert appended(b"[1, 22]", content_type=content_type).body == Body(b"122", [1, 2])
    assert appended(b' {"a":1} ', content_type=content_type).body == Body(b'{"a":1}')


def test_broken_json_is_a_fault():
    assert fault(appended(b"{", content_type="application/json")) == "invalid_json"
    assert fault(appended(b'"\xff"', content_type="application/json")) == "invalid_json"
    assert fault(appended(b"[" * 100_000, content_type="application/json")) == "invalid_json"


def test_an_empty_array_appends_nothing_and_that_is_a_fault():
    assert fault(appended(b"[]", content_type="application/json")) == "empty_array"
    assert fault(appended(b" [ ] ", content_type="application/json", stream_closed="true")) == "empty_array"


def test_other_types_are_not_looked_into():
    for content_type in ("text/plain", "application/ndjson", "application/vnd.api+json"):
        assert appended(b"[1, 2", content_type=content_type).body == Body(b"[1, 2")


@pytest.mark.parametrize("value", ["true", "TRUE", "True", "tRuE"])
def test_only_true_closes(value):
    assert is_closing({b"stream-closed": value.encode()})
    assert appended(stream_closed=value).closes


@pytest.mark.parametrize("value", ["false", "yes", "1", "", "true,true", "truely", "t", '"true"'])
def test_any_other_value_counts_as_absent(value):
    assert not is_closing({b"stream-closed": value.encode()})
    assert not appended(stream_closed=value).closes
    assert not created(stream_closed=value).closed


# --- producers


def stamped(**headers: str) -> Producer | None:
    return appended(**{"producer_id": "p", "producer_epoch": "0", "producer_seq": "0", **headers}).producer


def test_a_producer_needs_all_three_headers():
    names = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
    for left_out in names:
        rest = {name: value for name, value in names.items() if name != left_out}
        assert refused(appended, **rest) == "bad_producer"
        assert refused(created, **rest) == "bad_producer"
    for only, value in names.items():
        assert refused(appended, **{only: value}) == "bad_producer"


def test_a_producer_id_is_one_to_1024_bytes():
    assert stamped(producer_id="order-service-1").id == "order-service-1"
    assert stamped(producer_id="é").id == "é"
    assert stamped(producer_id="p" * 1024).id == "p" * 1024
    assert refused(stamped, producer_id="") == "bad_header"
    assert refused(stamped, producer_id="p" * 1025) == "bad_header"


@pytest.mark.parametrize("header", ["producer_epoch", "producer_seq"])
@pytest.mark.parametrize(("text", "value"), [("0", 0), ("7", 7), ("007", 7), (str(2**53 - 1), 2**53 - 1)])
def test_an_epoch_and_a_seq_are_integers_that_javascript_has(header, text, value):
    producer = stamped(**{header: text})
    assert (producer.epoch if header == "producer_epoch" else producer.seq) == value


@pytest.mark.parametrize("header", ["producer_epoch", "producer_seq"])
@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1.0", "1e3", "0x1", "one", "1 2", str(2**53), "9" * 17, "9" * 1000, "1,2", "²", "null"]
)
def test_anything_else_is_a_bad_producer(header, text):
    assert refused(stamped, **{header: text}) == "bad_producer"


def test_nobody_but_the_engine_says_that_a_producer_is_new():
    assert stamped().is_new is False


# --- conditions


def test_a_stream_seq_is_one_to_1024_bytes():
    assert appended(stream_seq="0001").stream_seq == "0001"
    assert appended(stream_seq=b"\xe9").stream_seq == "\xe9"
    assert refused(appended, stream_seq="") == "bad_header"
    assert refused(appended, stream_seq="s" * 1025) == "bad_header"
    assert created(stream_seq="0001").stream_seq == "0001"


def test_if_match_is_taken_as_it_is():
    assert appended(if_match='W/"a", "b"').if_match == 'W/"a", "b"'
    assert created(if_match="*").if_match == "*"
    assert created(if_none_match="*").if_none_match == "*"


# --- creating


def test_a_plain_create():
    assert created() == Create(KEY)
    assert created(b"hello", content_type="text/plain") == Create(KEY, "text/plain", body=Body(b"hello"))


def test_a_create_with_everything():
    command = created(
        b"[1, 2]",
        content_type="application/json",
        stream_ttl="60",
        stream_closed="TRUE",
        producer_id="p",
        producer_epoch="1",
        producer_seq="0",
        stream_seq="s",
        if_match="*",
    )
    body = Body(b"12", [1, 1])
    assert command == Create(KEY, "application/json", 60, None, True, body, Producer("p", 1, 0), "s", "*")


def test_an_empty_array_creates_an_empty_stream():
    assert created(b"[]", content_type="application/json").body is EMPTY_BODY


def test_broken_json_is_a_fault_here_too():
    assert fault(created(b"[1,", content_type="application/json")) == "invalid_json"


def test_without_a_content_type_the_body_is_bytes():
    assert created(b"[1,").body == Body(b"[1,")


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("1", 1), ("3600", 3600), ("999999999999", 999_999_999_999)])
def test_a_ttl_is_whole_seconds(text, seconds):
    assert created(stream_ttl=text).ttl_s == seconds


@pytest.mark.parametrize(
    "text", ["", "-1", "+3600", "03600", "00", "3600.0", "3.6e3", "1h", "abc", "9" * 13, "1 ", "1,2", "0x10", "²"]
)
def test_a_ttl_in_any_other_notation_is_refused(text):
    assert refused(created, stream_ttl=text) == "bad_ttl"


def test_ttl_and_expiry_exclude_each_other():
    assert refused(created, stream_ttl="60", stream_expires_at="2030-01-31T12:00:00Z") == "bad_expiry"


def test_an_expiry_is_an_rfc_3339_time():
    assert created(stream_expires_at="2030-01-31T12:00:00Z").expires_at_ms == 1_896_091_200_000
    assert refused(created, stream_expires_at="tomorrow") == "bad_expiry"


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
        ("2016-12-31t15:59:60.25-08:00", 1_483_228_800_250),
        ("2030-01-31T12:00:00.1234567890123Z", 1_896_091_200_123),
        ("2030-01-31T12:00:00." + "9" * 40 + "Z", 1_896_091_201_000),
    ],
)
def test_leap_seconds_and_long_fractions_are_times_too(text, at_ms):
    assert parse_time_ms(text) == at_ms


@pytest.mark.parametrize("text", ["2016-12-31T23:58:60Z", "2016-12-31T23:59:61Z", "2030-01-31T12:00:00.Z"])
def test_not_everything_that_looks_like_them_is(text):
    assert refused(parse_time_ms, text) == "bad_expiry"


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.001Z", 1),
        ("1970-01-01t00:00:01z", 1000),
        ("1970-01-01 00:00:01Z", 1000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T19:00:00-05:00", 0),
        ("1969-12-31T23:59:59Z", -1000),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
        ("2030-01-31T12:00:00.123456789Z", 1_896_091_200_123),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000),
    ],
)
def test_times_that_are_understood(text, ms):
    assert parse_time_ms(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        *("", "2030-01-31", "2030-01-31T12:00Z", "2030-01-31T12:00:00", "20300131T120000Z", "2030-1-31T12:00:00Z"),
        *("2030-02-30T00:00:00Z", "2030-13-01T00:00:00Z", "2030-01-31T25:00:00Z", "0000-01-01T00:00:00Z"),
        *("2030-01-31T12:00:00+0100", "2030-01-31T12:00:00+99:00", "2030-01-31T12:00:00.Z", "2030-W05-4T12:00:00Z"),
        *("1896091200", "Thu, 31 Jan 2030 12:00:00 GMT", " 2030-01-31T12:00:00Z", "2030-01-31T12:00:00Z\n"),
        *("٢٠٣٠-01-31T12:00:00Z", "2030-01-31T12:00:60Z", "12030-01-31T12:00:00Z", "-2030-01-31T12:00:00Z"),
    ],
)
def test_times_that_are_not(text):
    assert refused(parse_time_ms, text) == "bad_expiry"


@given(st.integers(0, 250_000_000_000_000), st.integers(-14 * 60, 14 * 60))
def test_every_offset_from_utc_names_the_same_moment(at_ms, minutes):
    zone = timezone(timedelta(minutes=minutes))
    moment = datetime.fromtimestamp(at_ms // 1000, zone).replace(microsecond=at_ms % 1000 * 1000)
    assert parse_time_ms(moment.isoformat(timespec="milliseconds")) == at_ms


@given(st.text(max_size=40))
def test_any_text_is_a_time_or_a_bad_request(text):
    with contextlib.suppress(BadRequest):
        assert isinstance(parse_time_ms(text), int)


# --- deleting


def test_a_delete_has_a_name_and_perhaps_a_condition():
    assert delete_command(request(), KEY) == Delete(KEY)
    assert delete_command(request(if_match='"a"'), KEY) == Delete(KEY, '"a"')


# --- reading


def asked(query: bytes) -> ReadQuery:
    return read_query(request(query=query))


def test_without_parameters_a_read_starts_at_the_beginning():
    assert asked(b"") == ReadQuery()
    assert asked(b"").offset == BEGINNING


@pytest.mark.parametrize(
    ("query", "offset"),
    [
        (b"offset=-1", BEGINNING),
        (b"offset=now", NOW),
        (b"offset=00000000000000000012", 12),
        (b"offset=12", 12),
        (b"offset=%31%32", 12),
        (b"offset=0000000000000000_0000000000000012", 12),
        (b"%6Fffset=12", 12),
    ],
)
def test_an_offset(query, offset):
    assert (asked(query).offset, asked(query).has_offset) == (offset, True)


@pytest.mark.parametrize("query", [b"offset=", b"offset", b"offset=x", b"offset=-2", b"offset=1%00", b"offset=+1"])
def test_a_malformed_offset_is_refused(query):
    assert refused(asked, query) == "bad_offset"


def test_every_parameter_together():
    query = b"cursor=5&live=long-poll&max_bytes=100&offset=12&stream-id=ab-1&timeout_ms=0"
    assert asked(query) == ReadQuery(12, True, "long-poll", 5, 0, 100, "ab-1")


@pytest.mark.parametrize(
    "name", [b"offset", b"live", b"cursor", b"stream-cursor", b"timeout_ms", b"max_bytes", b"stream-id"]
)
def test_a_known_parameter_may_be_given_once(name):
    assert refused(asked, b"%b=1&%b=1" % (name, name)) == "repeated_parameter"
    assert refused(asked, b"%b=1&%%%02x%b=1" % (name, name[0], name[1:])) == "repeated_parameter"


def test_unknown_parameters_are_ignored_however_often():
    assert asked(b"x=1&x=2&offset=3&utm_source=a%20b") == ReadQuery(3, True)
    assert asked(b"&&=&a&offset=3&") == ReadQuery(3, True)


def test_a_query_must_be_utf8():
    assert refused(asked, b"offset=%ff") == "bad_query"


def test_the_two_ways_to_wait():
    assert asked(b"live=sse&offset=-1").live == "sse"
    assert asked(b"live=long-poll&offset=now").live == "long-poll"


@pytest.mark.parametrize("value", [b"", b"true", b"SSE", b"longpoll", b"websocket"])
def test_there_is_no_third_way(value):
    assert refused(asked, b"offset=-1&live=" + value) == "bad_live"


@pytest.mark.parametrize("mode", [b"sse", b"long-poll"])
def test_waiting_needs_an_offset(mode):
    assert refused(asked, b"live=" + mode) == "offset_missing"


def test_a_cursor_has_two_names():
    assert asked(b"offset=0&cursor=7").cursor == 7
    assert asked(b"offset=0&stream-cursor=7").cursor == 7
    assert asked(b"offset=0&cursor=7&stream-cursor=8").cursor == 7
    assert asked(b"timestamp=0&live=sse&cursor=7").cursor == 7


@pytest.mark.parametrize("query", [b"cursor=7", b"stream-cursor=7", b"cursor=", b"cursor=x&max_bytes=5"])
def test_a_cursor_alone_is_no_place_to_read_from(query):
    """Reading would begin anew, and a client that lost its offset would not notice."""
    with pytest.raises(BadRequest, match=r"offset .* stream-id"):
        asked(query)


def test_a_long_cursor_still_gets_a_greater_one_or_is_refused():
    assert asked(b"offset=0&cursor=" + b"9" * 30).cursor == int("9" * 30)
    assert asked(b"offset=0&cursor=" + b"9" * 64).cursor == int("9" * 64)
    assert refused(asked, b"offset=0&cursor=" + b"9" * 65) == "bad_cursor"


@pytest.mark.parametrize("name", [b"record", b"tail_records", b"record_view"])
def test_parameters_of_later_protocols_are_refused_by_name(name):
    for query in (name + b"=1", b"offset=0&live=sse&" + name + b"="):
        with pytest.raises(NotSupported, match=name.decode()) as caught:
            asked(query)
        assert status_of(caught.value) == 501


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"1.5", b"%C2%B2", b"abc123"])
def test_a_cursor_that_is_not_ours_is_ignored(value):
    assert asked(b"offset=0&cursor=" + value).cursor is None


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"x", b"1s", b"%C2%B2", b"9" * 21])
def test_limits_are_plain_integers(value):
    assert refused(asked, b"timeout_ms=" + value) == "bad_timeout_ms"
    assert refused(asked, b"max_bytes=" + value) == "bad_max_bytes"


def test_a_wait_may_be_nothing_but_a_read_may_not():
    assert asked(b"timeout_ms=0").timeout_ms == 0
    assert refused(asked, b"max_bytes=0") == "bad_max_bytes"
    assert asked(b"max_bytes=1").max_bytes == 1


@given(st.binary(max_size=40))
def test_any_query_is_understood_or_a_bad_request(query):
    with contextlib.suppress(BadRequest):
        assert asked(query).offset >= NOW
