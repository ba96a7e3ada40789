"""Header lines that were parsed before, by their bytes.

A client sends the same header lines with request after request; only the request line differs. Looking them up takes a
third of the time of parsing them. Whatever is not exactly what the parser has accepted before, goes to the parser.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeVar

from ..model.commands import Append
from ..model.names import PLAIN_PATH, key_of_plain_path
from ..protocol.http import headers as h
from ..protocol.http.requests import FLAT, PlainAppend, PlainKind, PlainRead, Request, plain_kind
from .compression import wanted_encoding
from .guard import Guard

# Stricter than the parser: plain methods, the path of a URL without a fragment, this version and no other.
_REQUEST_LINE = re.compile(rb"(?:POST %b(%b)|(GET|POST|HEAD) (/[!-\"$-~]{0,1024})) HTTP/1\.1\r\n" % (FLAT, PLAIN_PATH))
_LINES_BYTES_MAX = 1024
_WHOLE_BYTES_MAX = 1024
_KNOWN_MAX = 4096
# With these a request is framed otherwise, or is not like the one before it.
_NEVER_KNOWN = frozenset(
    {
        *(h.TRANSFER_ENCODING, h.EXPECT, h.LAST_EVENT_ID),
        *(h.PRODUCER_SEQ, h.STREAM_SEQ, h.IF_MATCH, h.IF_NONE_MATCH),
    }
)


_T = TypeVar("_T")


class _Known(NamedTuple):
    headers: dict[bytes, bytes]
    body_size: int
    plain: PlainKind | None  # what they say of an append, if that is all they say


class KnownHeads:
    """Of all connections together; bounded, as clients choose what they send."""

    def __init__(self, head_bytes_max: int, append_bytes_max: int, guard: Guard) -> None:
        self._head_bytes_max = head_bytes_max
        self._append_bytes_max = append_bytes_max  # larger appends go another way
        self._guard = guard
        self._known: dict[bytes, _Known] = {}
        self._whole: dict[bytes, Request] = {}  # without a body, so that they are the same every time

    def recall(self, data: bytes) -> Request | PlainAppend | None:
        """The request that these bytes are, if they are exactly one whose header lines are known."""
        is_get = data[:1] == b"G"
        if is_get and (whole := self._whole.get(data)) is not None:
            return whole
        line = _REQUEST_LINE.match(data)
        if line is None:
            return None
        lines_at = line.end()
        body_at = data.find(b"\r\n\r\n", lines_at - 2) + 4
        known = self._known.get(data[lines_at:body_at])
        if known is None or known.body_size != len(data) - body_at or body_at > self._head_bytes_max:
            return None
        headers, body_size, plain = known
        plain_path = line[1]
        if plain_path is not None and plain is not None:
            content_type, body_of, request = plain
            command = Append(key_of_plain_path(plain_path), content_type, body_of(data[body_at:]))
            return PlainAppend(request, command)
        method, target = line.group(2, 3) if plain_path is None else (b"POST", FLAT + plain_path)
        path, _, query = target.partition(b"?")
        request = Request(method, path, query, headers, data[body_at:], True, body_size=body_size)
        if is_get and not request.body and len(data) <= _WHOLE_BYTES_MAX:
            if self._says_nothing(headers):
                request = PlainRead(method, path, query, headers, b"", True, asked=target)
            _keep(self._whole, data, request)
        return request

    def _says_nothing(self, headers: dict[bytes, bytes]) -> bool:
        """Whether reads with these are answered alike, whoever asks."""
        encoding = headers.get(h.ACCEPT_ENCODING)
        return self._guard.knows(headers) and (encoding is None or wanted_encoding(encoding) is None)

    def learn(self, data: bytes, request: Request) -> None:
        """These bytes were this request, and nothing else."""
        if not request.keep_alive or request.version != "1.1" or not _NEVER_KNOWN.isdisjoint(request.headers):
            return
        line = _REQUEST_LINE.match(data)
        lines = b"" if line is None else data[line.end() : data.find(b"\r\n\r\n", line.end() - 2) + 4]
        if not lines or len(lines) > _LINES_BYTES_MAX:
            return
        size = len(request.body)
        is_small = 0 < size <= self._append_bytes_max
        plain = plain_kind(request.headers, size) if is_small and self._guard.knows(request.headers) else None
        _keep(self._known, lines, _Known(request.headers, size, plain))


def _keep(known: dict[bytes, _T], key: bytes, value: _T) -> None:
    if len(known) >= _KNOWN_MAX:
        known.clear()
    known[key] = value
