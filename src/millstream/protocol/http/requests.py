"""From a parsed HTTP request to a command or a query."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from sys import intern
from typing import Any, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec

from ...model.commands import EMPTY_BODY, Append, Body, Create, Delete
from ...model.errors import BadRequest, NotSupported, UnsupportedMedia
from ...model.facts import Producer
from ...model.media import is_json, is_media_type
from ...model.offsets import BEGINNING, parse_offset
from . import headers as h
from .json_mode import split_body

_INTEGER = re.compile(rb"[0-9]{1,16}")
_TTL = re.compile(rb"0|[1-9][0-9]{0,11}")
_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)
_HOST = re.compile(rb"(?:[0-9A-Za-z._~-]+|\[[0-9A-Za-z:.%]+\])(?::[0-9]{0,5})?")
_SAFE_INTEGER_MAX = 2**53 - 1
_TOKEN_BYTES_MAX = 1024
_CURSOR_DIGITS_MAX = 64
FLAT = b"/v1/stream/"  # the prefix under which a stream is one path
LIVE_MODES = ("long-poll", "sse")


class Request(msgspec.Struct, gc=False):
    """One whole HTTP request."""

    method: bytes
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool
    version: str = "1.1"
    sink: Any = None  # a large body that a route has claimed went there (`server.http_receiving.BodySink`)
    body_size: int = 0  # what is in memory of its body

    @property
    def target(self) -> bytes:
        return b"%b?%b" % (self.path, self.query) if self.query else self.path

    @property
    def location_line(self) -> bytes:
        """The header line that names what was created: absolute where the client has said how it calls the server."""
        host, path = self.headers.get(h.HOST), encoded_path(self.path)
        return b"Location: http://%b%b\r\n" % (host, path) if host else b"Location: %b\r\n" % path


class PlainRead(Request):
    """A GET that says nothing but what to read."""

    asked: bytes = b""  # its target


class PlainAppend(msgspec.Struct, frozen=True, gc=False):
    """A POST that says nothing but what to append to which stream."""

    request: Request  # what all with these header lines have in common: no path, and no body
    command: Append


def encoded_path(path: bytes) -> bytes:
    """A path as it may stand in a URL: clients send characters raw that others would take for something else."""
    return quote_from_bytes(path, safe="/%:@!$&'()*+,;=~").encode()


def origin_form(target: bytes) -> tuple[bytes | None, bytes]:
    """Host and path of a target that names a whole URL, as proxies send it (RFC 9112, section 3.2.2)."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return None, target
    host, _, path = rest.partition(b"/")
    return host, b"/" + path


def require_host(request: Request) -> bytes:
    """Empty only where HTTP/1.0 leaves it out."""
    host = request.headers.get(h.HOST, b"")
    if not host and (h.HOST in request.headers or request.version == "1.1"):
        raise BadRequest("HTTP/1.1 requests need a Host header that names a host.", code="host_missing")
    if host and not _HOST.fullmatch(host):
        raise BadRequest("The Host must be a name or an address, with or without a port.", code="bad_host")
    return host


class ReadQuery(msgspec.Struct, frozen=True, gc=False):
    offset: int = BEGINNING
    has_offset: bool = False
    live: str | None = None
    cursor: int | None = None
    timeout_ms: int | None = None
    max_bytes: int | None = None
    stream_id: str | None = None
    since_ms: int | None = None  # start with the first message committed at or after this time


def is_closing(headers: dict[bytes, bytes]) -> bool:
    """Only `true`, in any case, closes; other values count as absent (protocol section 4.1)."""
    value = headers.get(h.STREAM_CLOSED)
    return value is not None and value.strip().lower() == b"true"


# What upstream and other servers give a meaning that is not known here: a write must not succeed as something else.
_LATER_HEADERS = frozenset(
    {h.STREAM_FORKED_FROM, h.STREAM_FORK_OFFSET, h.STREAM_FORK_SUB_OFFSET, h.STREAM_RECORD_MATCH}
)
_REFUSED_HEADERS = _LATER_HEADERS | {h.CONTENT_ENCODING}
_LATER_PARAMETERS = ("record", "tail_records", "record_view")


