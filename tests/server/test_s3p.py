"""S3P against a real server: the specification's examples, the error table, pipelining, blocking, HTTP beside it."""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from tests.conftest import ServerProcess
from tests.protocol.s3p import examples
from tests.server.s3p_wire import Wire, exchange, records_of, without_ids

from millstream.model.ids import MessageId
from millstream.protocol.s3p.encoder import (
    encode_append,
    encode_command,
    encode_create,
    encode_delete,
    encode_read,
    encode_trim,
)
from millstream.protocol.s3p.reply_decoder import ErrorReply, Ok

LIMITS = {
    "s3p.name_bytes_max": 40,
    "s3p.append_records_max": 20,
    "s3p.append_bytes_max": "200KiB",
    "s3p.record_bytes_max": "150KiB",
    "s3p.count_default": 10,
    "s3p.count_max": 50,
    "s3p.block_ms_max": 5000,
    "s3p.read_bytes_max": "256KiB",
    "part_bytes": "64KiB",
}


@pytest.fixture(scope="module")
def running(module_server) -> ServerProcess:
    return module_server(LIMITS)


@pytest.fixture
def wire(running):
    with Wire(running.s3p_port) as wire:
        yield wire


@pytest.fixture
def name(request) -> bytes:
    """A stream name of the test's own."""
    return f"s{abs(hash(request.node.name)):x}"[:30].encode()


