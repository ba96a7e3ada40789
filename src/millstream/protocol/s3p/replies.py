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
    """The flat array of ids and records, in pieces. Hot: one formatting per record, as that is most of its cost."""
    parts = [b"*%d\r\n" % (2 * len(payloads))]
    whole: list[bytes] = []
    last_ms, prefix = -1, b""  # records of one append share the first half of their ids
    for payload, ms, seq in zip(payloads, ids_ms, id_seqs, strict=True):
        if ms != last_ms:
            last_ms, prefix = ms, b"%d-" % ms
        size = len(prefix) + (1 if seq < 10 else 2 if seq < 100 else 3 if seq < 1000 else len(str(seq)))
        if len(payload) < _APART_MIN:
            parts.append(b"$%d\r\n%b%d\r\n$%d\r\n%b\r\n" % (size, prefix, seq, len(payload), payload))
        else:
            parts.append(b"$%d\r\n%b%d\r\n$%d\r\n" % (size, prefix, seq, len(payload)))
            whole += (b"".join(parts), payload)
            parts = [b"\r\n"]
    whole.append(b"".join(parts))
    return whole