def check_write(headers: dict[bytes, bytes]) -> None:
    """Refuse what asks for more than this server can do, or says that the body is not what it would be taken for."""
    for name in _LATER_HEADERS.intersection(headers):
        raise NotSupported(f"{_titled(name)} is not supported yet. Without it this would be another request.")
    if headers.get(h.CONTENT_ENCODING, b"identity").lower() != b"identity":
        raise UnsupportedMedia(
            "A body is kept and given out as it is sent. Send it without Content-Encoding.", code="unsupported_encoding"
        )


# Most appends carry none of these.
_WRITER_HEADERS = frozenset(
    {h.STREAM_CLOSED, h.PRODUCER_ID, h.PRODUCER_EPOCH, h.PRODUCER_SEQ, h.STREAM_SEQ, h.IF_MATCH, h.IF_NONE_MATCH}
    | _REFUSED_HEADERS
)


def append_command(request: Request, key: str) -> Append:
    headers = request.headers
    content_type = content_type_of(headers)
    if not request.query and _WRITER_HEADERS.isdisjoint(headers):
        return Append(key, content_type, _append_body(request.body, content_type))
    if not _REFUSED_HEADERS.isdisjoint(headers):
        check_write(headers)
    closes = h.STREAM_CLOSED in headers and is_closing(headers)
    return Append(
        key,
        content_type,
        _append_body(request.body, content_type),
        closes,
        _producer(headers) if h.PRODUCER_ID in headers or _has_producer_part(headers) else None,
        _token(headers, h.STREAM_SEQ) if h.STREAM_SEQ in headers else None,
        condition(headers, h.IF_MATCH),
        if_none_match=condition(headers, h.IF_NONE_MATCH),
        stream_id=wanted_stream(request.query),
    )


class PlainKind(NamedTuple):
    """What header lines say about every append that has them, and a body."""

    content_type: str
    body_of: Callable[[bytes], Body]
    request: Request  # for all of them


def plain_kind(headers: dict[bytes, bytes], body_size: int) -> PlainKind | None:
    """None if they say more than a content type, or none that is one."""
    try:
        content_type = content_type_of(headers)
    except BadRequest:
        return None
    if content_type is None or not _WRITER_HEADERS.isdisjoint(headers):
        return None
    request = Request(b"POST", FLAT, b"", headers, b"", True, body_size=body_size)
    return PlainKind(intern(content_type), _json_body if is_json(content_type) else Body, request)


def create_command(request: Request, key: str, needs_bucket: bool = False) -> Create:
    headers = request.headers
    check_write(headers)
    content_type = content_type_of(headers)
    body = EMPTY_BODY
    if request.body:
        body = split_body(request.body) if content_type and is_json(content_type) else Body(request.body)
    ttl_s, expires_at_ms = _lifetime(headers)
    return Create(
        key,
        content_type,
        ttl_s,
        expires_at_ms,
        is_closing(headers),
        body,
        _producer(headers) if h.PRODUCER_ID in headers or _has_producer_part(headers) else None,
        _token(headers, h.STREAM_SEQ) if h.STREAM_SEQ in headers else None,
        condition(headers, h.IF_MATCH),
        needs_bucket,
        if_none_match=condition(headers, h.IF_NONE_MATCH),
        stream_id=wanted_stream(request.query),
    )


def delete_command(request: Request, key: str) -> Delete:
    headers = request.headers
    check_write(headers)
    conditions = condition(headers, h.IF_MATCH), condition(headers, h.IF_NONE_MATCH)
    return Delete(key, *conditions, wanted_stream(request.query))


def wanted_stream(query: bytes) -> str | None:
    """The one stream that a request is about, whatever has its name by now; refuses what would be another request."""
    if not query:
        return None
    values = parameters(query)
    refuse_later(values)
    return values.get("stream-id")


def refuse_later(values: dict[str, str]) -> None:
    for name in _LATER_PARAMETERS:
        if name in values:
            raise NotSupported(f"{name}= is not supported yet. Read from an offset.")


