"""What a server sends (sections 3 and 8): the bytes of every reply."""

from __future__ import annotations

from collections.abc import Sequence

from .escaping import one_line

OK = b"+OK\r\n"
NOTHING = b"*0\r\n"
_APART_MIN = 64 << 10  # a record of this size is not copied into the reply around it


def error_reply(code: str, message: str) -> bytes:
    return b"-%b %b\r\n" % (code.encode(), one_line(message))


def id_reply(ms: int, seq: int) -> bytes:
    text = b"%d-%d" % (ms, seq)
    return b"$%d\r\n%b\r\n" % (len(text), text)


def records_reply(payloads: Sequence[bytes], ids_ms: Sequence[int], id_seqs: Sequence[int]) -> list[bytes]:
    """The flat array of ids and records, in pieces. Hot: about half a microsecond per record."""
    parts = [b"*%d\r\n" % (2 * len(payloads))]
    whole: list[bytes] = []
    for payload, ms, seq in zip(payloads, ids_ms, id_seqs, strict=True):
        text = b"%d-%d" % (ms, seq)
        if len(payload) < _APART_MIN:
            parts.append(b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(text), text, len(payload), payload))
        else:
            parts.append(b"$%d\r\n%b\r\n$%d\r\n" % (len(text), text, len(payload)))
            whole += (b"".join(parts), payload)
            parts = [b"\r\n"]
    whole.append(b"".join(parts))
    return whole
