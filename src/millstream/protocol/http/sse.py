"""Server-Sent Events (protocol section 5.8): each data event is followed by its control event, in one piece."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Sequence

HEARTBEAT = b":\n\n"


def data_event(pieces: Sequence[bytes], *, json: bool, text: bool) -> bytes:
    if json:
        payload = b"[%b]" % b",".join(pieces)
    elif text:
        payload = b"".join(pieces)
    else:
        return b"event: data\ndata:%b\n\n" % b2a_base64(b"".join(pieces), newline=False)
    return b"event: data\ndata:%b\n\n" % _lines(payload)


def _lines(payload: bytes) -> bytes:
    """Any line break ends a field, so every line of the payload becomes a field of its own; and a reader drops one
    space after the colon, so a line that starts with a space gets one to lose."""
    if b"\r" in payload:
        payload = payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if payload[:1] == b" ":
        payload = b" " + payload
    if b"\n" in payload:
        payload = payload.replace(b"\n ", b"\n  ").replace(b"\n", b"\ndata:")
    return payload


def control_event(next_offset: int, cursor: int, *, up_to_date: bool, closed: bool) -> bytes:
    if closed:
        fields = b'"streamNextOffset":"%020d","upToDate":true,"streamClosed":true' % next_offset
    elif up_to_date:
        fields = b'"streamNextOffset":"%020d","streamCursor":"%d","upToDate":true' % (next_offset, cursor)
    else:
        fields = b'"streamNextOffset":"%020d","streamCursor":"%d"' % (next_offset, cursor)
    # A browser that reconnects sends the id back as Last-Event-ID, so it never replays what it has.
    return b"event: control\ndata:{%b}\nid: %020d\n\n" % (fields, next_offset)


def whole_characters(data: bytes | memoryview) -> int:
    """How many bytes of `data` end with a whole UTF-8 character: an event must not break one."""
    size = len(data)
    for back in range(1, min(4, size) + 1):
        byte = data[size - back]
        if byte & 0xC0 == 0x80:
            continue  # a continuation: its start lies further left
        needed = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return size if back >= needed else size - back
    return size  # not UTF-8 anyway