def condition(headers: dict[bytes, bytes], name: bytes) -> str | None:
    """The tags of a conditional header, if there is one."""
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")


def read_query(request: Request) -> ReadQuery:
    query = request.query
    if not query:
        return _FROM_THE_BEGINNING
    return _known_query(query) if len(query) <= 256 else _parse_query(query)


_FROM_THE_BEGINNING = ReadQuery()


@lru_cache(maxsize=4096)
def _known_query(query: bytes) -> ReadQuery:
    """Readers ask the same again and again: the same beginning, the same tail."""
    return _parse_query(query)


def _parse_query(query: bytes) -> ReadQuery:
    values = parameters(query)
    live = values.get("live")
    if live is not None and live not in LIVE_MODES:
        raise BadRequest(f"live must be one of {', '.join(LIVE_MODES)}.", code="bad_live")
    refuse_later(values)
    offset, timestamp = values.get("offset"), values.get("timestamp")
    if offset is not None and timestamp is not None:
        raise BadRequest("Give an offset or a timestamp, not both.", code="bad_timestamp")
    if live is not None and offset is None and timestamp is None:
        raise BadRequest(f"live={live} needs an offset: -1, now, or a Stream-Next-Offset.", code="offset_missing")
    cursor = values.get("cursor", values.get("stream-cursor"))
    if cursor is not None and offset is None and timestamp is None:
        raise BadRequest(
            "A cursor is no place in a stream. Give the offset to read from, and the stream-id that it belongs to.",
            code="offset_missing",
        )
    return ReadQuery(
        BEGINNING if offset is None else parse_offset(offset),
        offset is not None,
        live,
        None if cursor is None else _cursor(cursor),
        bounded(values, "timeout_ms", 0),
        bounded(values, "max_bytes", 1),
        values.get("stream-id"),
        None if timestamp is None else _moment(timestamp),
    )


def parameters(query: bytes) -> dict[str, str]:
    """Known parameters once each; the protocol asks servers to ignore unknown ones."""
    values: dict[str, str] = {}
    for part in query.split(b"&"):
        raw_name, _, raw_value = part.partition(b"=")
        name = _unquoted(raw_name)
        if name in values and name in _SINGLE_PARAMETERS:
            raise BadRequest(f"The parameter '{name}' is given twice.", code="repeated_parameter")
        values[name] = _unquoted(raw_value)
    return values


_SINGLE_PARAMETERS = frozenset(
    {"offset", "live", "cursor", "stream-cursor", "timeout_ms", "max_bytes", "stream-id", "timestamp"}
    | {"prefix", "after", "limit", "trim", "until", "data", "max_messages"}
)


def _unquoted(raw: bytes) -> str:
    if b"%" in raw or b"+" in raw:
        raw = unquote_to_bytes(raw.replace(b"+", b" "))
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadRequest("The query is not UTF-8 once percent-decoded.", code="bad_query") from None


def moment_of(text: str) -> int | None:
    """Milliseconds since 1970, from just those or from an RFC 3339 time; None if it is neither."""
    if text.isascii() and text.isdigit() and len(text) <= 15:
        return int(text)
    return _parse_rfc3339(text)


def _moment(text: str) -> int:
    moment = moment_of(text)
    if moment is None:
        raise BadRequest(
            "timestamp must be milliseconds since 1970, or an RFC 3339 time such as 2030-01-31T12:00:00Z "
            "(write '+' as %2B).",
            code="bad_timestamp",
        )
    return moment


def _cursor(text: str) -> int | None:
    """A cursor that is not one of ours is harmless: it only tells a cache's requests apart."""
    if not text.isascii() or not text.isdigit():
        return None
    if len(text) > _CURSOR_DIGITS_MAX:
        raise BadRequest(f"A cursor has at most {_CURSOR_DIGITS_MAX} digits.", code="bad_cursor")
    return int(text)


def bounded(values: dict[str, str], name: str, least: int) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 20 or int(text) < least:
        raise BadRequest(f"{name} must be an integer of at least {least}.", code=f"bad_{name}")
    return int(text)


