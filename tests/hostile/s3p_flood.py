"""Sends hostile S3P by the hundred thousand, and reads every reply: `python -m tests.hostile.s3p_flood PORT KIND SEED
COUNT`. What is sent follows from the seed. It prints how many replies of each kind came, or what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable

from millstream.model.errors import MillstreamError
from millstream.model.ids import parse_id
from millstream.protocol.s3p.commands import AppendRecords, Limits, ReadRecords, S3pCommand
from millstream.protocol.s3p.decoder import Decoder
from millstream.protocol.s3p.encoder import encode_append, encode_create, encode_read
from millstream.protocol.s3p.reply_decoder import ErrorReply, Ok, Reply, ReplyDecoder

from . import wire
from .flood import Failed
from .s3p_inputs import BLOCK_MS_MAX, mutated_talk, odd_command

LIMITS = Limits(append_bytes_max=200 << 10, record_bytes_max=150 << 10, count_default=10, count_max=50, block_ms_max=20)
TOGETHER = 10  # commands that are pipelined
CROWD = 120  # connections at a time that have no manners
QUIET = b"silence"  # a stream that nobody appends to
NOT_TAKEN_BYTES_MAX = 32 << 20  # what sockets and buffers hold on the way, and some
LARGE = b"abundance"  # a stream whose READs do not fit into what a socket holds
LAST_WORDS = b"+END\r\n"
# Unavailable is what a server says about itself: no input may bring it about.
REFUSALS = ("ERR_BAD_FORMAT", "ERR_LIMITS", "ERR_UNKNOWN_STREAM", "ERR_STREAM_EXISTS", "ERR_CLOSED")


def talk(port: int, pieces: list[bytes]) -> list[Reply]:
    """Send, say no more, and understand everything that comes back up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), wire.WAIT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        decoder, replies = ReplyDecoder(), list[Reply]()
        while data := connection.recv(1 << 18):
            decoder.feed(data)
            while (reply := decoder.next_reply()) is not None:
                replies.append(reply)
    decoder.feed(LAST_WORDS)  # half a reply would swallow them
    if decoder.next_reply() != Ok("END"):
        raise AssertionError(f"the last reply is cut off: {replies[-2:]}")
    return replies


def understood(data: bytes) -> tuple[list[S3pCommand], bool]:
    """The commands in front of whatever is wrong, and whether something is."""
    decoder, commands = Decoder(LIMITS), list[S3pCommand]()
    decoder.feed(data)
    try:
        while (command := decoder.next_command()) is not None:
            commands.append(command)
    except MillstreamError:
        return commands, True
    return commands, False


def check_replies(commands: list[S3pCommand], replies: list[Reply], is_broken: bool, tally: Counter[str]) -> None:
    """One reply for each command, of its kind and in order, up to the first error, which is the last word."""
    for reply, command in zip(replies, [*commands, None], strict=False):
        if isinstance(reply, ErrorReply):
            assert reply is replies[-1], f"{replies[-1]} came after {reply}"
            assert reply.code in REFUSALS, reply
            assert re.fullmatch(r"[ -~]{5,}", reply.message), reply
            tally[reply.code] += 1
            return
        check_reply(command, reply)
        tally["ok"] += 1
    assert len(replies) == len(commands), f"{len(replies)} replies to {len(commands)} commands"
    assert not is_broken, "what is not S3P got no error"


def check_reply(command: S3pCommand | None, reply: Reply) -> None:
    if isinstance(command, ReadRecords):
        assert isinstance(reply, list), reply
        assert len(reply) <= 2 * command.count, f"{len(reply) // 2} records instead of {command.count}"
        ids = [parse_id(text) for text in reply[::2]]
        assert all(earlier < later for earlier, later in zip([command.after, *ids], ids, strict=False)), ids
    elif isinstance(command, AppendRecords):
        assert isinstance(reply, bytes), reply
        parse_id(reply)
    else:
        assert reply == Ok("OK"), reply


def flood_frames(port: int, chance: random.Random, count: int, tally: Counter[str]) -> None:
    """Damaged commands, each lot on a connection of its own and cut anywhere."""
    for number in range(count):
        data = mutated_talk(chance)
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 1, 3))))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        began = time.monotonic()
        try:
            check_replies(*_arranged(understood(data), talk(port, pieces)), tally)
            took_s = time.monotonic() - began
            assert took_s < wire.WAIT_S, f"it took {took_s:.1f} s"
        except (AssertionError, OSError, ValueError, MillstreamError) as error:
            raise Failed(f"input {number}, {data[:3000]!r}: {error!r}") from error


