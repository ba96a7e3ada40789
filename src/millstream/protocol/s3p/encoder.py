"""Commands to bytes: what a client sends (section 8)."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.ids import MessageId

Element = bytes | Sequence[bytes]


def encode_command(*elements: Element) -> bytes:
    """A command of bulk strings and arrays of bulk strings."""
    parts = [b"*%d\r\n" % len(elements)]
    for element in elements:
        if isinstance(element, bytes):
            parts.append(b"$%d\r\n%b\r\n" % (len(element), element))
        else:
            parts.append(b"*%d\r\n" % len(element))
            parts.extend([b"$%d\r\n%b\r\n" % (len(item), item) for item in element])
    return b"".join(parts)


def encode_create(name: bytes, client_ids: bool = False) -> bytes:
    return encode_command(b"CREATE", name, [b"TIMESTAMP_STRATEGY", b"client"] if client_ids else [])


def encode_append(name: bytes, records: Sequence[bytes], first_id: MessageId | None = None) -> bytes:
    options = [] if first_id is None else [b"TIMESTAMP", str(first_id).encode()]
    return encode_command(b"APPEND", name, options, records)


def encode_read(name: bytes, count: int | None = None, block_ms: int = 0, after: MessageId | None = None) -> bytes:
    options: list[bytes] = []
    if count is not None:
        options += (b"COUNT", b"%d" % count)
    if block_ms:
        options += (b"BLOCK", b"%d" % block_ms)
    if after is not None:
        options += (b"MIN_TIMESTAMP", str(after).encode())
    return encode_command(b"READ", name, options)


def encode_trim(name: bytes, until: MessageId) -> bytes:
    return encode_command(b"TRIM", name, [b"UNTIL", str(until).encode()])


def encode_delete(name: bytes) -> bytes:
    return encode_command(b"DELETE", name, [])
