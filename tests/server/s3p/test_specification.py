"""S3P against a real server: the examples of the specification byte for byte, and the table of errors."""

from __future__ import annotations

import pytest
from tests.conftest import ServerProcess
from tests.protocol.s3p import examples
from tests.server.s3p.wire import Wire, ask_http, exchange, records_of, without_ids

from millstream.model.ids import MessageId
from millstream.protocol.s3p.encoder import (
    encode_append,
    encode_command,
    encode_create,
    encode_delete,
    encode_read,
    encode_trim,
)
from millstream.protocol.s3p.reply_decoder import ErrorReply

# --- the specification's examples, byte for byte except ids


def test_the_examples_with_server_ids(server):
    port = server().s3p_port
    assert exchange(port, encode_create(b"orders")) == b"+OK\r\n"
    assert without_ids(exchange(port, examples.APPEND_SERVER.request)) == examples.APPEND_SERVER.reply
    replied = exchange(port, examples.READ.request)
    assert without_ids(replied) == without_ids(examples.READ.reply)
    assert exchange(port, examples.TRIM.request) == examples.TRIM.reply
    assert exchange(port, examples.DELETE.request) == examples.DELETE.reply


def test_the_examples_with_client_ids(server):
    port = server().s3p_port
    assert exchange(port, examples.CREATE_UNKNOWN_OPTION.request) == examples.CREATE_UNKNOWN_OPTION.reply
    assert exchange(port, examples.CREATE_CLIENT.request) == examples.CREATE_CLIENT.reply
    first = encode_append(b"orders", [b"hello"], MessageId(1700000001234, 0))
    assert exchange(port, first) == b"$15\r\n1700000001234-0\r\n"
    assert exchange(port, examples.APPEND_CLIENT.request) == examples.APPEND_CLIENT.reply
    assert exchange(port, examples.READ.request) == examples.READ.reply.replace(b"$5\r\nworld", b"$7\r\npayload")
    assert exchange(port, examples.TRIM.request) == examples.TRIM.reply
    assert exchange(port, examples.READ.request) == b"*2\r\n$15\r\n1700000001235-0\r\n$7\r\npayload\r\n"
    assert exchange(port, examples.DELETE.request) == examples.DELETE.reply


def test_the_examples_byte_by_byte(server):
    """Every cut of a whole conversation, as the network may make it."""
    port = server().s3p_port
    talk = b"".join(
        [encode_create(b"orders"), examples.APPEND_SERVER.request, examples.READ.request, examples.DELETE.request]
    )
    expected = b"".join([b"+OK\r\n", examples.APPEND_SERVER.reply, without_ids(examples.READ.reply), b"+OK\r\n"])
    assert without_ids(exchange(port, *[talk[at : at + 1] for at in range(len(talk))])) == expected
    for cut in range(0, len(talk), 7):
        assert without_ids(exchange(port, talk[:cut], talk[cut:])) == expected


# --- the error table

