"""S3P that no client would send, made from what clients do send."""

from __future__ import annotations

import random

from tests.hostile.mutations import mutated

from millstream.model.ids import MessageId
from millstream.protocol.s3p.encoder import (
    encode_append,
    encode_command,
    encode_create,
    encode_delete,
    encode_read,
    encode_trim,
)

BLOCK_MS_MAX = 20
LARGE_BYTES = 100_000  # larger than a part of the journal
CORPUS = [
    encode_create(b"fuzz-b"),
    encode_create(b"fuzz-client", client_ids=True),
    encode_append(b"fuzz-a", [b"one", b"two\r\n", b"\x00\xff"]),
    encode_append(b"fuzz-a", [b"$5\r\nhello\r\n"]) * 3,
    encode_append(b"fuzz-client", [b"mine"], MessageId(1_700_000_000_000, 7)),
    encode_append(b"fuzz/json", [b'{"a":1}', b"[2]"]),
    encode_append(b"fuzz-a", [b"x" * LARGE_BYTES]),
    encode_read(b"fuzz-a"),
    encode_read(b"fuzz-a", 3, BLOCK_MS_MAX, MessageId(1_700_000_000_000, 0)),
    encode_read(b"fuzz-quiet", block_ms=5),
    encode_trim(b"fuzz-a", MessageId(1_700_000_000_001, 0)),
    encode_delete(b"fuzz-b"),
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"PING\r\n",
    b"*1\r\n$4\r\nPING\r\n",
]
TOKENS = [
    *(bytes([byte]) for byte in (0, 9, 10, 13, 32, 36, 42, 43, 45, 48, 57, 58, 127, 255)),
    *(b"\r\n", b"\n", b"\r\r\n", b"*0\r\n", b"*1\r\n", b"*3\r\n", b"*4\r\n", b"*-1\r\n", b"*65\r\n", b"*1001\r\n"),
    *(b"*9999999999\r\n", b"*99999999999\r\n", b"*00\r\n", b"*+1\r\n", b"* 1\r\n", b"*1e3\r\n", b"*" * 300),
    *(b"$0\r\n", b"$1\r\n", b"$4\r\n", b"$-1\r\n", b"$01\r\n", b"$9999999999\r\n", b"$99999999999\r\n", b"$\r\n"),
    *(b"$100000\r\n", b"$1048577\r\n", b"+OK\r\n", b"-ERR no\r\n", b":1\r\n", b"_\r\n", b"%1\r\n", b"$" * 300),
    *(b"READ", b"APPEND", b"append", b"TIMESTAMP", b"UNTIL", b"BLOCK", b"9" * 400, b"18446744073709551616-0"),
]


def mutated_talk(chance: random.Random) -> bytes:
    """Some commands one after the other, damaged here and there; now and then nothing but noise."""
    if chance.random() < 0.03:
        return chance.randbytes(chance.randrange(1, 400))
    data = b"".join(chance.choice(CORPUS) for _ in range(chance.choice((1, 1, 2, 4))))
    return mutated(chance, data, TOKENS)


# --- whole frames with odd values in them: these get to the rules behind the decoder

_NAMES = [
    *(b"fuzz-a", b"fuzz-b", b"fuzz-client", b"fuzz-quiet", b"fuzz/json", b"fuzz/json", b"fuzz/closed", b"fuzz/text"),
    *(b"nobody", b"..", b".", b"streams", b"__ds", b"_s3p/x", b"a/../b", b"//", b"/", b"a/", b"%2e%2e", b"%00", b"\0"),
    *(b"\xff\xfe", b"\xed\xa0\x80", "é".encode(), b"a b", b"x" * 256, b"x" * 257, b"\xff" * 256, b"y/" * 100 + b"z"),
]
_NUMBERS = [
    *(b"0", b"1", b"2", b"20", b"21", b"50", b"51", b"-1", b"+1", b" 1", b"01", b"1.0", b"1e3", b"0x1", "٣".encode()),
    *(b"18446744073709551615", b"18446744073709551616", b"9" * 20, b"9" * 21, b"9" * 128, b"9" * 129, b"NaN", b"\0"),
]
_OPTIONS = (
    b"TIMESTAMP_STRATEGY",
    b"TIMESTAMP",
    b"COUNT",
    b"count",
    b"BLOCK",
    b"MIN_TIMESTAMP",
    b"UNTIL",
    b"MAX",
    b"\xff",
)
_RECORDS = [
    b"text",
    b"{}",
    b'{"a":[1,2]}',
    b"[" * 999,
    b"{",
    b'"\\ud800"',
    b"1e999",
    b"\r\n",
    b"*1\r\n",
    b"\xff",
    b"x" * 3000,
]


def odd_command(chance: random.Random) -> bytes:
    """A command whose frame is right whatever is in it."""
    command = chance.choice((b"CREATE", b"APPEND", b"APPEND", b"APPEND", b"READ", b"READ", b"READ", b"TRIM"))
    if chance.random() < 0.04:
        command = chance.choice((b"DELETE", b"append", b"PING", b"XADD", b"R", b"CREATE\0", b"x" * 17))
    elements: list[bytes | list[bytes]] = [command, _name(chance), _odd_options(chance, command.upper())]
    if command.upper() == b"APPEND":
        elements.append([chance.choice(_RECORDS) for _ in range(chance.choice((1, 1, 1, 2, 5, 20)))])
    if chance.random() < 0.02:
        elements.append(chance.choice((b"more", [], [b"more"])))
    if chance.random() < 0.02:
        elements.pop()
    return encode_command(*elements)


def _name(chance: random.Random) -> bytes:
    return chance.choice(_NAMES[:8] if chance.random() < 0.8 else _NAMES)


def _odd_options(chance: random.Random, command: bytes) -> list[bytes]:
    if chance.random() < 0.05:
        return [chance.choice(_NUMBERS) for _ in range(chance.choice((1, 2, 63, 64, 66)))]
    usual = {b"TRIM": [b"UNTIL"], b"READ": [b"COUNT", b"BLOCK", b"MIN_TIMESTAMP"], b"CREATE": [b"TIMESTAMP_STRATEGY"]}
    keys = [key for key in usual.get(command, [b"TIMESTAMP"]) if command == b"TRIM" or chance.random() < 0.3]
    if chance.random() < 0.05:
        keys.append(chance.choice(_OPTIONS))
    return [item for key in keys for item in (key, _odd_value(chance, key))]


def _odd_value(chance: random.Random, key: bytes) -> bytes:
    if chance.random() < 0.2:
        return chance.choice(_NUMBERS)
    if key == b"TIMESTAMP_STRATEGY":
        return chance.choice((b"server", b"client", b"CLIENT", b"both"))
    if key in (b"COUNT", b"BLOCK"):
        return chance.choice((b"1", b"3", b"10", b"20"))
    return b"%b-%b" % (
        chance.choice((b"0", b"1700000000000", b"%d" % chance.randrange(2**45))),
        chance.choice(_NUMBERS[:4]),
    )