def content_type_of(headers: dict[bytes, bytes]) -> str | None:
    value = headers.get(h.CONTENT_TYPE)
    return _known_type(value) if value else None


@lru_cache(maxsize=1024)
def _known_type(value: bytes) -> str:
    if len(value) > _TOKEN_BYTES_MAX:
        raise BadRequest(f"Content-Type must have at most {_TOKEN_BYTES_MAX} bytes.", code="bad_header")
    content_type = value.decode("latin-1")
    if not is_media_type(content_type):
        raise BadRequest("Content-Type must be a media type such as text/plain.", code="bad_content_type")
    return content_type


def _append_body(body: bytes, content_type: str | None) -> Body:
    if not body:
        return EMPTY_BODY  # good for closing, and nothing else
    return Body(body) if content_type is None or not is_json(content_type) else _json_body(body)


def _json_body(body: bytes) -> Body:
    messages = split_body(body)
    if messages is EMPTY_BODY:
        return Body(fault=BadRequest("An empty JSON array appends nothing.", code="empty_array"))
    return messages


def _has_producer_part(headers: dict[bytes, bytes]) -> bool:
    return h.PRODUCER_EPOCH in headers or h.PRODUCER_SEQ in headers


def _producer(headers: dict[bytes, bytes]) -> Producer:
    values = [headers.get(name) for name in (h.PRODUCER_ID, h.PRODUCER_EPOCH, h.PRODUCER_SEQ)]
    if None in values:
        raise BadRequest(
            "Producer-Id, Producer-Epoch and Producer-Seq go together: send all three or none.",
            code="bad_producer",
        )
    return Producer(
        _token(headers, h.PRODUCER_ID), _integer(headers, h.PRODUCER_EPOCH), _integer(headers, h.PRODUCER_SEQ)
    )


def _token(headers: dict[bytes, bytes], name: bytes) -> str:
    value = headers[name]
    if not 0 < len(value) <= _TOKEN_BYTES_MAX:
        raise BadRequest(f"{_titled(name)} must have 1 to {_TOKEN_BYTES_MAX} bytes.", code="bad_header")
    return value.decode("latin-1")


def _integer(headers: dict[bytes, bytes], name: bytes) -> int:
    value = headers[name]
    if not _INTEGER.fullmatch(value) or int(value) > _SAFE_INTEGER_MAX:
        raise BadRequest(f"{_titled(name)} must be an integer from 0 to 2^53-1.", code="bad_producer")
    return int(value)


def _titled(name: bytes) -> str:
    return name.decode().title()


def _lifetime(headers: dict[bytes, bytes]) -> tuple[int | None, int | None]:
    ttl, expires_at = headers.get(h.STREAM_TTL), headers.get(h.STREAM_EXPIRES_AT)
    if ttl is not None and expires_at is not None:
        raise BadRequest("Give Stream-TTL or Stream-Expires-At, not both.", code="bad_expiry")
    if ttl is not None:
        if not _TTL.fullmatch(ttl):
            raise BadRequest(
                "Stream-TTL must be whole seconds in plain decimal, without sign or leading zeros.",
                code="bad_ttl",
            )
        return int(ttl), None
    return None, None if expires_at is None else parse_time_ms(expires_at.decode("latin-1"))


def parse_time_ms(text: str) -> int:
    """Milliseconds since 1970 of an RFC 3339 time."""
    moment = _parse_rfc3339(text)
    if moment is not None:
        return moment
    raise BadRequest("Stream-Expires-At must be an RFC 3339 time such as 2030-01-31T12:00:00Z.", code="bad_expiry")


def _parse_rfc3339(text: str) -> int | None:
    if not _RFC3339.fullmatch(text):
        return None
    is_leap = text[14:19] == "59:60"
    if is_leap:
        text = f"{text[:17]}59{text[19:]}"
    try:
        moment = datetime.fromisoformat(text.upper().replace(" ", "T")).timestamp()
        return round((moment + is_leap) * 1000)
    except (ValueError, OverflowError):
        return None  # a date that does not exist