def flood_commands(port: int, chance: random.Random, count: int, tally: Counter[str]) -> None:
    """Odd commands in pipelines. What is behind a refused one is not executed, and goes with the next."""
    waiting: deque[bytes] = deque()
    made = 0
    while made < count or waiting:
        while made < count and len(waiting) < TOGETHER:
            waiting.append(odd_command(chance))
            made += 1
        data = b"".join(waiting)
        try:
            replies = talk(port, [data])
            check_replies(*_arranged(understood(data), replies), tally)
            assert replies, "nothing came back"
        except (AssertionError, OSError, ValueError, MillstreamError) as error:
            raise Failed(f"some of the first {made} inputs, {data[:3000]!r}: {error!r}") from error
        for _ in replies:
            waiting.popleft()


def _arranged(heard: tuple[list[S3pCommand], bool], replies: list[Reply]) -> tuple[list[S3pCommand], list[Reply], bool]:
    return heard[0], replies, heard[1]


# --- connections without manners: each must end in time, whatever it does or does not do

Manners = Callable[[random.Random, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def flood_manners(port: int, chance: random.Random, count: int, tally: Counter[str]) -> None:
    asyncio.run(_crowds(port, chance, count, tally))


async def _crowds(port: int, chance: random.Random, count: int, tally: Counter[str]) -> None:
    for first in range(0, count, CROWD):
        async with asyncio.TaskGroup() as group:
            for number in range(first, min(first + CROWD, count)):
                manners = MANNERS[number % len(MANNERS)]
                group.create_task(_behave(port, manners, random.Random(chance.random()), tally))


async def _behave(port: int, manners: Manners, chance: random.Random, tally: Counter[str]) -> None:
    try:
        async with asyncio.timeout(wire.WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
            try:
                with contextlib.suppress(ConnectionError):  # it may end one that does so as rudely
                    await manners(chance, reader, writer)
            finally:
                writer.transport.abort()
    except TimeoutError as error:
        raise Failed(f"a connection that {manners.__name__} was not ended in {wire.WAIT_S} s") from error
    tally[manners.__name__] += 1


async def _the_end(reader: asyncio.StreamReader) -> int:
    """Read up to the end of the connection; how much came."""
    size = 0
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            size += len(data)
    return size


async def stalls(chance: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Half a command, and not a word more."""
    data = encode_append(b"fuzz-a", [chance.randbytes(chance.choice((10, 1000, 40_000)))])
    writer.write(data[: chance.randrange(len(data))])
    await _the_end(reader)


async def dribbles(chance: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A byte now and then of a command that would take hours."""
    ending = asyncio.create_task(_the_end(reader))
    for byte in encode_append(b"fuzz-a", [b"x" * 10_000]):
        writer.write(bytes([byte]))
        await asyncio.wait([ending], timeout=chance.uniform(0.0, 0.2))
        if ending.done():
            break
    await ending


async def never_reads(chance: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Asks for megabytes and does not take them, until it should have been dropped."""
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2.0):
            for _ in range(200):
                writer.write(encode_read(LARGE, 50) * 10)
                await writer.drain()
            await asyncio.sleep(2.0)
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert await _the_end(reader) < NOT_TAKEN_BYTES_MAX, "the server waited for a client that took nothing"


async def leaves(chance: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Gone without a word, in the middle of anything: a command, a blocked READ, a large APPEND."""
    data = encode_create(b"fuzz-b") + encode_append(b"fuzz-a", [b"x" * 100_000]) + encode_read(QUIET, 1, BLOCK_MS_MAX)
    writer.write(data[: chance.randrange(len(data) + 1)])
    await asyncio.sleep(chance.choice((0.0, 0.001, 0.05)))
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def goes_on(chance: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Does not care about an error, and sends on and on."""
    writer.write(b"PING\r\n")
    while not writer.transport.is_closing():
        writer.write(encode_append(b"fuzz-a", [b"not listened to"]) * chance.randrange(1, 50))
        await writer.drain()
        await asyncio.sleep(0.02)


async def waits(chance: random.Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """READs that block, one behind the other, and an end that is said long before."""
    count = chance.randrange(1, 20)
    writer.write(encode_read(QUIET, 1, BLOCK_MS_MAX) * count)
    writer.write_eof()
    assert await reader.read(-1) == b"*0\r\n" * count


MANNERS: tuple[Manners, ...] = (stalls, dribbles, never_reads, leaves, goes_on, waits)
FLOODS: dict[str, Callable[[int, random.Random, int, Counter[str]], None]] = {
    "frames": flood_frames,
    "commands": flood_commands,
    "manners": flood_manners,
}


def flood(port: int, kind: str, seed: int, count: int) -> Counter[str]:
    tally = Counter[str]()
    try:
        FLOODS[kind](port, random.Random(f"s3p {kind} {seed}"), count, tally)
    except (Failed, ExceptionGroup) as error:
        error.add_note(f"{kind} of seed {seed}")
        raise
    return tally


if __name__ == "__main__":
    wire.WAIT_S = 30.0  # beside other work; what takes longer hangs
    print(json.dumps(flood(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
