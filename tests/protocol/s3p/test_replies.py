"""Replies: their bytes, and that a client understands them however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.s3p.examples import EXAMPLES, Example

from millstream.model import errors as e
from millstream.model.errors import BadRequest
from millstream.model.ids import MessageId
from millstream.protocol.s3p import error_table
from millstream.protocol.s3p.replies import NOTHING, OK, error_reply, id_reply, records_reply
from millstream.protocol.s3p.reply_decoder import ErrorReply, Ok, Reply, ReplyDecoder


def decoded(pieces: list[bytes]) -> list[Reply]:
    decoder = ReplyDecoder()
    found: list[Reply] = []
    for piece in pieces:
        decoder.feed(piece)
        while (reply := decoder.next_reply()) is not None:
            found.append(reply)
    return found


def test_replies_are_the_specification_s_bytes():
    assert OK == b"+OK\r\n"
    assert NOTHING == b"*0\r\n"
    assert id_reply(1700000001235, 0) == b"$15\r\n1700000001235-0\r\n"
    reply = records_reply([b"hello", b"world"], [1700000001234, 1700000001235], [0, 0])
    assert b"".join(reply) == EXAMPLES[4].reply
    assert error_reply("ERR_BAD_FORMAT", "unknown option MAX_SIZE") == EXAMPLES[1].reply


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_every_reply_of_the_specification_at_every_cut(example: Example):
    data = example.reply * 2
    whole = decoded([data])
    assert len(whole) == 2
    assert decoded([data[at : at + 1] for at in range(len(data))]) == whole
    for cut in range(len(data)):
        assert decoded([data[:cut], data[cut:]]) == whole


def test_an_error_is_always_one_printable_line():
    assert error_reply("ERR_X", "a\r\n+OK\r\n\xff\0") == b"-ERR_X a??+OK????\r\n"


@given(
    st.lists(
        st.tuples(st.binary(min_size=1, max_size=30), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
        max_size=5,
    )
)
def test_records_come_back_as_they_are(records: list[tuple[bytes, int, int]]):
    payloads, ids_ms, id_seqs = [list(column) for column in zip(*records, strict=True)] or [[], [], []]
    (reply,) = decoded(records_reply(payloads, ids_ms, id_seqs))
    expected = [part for data, ms, seq in records for part in (str(MessageId(ms, seq)).encode(), data)]
    assert reply == expected


def test_large_records_are_not_copied_into_their_reply():
    large = b"x" * 100_000
    pieces = records_reply([b"small", large, b"small", large], [1, 2, 3, 4], [0, 0, 0, 0])
    assert sum(piece is large for piece in pieces) == 2
    assert decoded(pieces) == [[b"1-0", b"small", b"2-0", large, b"3-0", b"small", b"4-0", large]]


@pytest.mark.parametrize("data", [b"?\r\n", b"$x\r\n", b"*1\r\n+OK\r\n", b"$1\r\nab\r\n", b":1\r\n", b"*-1\r\n"])
def test_what_is_no_reply_is_said_so(data: bytes):
    with pytest.raises(BadRequest) as caught:
        decoded([data])
    assert caught.value.code == "not_s3p"


def test_kinds_of_reply():
    assert decoded([b"+OK\r\n-ERR_LIMITS too much\r\n$1\r\nx\r\n*0\r\n"]) == [
        Ok("OK"),
        ErrorReply("ERR_LIMITS", "too much"),
        b"x",
        [],
    ]


def test_every_error_of_a_command_has_a_code():
    codes = {
        "ERR_BAD_FORMAT": (e.BadRequest(""), e.Conflict(""), e.Conflict("", code="id_regression")),
        "ERR_UNKNOWN_STREAM": (e.NotFound(""),),
        "ERR_STREAM_EXISTS": (e.Conflict("", code="stream_exists"),),
        "ERR_LIMITS": (e.TooLarge(""), e.TooMany("")),
        "ERR_CLOSED": (e.StreamClosed("", tail=0),),
        "ERR_UNAVAILABLE": (e.Unavailable(""), e.OutcomeUnknown(""), e.CorruptData(""), e.MillstreamError("")),
    }
    for code, errors in codes.items():
        assert {error_table.code_of(error) for error in errors} == {code}
    assert set(codes) == {*error_table.CODES.values(), "ERR_STREAM_EXISTS"}


def test_messages_speak_of_s3p():
    missing = e.NotFound("There is no such stream. Create it with PUT.")
    assert error_table.message_of(missing, b"a\xffb\\") == r"there is no stream a\xffb\x5c; CREATE it first"
    assert error_table.message_of(e.TooLarge("as it is"), b"x") == "as it is"
