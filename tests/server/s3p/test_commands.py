"""S3P against a real server: appending, reading, blocking, trimming, and HTTP beside it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from tests.conftest import ServerProcess
from tests.server.s3p.wire import Wire, ask_http, exchange, records_of, without_ids

from millstream.model.ids import MessageId
from millstream.protocol.s3p.encoder import (
    encode_append,
    encode_create,
    encode_delete,
    encode_read,
)
from millstream.protocol.s3p.reply_decoder import ErrorReply, Ok

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


def test_block_waits_for_an_id_that_lies_ahead(wire, running, name):
    """What comes meanwhile and lies before it is not for this reader."""
    wire.create(name, client_ids=True)
    with Wire(running.s3p_port) as writer:
        wire.send(encode_read(name, block_ms=5000, after=MessageId(20, 1)))
        time.sleep(0.1)
        writer.append(name, b"before", first_id=MessageId(10, 0))
        writer.append(name, b"before", b"at", b"behind", first_id=MessageId(20, 0))
        assert records_of(wire.reply()) == [(MessageId(20, 2), b"behind")]
        wire.send(encode_read(name, block_ms=300, after=MessageId(99, 0)))
        time.sleep(0.1)
        writer.append(name, b"before", first_id=MessageId(30, 0))
        assert wire.reply() == []


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