def ask_http(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


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


# --- appending


def test_the_ids_of_a_batch_are_consecutive(wire, name):
    wire.create(name)
    last = wire.append(name, b"a", b"b", b"c")
    assert wire.read(name) == [
        (MessageId(last.ms, last.seq - 2), b"a"),
        (MessageId(last.ms, last.seq - 1), b"b"),
        (last, b"c"),
    ]


def test_a_client_s_id_names_the_first_record(wire, name):
    wire.create(name, client_ids=True)
    assert wire.append(name, b"a", b"b", first_id=MessageId(7, 3)) == MessageId(7, 4)
    assert wire.ask(b"APPEND", name, [b"timestamp", b"0007-00005"], [b"c"]) == b"7-5"
    assert wire.append(name, b"d", first_id=MessageId(2**64 - 1, 2**64 - 1)) == MessageId(2**64 - 1, 2**64 - 1)
    assert [id_ for id_, _ in wire.read(name)] == [(7, 3), (7, 4), (7, 5), (2**64 - 1, 2**64 - 1)]


def test_a_large_append_is_one_too(wire, name):
    """Over `part_bytes` it travels in parts, and stays atomic and in order."""
    wire.create(name)
    records = [bytes([65 + number]) * 60_000 for number in range(3)]
    wire.send(encode_append(name, [b"before"]) + encode_append(name, records) + encode_append(name, [b"after"]))
    ids = [wire.reply() for _ in range(3)]
    assert all(isinstance(id_, bytes) for id_ in ids), ids
    assert [data for _, data in wire.read(name)] == [b"before", *records, b"after"]
    wire.send(encode_append(b"nobody", records))
    error = wire.reply()
    assert isinstance(error, ErrorReply)
    assert error.code == "ERR_UNKNOWN_STREAM"


def test_everything_pipelined_is_answered_in_order(wire, name):
    wire.send(encode_create(name))
    wire.send(*[encode_append(name, [b"%d" % number]) + encode_read(name, 50) for number in range(100)])
    assert wire.reply() == Ok("OK")
    ids = []
    for number in range(100):
        ids.append(wire.reply())
        found = records_of(wire.reply())
        assert [data for _, data in found] == [b"%d" % one for one in range(min(number + 1, 50))]
    assert len(set(ids)) == 100


def test_pipelined_appends_share_commits(server):
    running = server()
    with Wire(running.s3p_port) as wire:
        wire.create(b"x")
        before = commits(running)
        wire.send(encode_append(b"x", [b"y" * 100]) * 2000)
        for _ in range(2000):
            wire.reply()
        assert commits(running) - before < 200


def commits(running: ServerProcess) -> int:
    text = ask_http(running.port, "GET", "/metrics")[2].decode()
    return int(float(text.partition("\nmillstream_journal_commits_total ")[2].split()[0]))


def test_replies_that_nobody_takes_hold_up_only_their_connection(wire, running, name):
    """A client that sends and never reads: the server stops taking its commands, and goes on once it reads."""
    wire.create(name)
    wire.append(name, *[b"x" * 10_000] * 10)
    reads = 300
    wire.send(encode_read(name) * reads)
    with Wire(running.s3p_port) as other:
        assert len(other.read(name)) == 10
    for _ in range(reads):
        assert len(records_of(wire.reply())) == 10


# --- reading


def test_read_has_a_count_and_a_byte_budget(wire, name):
    wire.create(name)
    for _ in range(3):
        wire.append(name, *[b"x"] * 20)
    assert len(wire.read(name)) == 10  # the default
    assert len(wire.read(name, 50)) == 50
    large = name + b"L"
    wire.create(large)
    for _ in range(3):
        wire.append(large, b"y" * 100_000)
    assert len(wire.read(large)) == 2  # 256 KiB


def test_a_record_over_the_budget_comes_alone(wire, running, name):
    wire.create(name)
    path = f"/v1/stream/_s3p/{name.decode()}"
    kind = {"content_type": "application/octet-stream"}
    assert ask_http(running.port, "POST", path, b"z" * 400_000, **kind)[0] == 204
    assert ask_http(running.port, "POST", path, b"small", **kind)[0] == 204
    (first,) = wire.read(name)
    assert len(first[1]) == 400_000
    assert [data for _, data in wire.read(name, after=first[0])] == [b"small"]


def test_reading_on_from_every_id(wire, name):
    wire.create(name)
    for number in range(12):
        wire.append(name, *[b"%d-%d" % (number, part) for part in range(number % 3 + 1)])
    everything = wire.read(name, 50)
    assert len(everything) == 24
    for at, (id_, _) in enumerate(everything):
        assert wire.read(name, 50, after=id_) == everything[at + 1 :]
    assert wire.read(name, 50, after=MessageId(0, 0)) == everything
    assert wire.read(name, after=MessageId(2**64 - 1, 0)) == []
    between = MessageId(everything[0][0].ms - 1, 2**64 - 1)
    assert wire.read(name, 50, after=between) == everything


@pytest.mark.parametrize("client_ids", [False, True])
def test_reading_from_segments_and_memory_alike(server, client_ids):
    """Small blocks, cold and hot: every id leads to the same records, also after a restart."""
    running = server({"checkpoint_age_s": 0.05, "block_bytes": "1KiB", "s3p.count_default": 1000})
    everything: list[tuple[MessageId, bytes]] = []
    with Wire(running.s3p_port) as wire:
        wire.create(b"x", client_ids)
        for number in range(60):
            records = [b"%d:%d " % (number, part) + b"." * (number * 7 % 90) for part in range(number % 4 + 1)]
            first = MessageId(number * 10 + 1, number) if client_ids else None
            last = wire.append(b"x", *records, first_id=first)
            everything += [
                (MessageId(last.ms, last.seq - len(records) + 1 + part), data) for part, data in enumerate(records)
            ]
            if number in (20, 40):
                wait_for_checkpoint(running)
        for _ in range(2):
            assert wire.read(b"x") == everything
            for at in range(0, len(everything), 3):
                assert wire.read(b"x", 1000, after=everything[at][0]) == everything[at + 1 :]
                assert wire.read(b"x", 2, after=everything[at][0]) == everything[at + 1 : at + 3]
                between = MessageId(everything[at][0].ms, everything[at][0].seq + 1)
                expected = [record for record in everything if record[0] > between][:5]
                assert wire.read(b"x", 5, after=between) == expected
            wait_for_checkpoint(running)
    running.restart()
    with Wire(running.s3p_port) as wire:
        assert wire.read(b"x") == everything
        for at in (0, 17, 50, len(everything) - 1):
            assert wire.read(b"x", after=everything[at][0]) == everything[at + 1 :]


def wait_for_checkpoint(running: ServerProcess) -> None:
    give_up = time.monotonic() + 15
    while True:
        text = ask_http(running.port, "GET", "/metrics")[2].decode()
        journal = text.partition("\nmillstream_journal_sequence ")[2].split()[0]
        catalog = text.partition("\nmillstream_catalog_sequence ")[2].split()[0]
        if journal == catalog:
            return
        assert time.monotonic() < give_up, "there was no checkpoint"
        time.sleep(0.02)


# --- blocking


def test_block_waits_and_returns_at_the_first_record(wire, running, name):
    wire.create(name)
    last = wire.append(name, b"old")
    wire.send(encode_read(name, block_ms=5000, after=last))
    time.sleep(0.2)
    with Wire(running.s3p_port) as other:
        other.append(name, b"new", b"newer")
    began = time.monotonic()
    assert [data for _, data in records_of(wire.reply())] == [b"new", b"newer"]
    assert time.monotonic() - began < 3


def test_block_ends_empty_when_its_time_is_up(wire, name):
    wire.create(name)
    began = time.monotonic()
    assert wire.read(name, block_ms=300) == []
    assert 0.25 < time.monotonic() - began < 3


def test_block_does_not_wait_where_there_is_something(wire, name):
    wire.create(name)
    wire.append(name, b"old")
    began = time.monotonic()
    assert len(wire.read(name, block_ms=5000)) == 1
    assert time.monotonic() - began < 3


def test_a_blocked_read_holds_back_what_follows_it(wire, running, name):
    wire.create(name)
    wire.send(encode_read(name, block_ms=400) + encode_append(name, [b"mine"]) + encode_read(name))
    assert wire.reply() == []
    assert isinstance(wire.reply(), bytes)
    assert [data for _, data in records_of(wire.reply())] == [b"mine"]


def test_a_blocked_read_ends_when_the_stream_is_deleted(wire, running, name):
    wire.create(name)
    wire.send(encode_read(name, block_ms=5000) + encode_create(name))
    time.sleep(0.1)
    with Wire(running.s3p_port) as other:
        assert other.ask(b"DELETE", name, []) == Ok("OK")
    error = wire.reply(3)
    assert isinstance(error, ErrorReply)
    assert error.code == "ERR_UNKNOWN_STREAM"
    assert wire.rest() == b""
    with Wire(running.s3p_port) as other:
        reply = other.ask(b"READ", name, [])
        assert isinstance(reply, ErrorReply), "what followed the error must not be executed"


def test_a_blocked_reader_that_leaves_is_forgotten(running, name):
    wire = Wire(running.s3p_port)
    wire.create(name)
    wire.send(encode_read(name, block_ms=5000))
    time.sleep(0.1)
    wire.reset()
    give_up = time.monotonic() + 3
    while b"\nmillstream_live_readers 0.0" not in ask_http(running.port, "GET", "/metrics")[2]:
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_half_closed_clients_get_their_replies(running, name):
    talk = encode_create(name) + encode_read(name, block_ms=200) + encode_append(name, [b"x"]) * 3
    assert without_ids(exchange(running.s3p_port, talk)) == b"+OK\r\n*0\r\n" + b"$15\r\n1700000001234-0\r\n" * 3


# --- trimming and deleting


def test_trim_lets_older_records_go_and_keeps_the_last_id(wire, running, name):
    wire.create(name, client_ids=True)
    wire.append(name, b"a", b"b", b"c", first_id=MessageId(10, 0))
    wire.append(name, b"d", first_id=MessageId(20, 0))
    assert wire.ask(b"TRIM", name, [b"UNTIL", b"10-2"]) == Ok("OK")
    assert [data for _, data in wire.read(name)] == [b"c", b"d"]
    assert wire.ask(b"TRIM", name, [b"UNTIL", b"10-1"]) == Ok("OK")  # gone already
    assert [data for _, data in wire.read(name, after=MessageId(5, 0))] == [b"c", b"d"]
    assert wire.ask(b"TRIM", name, [b"UNTIL", b"99-0"]) == Ok("OK")
    assert wire.read(name) == []
    with Wire(running.s3p_port) as other:
        reply = other.ask(b"APPEND", name, [b"TIMESTAMP", b"20-0"], [b"again"])
        assert isinstance(reply, ErrorReply), "the last id must survive a TRIM"
        assert reply.code == "ERR_BAD_FORMAT"
    assert wire.append(name, b"e", first_id=MessageId(20, 1)) == MessageId(20, 1)
    assert wire.read(name) == [(MessageId(20, 1), b"e")]


def test_trim_and_last_id_survive_a_restart(server):
    running = server({"checkpoint_age_s": 0.05, "block_bytes": "1KiB"})
    with Wire(running.s3p_port) as wire:
        wire.create(b"cold", client_ids=True)
        wire.create(b"hot")
        for number in range(1, 50):
            wire.append(b"cold", b"%d" % number * 50, first_id=MessageId(number, 0))
        wait_for_checkpoint(running)
        assert wire.ask(b"TRIM", b"cold", [b"UNTIL", b"30-0"]) == Ok("OK")
        assert wire.read(b"cold", 1)[0][0] == MessageId(30, 0)
        last = wire.append(b"hot", b"only")
        assert wire.ask(b"TRIM", b"hot", [b"UNTIL", f"{last.ms}-{last.seq + 1}".encode()]) == Ok("OK")
    running.kill()
    running.start()
    with Wire(running.s3p_port) as wire:
        assert [id_.ms for id_, _ in wire.read(b"cold")] == list(range(30, 50))
        assert wire.read(b"hot") == []
        assert wire.append(b"hot", b"next") > last


def test_a_deleted_stream_can_be_created_again(wire, name):
    wire.create(name)
    wire.append(name, b"old")
    wire.send(encode_delete(name) + encode_create(name, True) + encode_read(name))
    assert [wire.reply() for _ in range(3)] == [Ok("OK"), Ok("OK"), []]


# --- HTTP beside it


def test_http_and_s3p_see_the_same_stream(wire, running, name):
    wire.create(name)
    path = f"/v1/stream/_s3p/{name.decode()}"
    wire.append(name, b"over s3p,")
    assert ask_http(running.port, "POST", path, b"over http,", content_type="application/octet-stream")[0] == 204
    wire.append(name, b"and", b"again")
    assert ask_http(running.port, "GET", path + "?offset=-1")[2] == b"over s3p,over http,andagain"
    found = wire.read(name)
    assert [data for _, data in found] == [b"over s3p,", b"over http,", b"and", b"again"]
    assert all(one[0] < other[0] for one, other in pairwise(found))
    assert ask_http(running.port, "DELETE", path)[0] == 204
    assert isinstance(wire.ask(b"READ", name, []), ErrorReply)


def test_any_name_is_reached_over_http_with_one_more_encoding(wire, running):
    for name, path in ((b"a/b c", "a%252Fb%2520c"), (b"streams", "%2573treams"), (b"..", "%252E%252E")):
        wire.create(name)
        wire.append(name, b"here")
        assert ask_http(running.port, "GET", f"/v1/stream/_s3p/{path}?offset=-1")[2] == b"here"
    listing = json.loads(ask_http(running.port, "GET", "/_s3p/streams?prefix=a%252F")[2])
    assert "a%2Fb%20c" in json.dumps(listing)


def test_a_blocked_read_is_woken_over_http_and_a_long_poll_over_s3p(wire, running, name):
    wire.create(name)
    path = f"/v1/stream/_s3p/{name.decode()}"
    wire.send(encode_read(name, block_ms=5000))
    with ThreadPoolExecutor() as pool:
        time.sleep(0.1)
        ask_http(running.port, "POST", path, b"hello", content_type="application/octet-stream")
        assert [data for _, data in records_of(wire.reply(3))] == [b"hello"]
        poll = pool.submit(ask_http, running.port, "GET", f"{path}?offset=5&live=long-poll&timeout_ms=5000")
        time.sleep(0.1)
        wire.append(name, b"back")
        assert poll.result(5)[2] == b"back"


def test_http_cannot_append_to_a_stream_with_client_ids(wire, running, name):
    wire.create(name, client_ids=True)
    status, _, body = ask_http(
        running.port, "POST", f"/v1/stream/_s3p/{name.decode()}", b"x", content_type="application/octet-stream"
    )
    assert status == 409
    assert json.loads(body)["error"]["code"] == "ids_are_the_clients"
    assert wire.read(name) == []
    assert ask_http(running.port, "POST", f"/v1/stream/_s3p/{name.decode()}", stream_closed="true")[0] == 204


def test_records_of_a_json_stream_are_checked_and_not_split(server):
    running = server({"s3p.buckets": True})
    with Wire(running.s3p_port) as wire:
        assert ask_http(running.port, "PUT", "/v1/stream/shop/orders", content_type="application/json")[0] == 201
        wire.append(b"shop/orders", b'{"a": 1}', b"[1,2]", b' "x" ')
        assert ask_http(running.port, "GET", "/v1/stream/shop/orders")[2] == b'[{"a": 1},[1,2], "x" ]'
        ask_http(running.port, "POST", "/v1/stream/shop/orders", b"[3,4]", content_type="application/json")
        assert [data for _, data in wire.read(b"shop/orders")] == [b'{"a": 1}', b"[1,2]", b' "x" ', b"3", b"4"]
        reply = wire.ask(b"APPEND", b"shop/orders", [], [b"5", b"{nonsense"])
        assert isinstance(reply, ErrorReply)
        assert reply.code == "ERR_BAD_FORMAT"
        assert "record 2" in reply.message
    with Wire(running.s3p_port) as wire:
        assert len(wire.read(b"shop/orders")) == 5, "all or nothing"
        wire.create(b"shop/new")
        assert ask_http(running.port, "HEAD", "/v1/stream/shop/new")[1]["content-type"] == "application/octet-stream"


def test_the_metrics_count_every_command_once(server):
    running = server()
    with Wire(running.s3p_port) as wire:
        wire.create(b"x")
        wire.send((encode_append(b"x", [b"y"]) + encode_read(b"x")) * 20 + encode_delete(b"nobody"))
        for _ in range(41):
            last = wire.reply()
        assert isinstance(last, ErrorReply)
        text = ask_http(running.port, "GET", "/metrics")[2].decode()
        for command, count in (("CREATE", 1), ("APPEND", 20), ("READ", 20), ("DELETE", 1)):
            assert f'millstream_s3p_commands_total{{command="{command}"}} {count}.0' in text
        assert 'millstream_s3p_errors_total{code="ERR_UNKNOWN_STREAM"} 1.0' in text
        assert "millstream_s3p_connections " in text
