"""The decoder: the same commands however the bytes are cut, every limit while reading, and nothing kept beyond it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.s3p.examples import APPEND_CLIENT, APPEND_SERVER, CREATE_UNKNOWN_OPTION, EXAMPLES, Example

from millstream.model.commands import Body
from millstream.model.errors import BadRequest, Refused, TooLarge
from millstream.model.ids import MessageId
from millstream.protocol.s3p.commands import (
    AppendRecords,
    CreateStream,
    DeleteStream,
    Limits,
    ReadRecords,
    S3pCommand,
    TrimStream,
)
from millstream.protocol.s3p.decoder import Decoder
from millstream.protocol.s3p.encoder import (
    encode_append,
    encode_command,
    encode_create,
    encode_delete,
    encode_read,
    encode_trim,
)
from millstream.protocol.s3p.error_table import code_of

SMALL = Limits(
    name_bytes_max=20,
    append_records_max=5,
    append_bytes_max=100,
    record_bytes_max=60,
    count_default=7,
    count_max=50,
    block_ms_max=900,
)
Outcome = list[S3pCommand | tuple[type[Refused], str]]


def outcome(pieces: Iterable[bytes], limits: Limits = SMALL) -> Outcome:
    """The commands in these bytes, and the error that ended them if there was one."""
    decoder = Decoder(limits)
    found: Outcome = []
    for piece in pieces:
        decoder.feed(piece)
        try:
            while (command := decoder.next_command()) is not None:
                found.append(command)
        except Refused as error:
            found.append((type(error), error.message))
            return found
    return found


def at_every_cut(data: bytes) -> Iterable[list[bytes]]:
    yield [data[at : at + 1] for at in range(len(data))]
    for cut in range(len(data) + 1):
        yield [data[:cut], data[cut:]]


# --- what is understood


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_every_example_of_the_specification_at_every_cut(example: Example):
    whole = outcome([example.request])
    assert len(whole) == 1
    for pieces in at_every_cut(example.request):
        assert outcome(pieces) == whole
    for pieces in at_every_cut(example.request * 2):
        assert outcome(pieces) == (whole if example is CREATE_UNKNOWN_OPTION else whole * 2)


def test_every_example_means_what_it_says():
    assert [outcome([example.request])[0] for example in EXAMPLES] == [
        CreateStream(b"orders", client_ids=True),
        (BadRequest, "unknown option MAX_SIZE"),
        AppendRecords(b"orders", Body(b"helloworld", [5, 5])),
        AppendRecords(b"orders", Body(b"payload"), MessageId(1700000001235, 0)),
        ReadRecords(b"orders", 10),
        TrimStream(b"orders", MessageId(1700000001235, 0)),
        DeleteStream(b"orders"),
    ]


names = st.binary(min_size=1, max_size=20)
ids = st.builds(MessageId, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
commands = st.one_of(
    st.builds(encode_create, names, st.booleans()),
    st.builds(
        encode_append,
        names,
        st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=5),
        st.none() | ids.filter(lambda id_: id_ > (0, 0)),
    ),
    st.builds(encode_read, names, st.none() | st.integers(1, 50), st.integers(0, 900), st.none() | ids),
    st.builds(encode_trim, names, ids),
    st.builds(encode_delete, names),
)


@given(st.lists(commands, max_size=8), st.lists(st.integers(0, 400)))
def test_commands_survive_any_cuts(parts: list[bytes], cuts: list[int]):
    data = b"".join(parts)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in pairwise(places)]
    alone = [outcome([part])[0] for part in parts]
    assert all(not isinstance(command, tuple) for command in alone)
    assert outcome(pieces) == outcome([data]) == alone


@given(st.data())
@settings(max_examples=150)
def test_damaged_commands_fail_the_same_way_at_any_cut(data):
    """Bytes changed, dropped and put in: whatever comes of it does not depend on how they arrive."""
    whole = bytearray(b"".join(data.draw(st.lists(commands, min_size=1, max_size=3))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        with_what = data.draw(st.sampled_from([b"", b"\r", b"\n", b"*", b"$", b"0", b"-", b"1", b"9", b"\0"]))
        whole[at : at + data.draw(st.integers(0, 2))] = with_what
        if not whole:
            return
    expected = outcome([bytes(whole)])
    assert outcome([bytes(whole[at : at + 1]) for at in range(len(whole))]) == expected
    cut = data.draw(st.integers(0, len(whole)))
    assert outcome([bytes(whole[:cut]), bytes(whole[cut:])]) == expected


@given(st.lists(st.binary(max_size=40), max_size=10))
@settings(max_examples=200)
def test_any_bytes_are_understood_or_refused(pieces: list[bytes]):
    decoder = Decoder(SMALL)
    for piece in pieces:
        decoder.feed(piece)
        try:
            while decoder.next_command() is not None:
                pass
        except (BadRequest, TooLarge):
            return
        assert decoder.held_bytes <= SMALL.append_bytes_max + len(piece) + 64


def test_an_append_like_the_last_one_is_not_taken_for_it():
    """The bytes in front of the records are remembered: they must be forgotten where they differ."""
    first = encode_append(b"orders", [b"a"])
    data = b"".join(
        [
            first,
            first,
            encode_append(b"orders2", [b"b"]),
            encode_append(b"orders", [b"c", b"d"]),
            first,
            encode_append(b"orders", [b"e"], MessageId(5, 1)),
            first,
            encode_delete(b"orders"),
            encode_command(b"append", b"orders", [], [b"f"]),
            first,
        ]
    )
    expected = [
        (b"orders", b"a", None),
        (b"orders", b"a", None),
        (b"orders2", b"b", None),
        (b"orders", b"cd", None),
        (b"orders", b"a", None),
        (b"orders", b"e", MessageId(5, 1)),
        (b"orders", b"a", None),
        DeleteStream(b"orders"),
        (b"orders", b"f", None),
        (b"orders", b"a", None),
    ]
    for pieces in at_every_cut(data):
        found = [
            (command.name, command.body.payload, command.first_id) if isinstance(command, AppendRecords) else command
            for command in outcome(pieces)
        ]
        assert found == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encode_command(b"cReAtE", b"x", [b"timestamp_Strategy", b"SERVER"]), CreateStream(b"x")),
        (encode_command(b"CREATE", b"x", [b"TIMESTAMP_STRATEGY", b"Client"]), CreateStream(b"x", True)),
        (encode_command(b"READ", b"\x00\r\n\xff", []), ReadRecords(b"\x00\r\n\xff", 7)),
        (encode_command(b"READ", b"X", [b"count", b"3", b"COUNT", b"4", b"Count", b"005"]), ReadRecords(b"X", 5)),
        (encode_command(b"READ", b"x", [b"COUNT", b"nonsense", b"COUNT", b"2"]), ReadRecords(b"x", 2)),
        (encode_command(b"READ", b"x", [b"BLOCK", b"0"]), ReadRecords(b"x", 7)),
        (
            encode_command(b"READ", b"x", [b"MIN_TIMESTAMP", b"0001-00000000000000000000000000000002"]),
            ReadRecords(b"x", 7, 0, MessageId(1, 2)),
        ),
        (
            encode_command(b"TRIM", b"x", [b"UNTIL", b"18446744073709551615-18446744073709551615"]),
            TrimStream(b"x", MessageId(2**64 - 1, 2**64 - 1)),
        ),
    ],
)
def test_keys_have_no_case_and_the_last_value_wins(data: bytes, expected: S3pCommand):
    assert outcome([data]) == [expected]


# --- what is refused

BAD = [
    (b"PING\r\n", "begins with P"),
    (b"GET / HTTP/1.1\r\n", "begins with G"),
    (b"$4\r\nREAD\r\n", "a command must be an array"),
    (b"+OK\r\n", "begins with +"),
    (b"*0\r\n", "at least its name"),
    (b"*-1\r\n", "decimal length"),
    (b"*3\n", r"not *3\x0a"),
    (b"*3\r$", r"not *3\x0d$"),
    (b"*03\r\n", "decimal length"),
    (b"*+3\r\n", "decimal length"),
    (b"*3 \r\n", "decimal length"),
    (b"*99999999999\r\n", "decimal length"),
    (b"*1\r\n$4\r\nPING\r\n", "unknown command PING"),
    (b"*1\r\n*0\r\n", "a command's name must be a bulk string"),
    (b"*3\r\n$0\r\n\r\n", "at least one byte"),
    (b"*3\r\n$-1\r\n", "decimal length"),
    (b"*3\r\n$04\r\nREAD\r\n", "decimal length"),
    (b"*3\r\n$17\r\n", "16 bytes at most"),
    (b"*3\r\n$4\r\nREAD\n\n", "CR LF where its length says"),
    (b"*3\r\n$3\r\nREAD\r\n", "CR LF where its length says"),
    (b"*3\r\n$3\r\n\xc3\xbc!\r\n", r"unknown command \xc3\xbc!"),
    (b"*2\r\n$6\r\nDELETE\r\n", "DELETE is an array of 3 elements, not 2"),
    (b"*3\r\n$6\r\nAPPEND\r\n", "APPEND is an array of 4 elements, not 3"),
    (encode_command(b"READ", b"n" * 21, []), "20 bytes at most, not 21"),
    (b"*3\r\n$4\r\nREAD\r\n$0\r\n", "a stream's name must not be empty"),
    (b"*3\r\n$4\r\nREAD\r\n*0\r\n", "a stream's name must be a bulk string"),
    (b"*3\r\n$4\r\nREAD\r\n$1\r\nx\r\n$1\r\ny\r\n", "the options must be an array"),
    (b"*3\r\n$4\r\nREAD\r\n$1\r\nx\r\n*1\r\n", "odd"),
    (b"*3\r\n$4\r\nREAD\r\n$1\r\nx\r\n*2\r\n*0\r\n", "an option must be a bulk string"),
    (b"*3\r\n$4\r\nREAD\r\n$1\r\nx\r\n*2\r\n$129\r\n", "128 bytes at most"),
    (encode_command(b"READ", b"x", [b"LIMIT", b"1"]), "unknown option LIMIT"),
    (encode_command(b"READ", b"x", [b"\x00\n", b"1"]), r"unknown option \x00\x0a"),
    (encode_command(b"DELETE", b"x", [b"UNTIL", b"1-1"]), "unknown option UNTIL"),
    (encode_command(b"CREATE", b"x", [b"TIMESTAMP_STRATEGY", b"both"]), "server or client, not both"),
    (encode_command(b"READ", b"x", [b"COUNT", b"0"]), "at least 1"),
    (encode_command(b"READ", b"x", [b"COUNT", b"-1"]), "decimal number, not -1"),
    (encode_command(b"READ", b"x", [b"COUNT", b"1.5"]), "decimal number"),
    (encode_command(b"READ", b"x", [b"COUNT", "٣".encode()]), "decimal number"),
    (encode_command(b"READ", b"x", [b"BLOCK", b"soon"]), "BLOCK must be a decimal number, not soon"),
    (encode_command(b"READ", b"x", [b"MIN_TIMESTAMP", b"12"]), "<ms>-<seq>"),
    (encode_command(b"READ", b"x", [b"MIN_TIMESTAMP", b"1--2"]), "<ms>-<seq>"),
    (encode_command(b"READ", b"x", [b"MIN_TIMESTAMP", b"+1-2"]), "<ms>-<seq>"),
    (encode_command(b"READ", b"x", [b"MIN_TIMESTAMP", b"1-2\n"]), "<ms>-<seq>"),
    (encode_command(b"TRIM", b"x", []), "TRIM needs the option UNTIL"),
    (encode_command(b"TRIM", b"x", [b"UNTIL", b"18446744073709551616-0"]), "64 bits"),
    (encode_command(b"APPEND", b"x", [b"TIMESTAMP", b"0-0"], [b"a"]), "above 0-0"),
    (encode_command(b"APPEND", b"x", [b"TIMESTAMP", b"now"], [b"a"]), "<ms>-<seq>"),
    (encode_command(b"APPEND", b"x", [], []), "at least one record"),
    (b"*4\r\n$6\r\nAPPEND\r\n$1\r\nx\r\n*0\r\n$1\r\n", "the records must be an array"),
    (b"*4\r\n$6\r\nAPPEND\r\n$1\r\nx\r\n*0\r\n*1\r\n*0\r\n", "a record must be a bulk string"),
    (b"*4\r\n$6\r\nAPPEND\r\n$1\r\nx\r\n*0\r\n*1\r\n+a\r\n", "a record must be a bulk string"),
    (b"*4\r\n$6\r\nAPPEND\r\n$1\r\nx\r\n*0\r\n*1\r\n$0\r\n\r\n", "a record must not be empty"),
    (b"*4\r\n$6\r\nAPPEND\r\n$1\r\nx\r\n*0\r\n*1\r\n$1\r\nab\r\n", "CR LF where its length says"),
    (b"*4\r\n$6\r\nAPPEND\r\n$1\r\nx\r\n*0\r\n*1\r\n$99999999999999999999\r\n", "decimal length"),
]
OVER = [
    (encode_command(b"READ", b"x", [b"COUNT", b"51"]), "COUNT may be 50"),
    (encode_command(b"READ", b"x", [b"COUNT", b"9" * 21]), "COUNT may be 50"),
    (encode_command(b"READ", b"x", [b"COUNT", b"9" * 128]), "COUNT may be 50"),
    (encode_command(b"READ", b"x", [b"BLOCK", b"901"]), "BLOCK may be 900 ms"),
    (encode_command(b"READ", b"x", [b"BLOCK", b"1" + b"0" * 30]), "BLOCK may be 900 ms"),
    (b"*4\r\n$6\r\nAPPEND\r\n$1\r\nx\r\n*0\r\n*6\r\n", "5 records"),
    (b"*4\r\n$6\r\nAPPEND\r\n$1\r\nx\r\n*0\r\n*1\r\n$61\r\n", "a record may have 60 bytes"),
    (b"*4\r\n$6\r\nAPPEND\r\n$1\r\nx\r\n*0\r\n*1\r\n$9999999999\r\n", "a record may have 60 bytes"),
    (
        b"*4\r\n$6\r\nAPPEND\r\n$1\r\nx\r\n*0\r\n*2\r\n$60\r\n" + b"y" * 60 + b"\r\n$41\r\n",
        "100 bytes together",
    ),
    (b"*3\r\n$4\r\nREAD\r\n$1\r\nx\r\n*66\r\n", "64 elements"),
]


@pytest.mark.parametrize(("data", "message"), BAD, ids=lambda part: repr(part)[:60])
def test_what_is_malformed_is_refused_at_any_cut(data: bytes, message: str):
    (error,) = outcome([data])
    assert isinstance(error, tuple)
    assert error[0] is BadRequest
    assert message in error[1]
    for pieces in at_every_cut(data):
        assert outcome(pieces) == [error]


@pytest.mark.parametrize(("data", "message"), OVER, ids=lambda part: repr(part)[:60])
def test_what_is_over_a_limit_is_refused_when_it_is_announced(data: bytes, message: str):
    (error,) = outcome([data])
    assert isinstance(error, tuple)
    assert error[0] is TooLarge
    assert message in error[1]
    assert code_of(TooLarge("")) == "ERR_LIMITS"
    for pieces in at_every_cut(data):
        assert outcome(pieces) == [error]


@pytest.mark.parametrize(
    "data",
    [
        encode_append(b"x", [b"y" * 60]),
        encode_append(b"x", [b"y" * 60, b"z" * 40]),
        encode_append(b"x", [b"y" * 20] * 5),
        encode_append(b"n" * 20, [b"y"]),
        encode_command(b"READ", b"x", [b"COUNT", b"50", b"BLOCK", b"900"]),
        encode_command(b"READ", b"x", [b"COUNT", b"50".zfill(128)]),
        encode_command(b"READ", b"x", [b"COUNT", b"1"] * 32),
    ],
    ids=lambda data: repr(data)[:60],
)
def test_what_is_just_within_a_limit_is_taken_at_any_cut(data: bytes):
    (command,) = outcome([data])
    assert not isinstance(command, tuple), command
    for pieces in at_every_cut(data):
        assert str(outcome(pieces)) == str([command])


def test_malformed_comes_before_too_large():
    both = encode_command(b"READ", b"x", [b"COUNT", b"51", b"LIMIT", b"1"])
    assert outcome([both]) == [(BadRequest, "unknown option LIMIT")]
    both = encode_command(b"READ", b"x", [b"COUNT", b"51", b"MIN_TIMESTAMP", b"x"])
    assert outcome([both])[0][0] is BadRequest
    both = encode_command(b"APPEND", b"x", [b"TIMESTAMP", b"x"], [b"y" * 61])
    assert outcome([both])[0][0] is BadRequest


def test_commands_before_an_error_are_given_first():
    found = outcome([APPEND_SERVER.request + APPEND_CLIENT.request + b"*0\r\n" + APPEND_SERVER.request])
    assert [type(one) for one in found] == [AppendRecords, AppendRecords, tuple]


# --- what it costs


def test_memory_is_bound_by_the_limits_and_not_by_what_is_announced():
    decoder = Decoder(Limits())
    decoder.feed(b"*4\r\n$6\r\nAPPEND\r\n$1\r\nx\r\n*0\r\n*1000\r\n")
    assert decoder.next_command() is None
    assert decoder.held_bytes == 0
    decoder.feed(b"$1000000\r\n" + b"y" * 100)
    assert decoder.next_command() is None
    assert decoder.held_bytes < 200


def test_work_is_linear_in_the_bytes_however_small_the_pieces():
    """A megabyte byte by byte: looking at the same bytes again and again would take minutes."""
    data = encode_append(b"x", [b"y" * 900] * 1000)
    decoder = Decoder(Limits())
    found = []
    for at in range(0, len(data), 7):
        decoder.feed(data[at : at + 7])
        command = decoder.next_command()
        if command is not None:
            found.append(command)
    assert [len(command.body.payload) for command in found] == [900_000]
    assert decoder.is_between_commands