GOOD = encode_append(b"plain", [b"never"])
ERRORS = [
    ("CREATE of an existing stream", encode_create(b"plain"), "ERR_STREAM_EXISTS"),
    ("CREATE of an existing stream, other strategy", encode_create(b"plain", True), "ERR_STREAM_EXISTS"),
    ("CREATE, unknown option", encode_command(b"CREATE", b"new", [b"TTL", b"1"]), "ERR_BAD_FORMAT"),
    ("CREATE, odd options", b"*3\r\n$6\r\nCREATE\r\n$3\r\nnew\r\n*1\r\n$1\r\nx\r\n", "ERR_BAD_FORMAT"),
    ("CREATE, bad value", encode_command(b"CREATE", b"new", [b"TIMESTAMP_STRATEGY", b"x"]), "ERR_BAD_FORMAT"),
    ("CREATE, long name", encode_create(b"n" * 41), "ERR_BAD_FORMAT"),
    ("APPEND, unknown stream", encode_append(b"nobody", [b"a"]), "ERR_UNKNOWN_STREAM"),
    ("APPEND, unknown stream and a TIMESTAMP", encode_append(b"nobody", [b"a"], MessageId(1, 1)), "ERR_UNKNOWN_STREAM"),
    ("APPEND, unknown option", encode_command(b"APPEND", b"plain", [b"ID", b"1-1"], [b"a"]), "ERR_BAD_FORMAT"),
    ("APPEND, bad TIMESTAMP", encode_command(b"APPEND", b"client", [b"TIMESTAMP", b"1"], [b"a"]), "ERR_BAD_FORMAT"),
    ("APPEND, no records", encode_append(b"plain", []), "ERR_BAD_FORMAT"),
    ("APPEND, empty record", b"*4\r\n$6\r\nAPPEND\r\n$5\r\nplain\r\n*0\r\n*1\r\n$0\r\n\r\n", "ERR_BAD_FORMAT"),
    ("APPEND, TIMESTAMP missing", encode_append(b"client", [b"a"]), "ERR_BAD_FORMAT"),
    ("APPEND, TIMESTAMP not wanted", encode_append(b"plain", [b"a"], MessageId(1, 1)), "ERR_BAD_FORMAT"),
    ("APPEND, TIMESTAMP is the last", encode_append(b"client", [b"a"], MessageId(100, 5)), "ERR_BAD_FORMAT"),
    ("APPEND, TIMESTAMP before the last", encode_append(b"client", [b"a"], MessageId(99, 9)), "ERR_BAD_FORMAT"),
    (
        "APPEND, ids beyond 64 bits",
        encode_append(b"client", [b"a", b"b"], MessageId(2**64 - 1, 2**64 - 1)),
        "ERR_BAD_FORMAT",
    ),
    ("APPEND, record too large", encode_append(b"plain", [b"x" * (151 << 10)]), "ERR_LIMITS"),
    ("APPEND, records too large together", encode_append(b"plain", [b"x" * (101 << 10)] * 2), "ERR_LIMITS"),
    ("APPEND, too many records", encode_append(b"plain", [b"x"] * 21), "ERR_LIMITS"),
    ("APPEND, too large for nobody", encode_append(b"nobody", [b"x" * (151 << 10)]), "ERR_LIMITS"),
    ("APPEND to a closed stream", encode_append(b"closed", [b"a"]), "ERR_CLOSED"),
    ("READ, unknown stream", encode_read(b"nobody"), "ERR_UNKNOWN_STREAM"),
    ("READ, unknown option", encode_command(b"READ", b"plain", [b"LIMIT", b"1"]), "ERR_BAD_FORMAT"),
    ("READ, COUNT of words", encode_command(b"READ", b"plain", [b"COUNT", b"ten"]), "ERR_BAD_FORMAT"),
    ("READ, COUNT 0", encode_command(b"READ", b"plain", [b"COUNT", b"0"]), "ERR_BAD_FORMAT"),
    ("READ, BLOCK of words", encode_command(b"READ", b"plain", [b"BLOCK", b"long"]), "ERR_BAD_FORMAT"),
    ("READ, bad MIN_TIMESTAMP", encode_command(b"READ", b"plain", [b"MIN_TIMESTAMP", b"$"]), "ERR_BAD_FORMAT"),
    ("READ, COUNT too large", encode_read(b"plain", 51), "ERR_LIMITS"),
    ("READ, COUNT too large of nobody", encode_read(b"nobody", 51), "ERR_LIMITS"),
    ("READ, BLOCK too large", encode_read(b"plain", block_ms=5001), "ERR_LIMITS"),
    ("TRIM, unknown stream", encode_trim(b"nobody", MessageId(1, 1)), "ERR_UNKNOWN_STREAM"),
    ("TRIM, no UNTIL", encode_command(b"TRIM", b"plain", []), "ERR_BAD_FORMAT"),
    ("TRIM, bad UNTIL", encode_command(b"TRIM", b"plain", [b"UNTIL", b"x"]), "ERR_BAD_FORMAT"),
    ("DELETE, unknown stream", encode_delete(b"nobody"), "ERR_UNKNOWN_STREAM"),
    ("DELETE, an option", encode_command(b"DELETE", b"plain", [b"FORCE", b"1"]), "ERR_BAD_FORMAT"),
    ("DELETE of two elements", encode_command(b"DELETE", b"plain"), "ERR_BAD_FORMAT"),
    ("no such command", encode_command(b"XADD", b"plain", []), "ERR_BAD_FORMAT"),
    ("an empty command", b"*0\r\n", "ERR_BAD_FORMAT"),
    ("LF only", encode_read(b"plain").replace(b"\r\n", b"\n"), "ERR_BAD_FORMAT"),
    ("a null", b"*3\r\n$4\r\nREAD\r\n$-1\r\n*0\r\n", "ERR_BAD_FORMAT"),
    ("an inline command", b"READ plain\r\n", "ERR_BAD_FORMAT"),
    ("HTTP", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n*0\r\n", "ERR_BAD_FORMAT"),
]


@pytest.fixture(scope="module")
def prepared(running) -> ServerProcess:
    with Wire(running.s3p_port) as wire:
        wire.create(b"plain")
        wire.append(b"plain", b"one", b"two")
        wire.create(b"noise")
        wire.create(b"client", client_ids=True)
        wire.append(b"client", b"one", b"two", first_id=MessageId(100, 4))
        wire.create(b"closed")
        assert ask_http(running.port, "POST", "/v1/stream/_s3p/closed", stream_closed="true")[0] == 204
    return running


@pytest.mark.parametrize(("what", "bad", "code"), ERRORS, ids=[row[0] for row in ERRORS])
def test_an_error_is_delivered_after_what_came_before_and_nothing_after_it_happens(prepared, what, bad, code):
    port = prepared.s3p_port
    with Wire(port) as wire:
        before = wire.read(b"plain")
        wire.send(encode_read(b"plain", 1) + encode_append(b"noise", [b"x"]) + encode_read(b"plain", 1))
        wire.send(encode_append(b"noise", [b"x"]) + bad + GOOD + encode_delete(b"plain"))
        assert records_of(wire.reply()) == before[:1]
        assert isinstance(wire.reply(), bytes)
        assert records_of(wire.reply()) == before[:1]
        assert isinstance(wire.reply(), bytes)
        error = wire.reply()
        assert isinstance(error, ErrorReply), error
        assert error.code == code
        assert error.message
        assert wire.rest() == b"", "the connection must be closed after an error"
    with Wire(port) as wire:
        assert wire.read(b"plain") == before


def test_an_error_reaches_a_client_that_goes_on_sending(prepared):
    """Closing with bytes unread would reset the connection and could destroy the error."""
    with Wire(prepared.s3p_port) as wire:
        wire.send(encode_delete(b"nobody"))
        for _ in range(50):
            try:
                wire.send(GOOD * 1000)
            except OSError:
                break
        error = wire.reply()
        assert isinstance(error, ErrorReply)
        assert error.code == "ERR_UNKNOWN_STREAM"


def test_messages_show_binary_names_escaped(wire):
    reply = wire.ask(b"READ", b"\x00\r\n\xffx", [])
    assert reply == ErrorReply("ERR_UNKNOWN_STREAM", r"there is no stream \x00\x0d\x0a\xffx; CREATE it first")
