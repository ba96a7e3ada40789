"""The bytes of facts: one batch is one msgpack array, so a batch decodes in a single C call.

    0xdd | count u32 big-endian | fact | fact | ...

Each fact is a msgpack array that starts with the tag of its class. Msgpack was chosen over a packed struct
because optional fields cost one byte, old readers refuse unknown tags, and any language can read it.
"""

from __future__ import annotations

import msgspec

from .errors import CorruptData
from .facts import Fact

_ARRAY32 = b"\xdd"
HEADER_BYTES = 5

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Fact])


# encode_into(fact, buffer, -1) appends the fact's bytes to the buffer; the writer calls it for every fact.
encode_into = _encoder.encode_into


def array_header(count: int) -> bytes:
    return _ARRAY32 + count.to_bytes(4, "big")


def encode_facts(facts: list[Fact]) -> bytes:
    buffer = bytearray(array_header(len(facts)))
    for fact in facts:
        encode_into(fact, buffer, -1)
    return bytes(buffer)


def decode_facts(data: bytes | memoryview) -> list[Fact]:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(f"A journal batch with a valid checksum cannot be decoded: {error}") from None
