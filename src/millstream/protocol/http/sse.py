"""Server-Sent Events (protocol section 5.8): each data event is followed by its control event, in one piece."""

from __future__ import annotations

from binascii import b2a_base64
from codecs import utf_8_decode
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


UNFINISHED_MAX = 3  # bytes of a character that lacks one


def unfinished_bytes(text: bytes) -> int:
    """How many bytes at the end may be of a character, or a line end, whose rest is yet to come. An event must not
    break one; what can never become a character is not waited for."""
    last = text[-1:]
    if last < b"\x80":
        return int(last == b"\r")
    end = text[-UNFINISHED_MAX:]
    begun = end[utf_8_decode(end, "replace", False)[1] :]
    # Half a surrogate pair is none, though Python's decoder waits for its end, as some of its callers want it.
    return 0 if begun[:1] == b"\xed" and begun[1:] >= b"\xa0" else len(begun)
