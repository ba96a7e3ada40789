"""Requests and answers as plain values, header names, and URLs. Nothing here waits or touches a socket."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from ..model.names import DEFAULT_BUCKET
from ..protocol.http import headers

# --- header names: of requests as the protocol spells them, of answers here

CONTENT_TYPE = headers.CONTENT_TYPE.decode()
IF_MATCH = headers.IF_MATCH.decode()
PRODUCER_EPOCH = headers.PRODUCER_EPOCH.decode()
PRODUCER_ID = headers.PRODUCER_ID.decode()
PRODUCER_SEQ = headers.PRODUCER_SEQ.decode()
STREAM_CLOSED = headers.STREAM_CLOSED.decode()
STREAM_EXPIRES_AT = headers.STREAM_EXPIRES_AT.decode()
STREAM_SEQ = headers.STREAM_SEQ.decode()
STREAM_TTL = headers.STREAM_TTL.decode()

ETAG = "etag"
LOCATION = "location"
PRODUCER_EXPECTED_SEQ = "producer-expected-seq"
PRODUCER_RECEIVED_SEQ = "producer-received-seq"
RETRY_AFTER = "retry-after"
STREAM_CURSOR = "stream-cursor"
STREAM_EARLIEST_OFFSET = "stream-earliest-offset"
STREAM_EARLIEST_POSITION = "stream-earliest-position"
STREAM_ID = "stream-id"
STREAM_NEXT_OFFSET = "stream-next-offset"
STREAM_NEXT_POSITION = "stream-next-position"
STREAM_SNAPSHOT_OFFSET = "stream-snapshot-offset"
STREAM_SSE_DATA_ENCODING = "stream-sse-data-encoding"
STREAM_UP_TO_DATE = "stream-up-to-date"

JSON = "application/json"
EVENT_STREAM = "text/event-stream"

_FLAT = re.compile(r"(?P<root>.*)/v1/stream/(?P<first>[^/]+)(?:/(?P<rest>.+))?")


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Credentials and the client's own headers are added when it is sent."""

    method: str
    url: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    read_timeout_s: float | None = None  # longer, for answers that wait
    on_sent: Callable[[], None] | None = None  # called once the body is on its way


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. The body is empty while it is still to be read piece by piece."""

    status: int
    headers: Mapping[str, str]  # by lower-case name
    body: bytes
    url: str
    credentials: int = 0  # which issue of the credentials the request carried

    def header(self, name: str) -> str | None:
        return self.headers.get(name)

    def number(self, name: str) -> int | None:
        value = self.header(name)
        return int(value) if value is not None and value.isascii() and value.isdigit() else None

    def says(self, name: str) -> bool:
        """Whether a header of this name says true."""
        value = self.header(name)
        return value is not None and value.strip().lower() == "true"

    @property
    def content_type(self) -> str:
        return self.header(CONTENT_TYPE) or ""


# --- URLs


def check_base_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{url!r} is no URL of a server; it looks like http://127.0.0.1:4437.")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} must not have a query or a fragment; use `params` for parameters.")
    return url.rstrip("/")


def stream_url(base_url: str, name: str) -> str:
    """A full URL is taken as it is; a name lies under ``/v1/stream/``, its first ``/`` parting bucket and stream."""
    if name.startswith(("http://", "https://")):
        return check_base_url(name)
    if not name.strip("/"):
        raise ValueError("A stream needs a name, such as 'chat/room-1', or a full URL.")
    if any(part in (".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is no stream's name: '.' and '..' between slashes would lead to another one.")
    return f"{base_url}/v1/stream/{quote(name.lstrip('/'), safe='/~')}"


def bucket_url(base_url: str, bucket: str) -> str:
    if not bucket:
        raise ValueError("A bucket needs a name.")
    return f"{base_url}/ds/{quote(bucket, safe='')}"


def stream_url_in(bucket_url: str, name: str) -> str:
    if not name or name in (".", ".."):
        raise ValueError(f"A stream needs a name, which {name!r} is not.")
    return f"{bucket_url}/{quote(name, safe='')}"


def extension_url(url: str) -> str:
    """Where a stream's snapshots and bootstrap are: below the bucketed form of its URL."""
    parts = urlsplit(url)
    flat = _FLAT.fullmatch(parts.path)
    if flat is None:
        return url
    bucket, name = (flat["first"], flat["rest"]) if flat["rest"] else (DEFAULT_BUCKET, flat["first"])
    path = f"{flat['root']}/ds/{bucket}/{name.replace('/', '%2F')}"
    return urlunsplit(parts._replace(path=path))


def redirect_target(url: str, location: str) -> str:
    return urljoin(url, location)


def same_host(one: str, other: str) -> bool:
    """Whether credentials for one may go to the other: the nodes of a cluster on one machine differ in port only."""
    first, second = urlsplit(one), urlsplit(other)
    return first.hostname == second.hostname and (first.scheme == second.scheme or second.scheme == "https")


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")
