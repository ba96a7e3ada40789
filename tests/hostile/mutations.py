"""Inputs that no client would send, made from ones that clients do send."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.hostile.wire import request

TEXT = "Content-Type: text/plain"
CORPUS = [
    request("GET", "/v1/stream/fuzz/a?offset=0"),
    request("GET", "/v1/stream/fuzz/a?offset=now&live=long-poll&timeout_ms=5&cursor=9"),
    request("GET", "/v1/stream/fuzz/%61?offset=00000000000000000003&max_bytes=2", "Accept-Encoding: gzip, zstd"),
    request("PUT", "/v1/stream/fuzz/b", TEXT, "Stream-TTL: 60", body=b"first"),
    request("PUT", "/v1/stream/fuzz/c", "Stream-Expires-At: 2040-01-01T00:00:00Z", "Stream-Closed: true"),
    request("POST", "/v1/stream/fuzz/a", TEXT, "Stream-Seq: 5", body=b"some text"),
    request("POST", "/v1/stream/fuzz/a", TEXT, 'If-Match: "x:3"', body=b"conditional"),
    request(
        "POST",
        "/v1/stream/fuzz/a",
        TEXT,
        "Producer-Id: p",
        "Producer-Epoch: 0",
        "Producer-Seq: 0",
        body=b"once",
    ),
    request("POST", "/v1/stream/fuzz/json", "Content-Type: application/json", body=b'[{"a":1},[2],"\xc3\xa9"]'),
    request("POST", "/v1/stream/fuzz/a", TEXT, "Expect: 100-continue", body=b"expected"),
    b"POST /v1/stream/fuzz/a HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nTrailer: z\r\n\r\n",
    request("DELETE", "/v1/stream/fuzz/b"),
    request("DELETE", "/v1/stream/fuzz/a"),
    request("PUT", "/v1/stream/fuzz/a", TEXT),
    request("OPTIONS", "/v1/stream/fuzz/a", "Origin: http://localhost:1", "Access-Control-Request-Method: PUT"),
    request("GET", "/metrics"),
    request("GET", "/readyz/local", "Origin: http://evil.example"),
]
TOKENS = [
    *(bytes([byte]) for byte in (0, 9, 10, 11, 13, 32, 34, 37, 44, 47, 58, 59, 127, 128, 255)),
    *(b"\r\n", b"\r\n\r\n", b"\n\n", b"\r\n ", b" HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0"),
    *(b"Content-Length: 3\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Host: 127.0.0.1\r\n", b"Host: x\r\n"),
    *(b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n"),
    *(b"%00", b"%ff", b"%2e%2e", b"/../", b"%", b"%2", b"?", b"&offset=1", b"offset=-1", b"=", b"#"),
    *(b"0", b"-1", b"18446744073709551616", b"9" * 400, b"ffffffffffffffff\r\n", b"x" * 9000, b"A: b\r\n" * 300),
    *(b"[" * 3000, b"{}", b'"', b"\\u0000", b"\xed\xa0\x80", b"1e999", b"NaN"),
]


def mutated(chance: random.Random, data: bytes, tokens: Sequence[bytes], others: Sequence[bytes] = ()) -> bytes:
    """Damaged here and there. What is cut off goes on with the end of one of `others`, if there are any."""
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + int(40 * chance.random() ** 2))
        kind = chance.randrange(6)
        if kind == 0:
            data = data[:at] + data[end:]
        elif kind == 1:
            data = data[:at] + data[at:end] * 2 + data[end:]
        elif kind == 2:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        elif kind == 3:
            data = data[:at]
            if others:
                other = chance.choice(others)
                data += other[chance.randrange(len(other)) :]
        else:
            data = data[:at] + chance.choice(tokens) + data[at if kind == 4 else end :]
    return data


DOCUMENT = b'{"text":"a\\u00e9\\n","numbers":[0,-1,2.5e3,12345678901234567890],"nested":{"t":true,"n":null,"":[]}}'
JSON_TOKENS = [
    *(bytes([byte]) for byte in b'{}[],:"\\-+.eE0 \t\n\0\x7f\xff\xc3\xa9'),
    b"tru",
    b"NaN",
    b"\\u",
    b"\\ud800",
]


def mutated_document(chance: random.Random) -> bytes:
    data = DOCUMENT
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(data))
        end = at + chance.choice((0, 0, 1, 1, 5))
        data = data[:at] + chance.choice(JSON_TOKENS) * chance.choice((0, 1, 1, 2)) + data[end:]
    return data


# --- well-formed requests with odd values in them: these get to the parsers behind the listener

PATHS = [f"/v1/stream/fuzz/h{index}" for index in range(6)] + ["/ds/fuzz-bucket/a", "/fuzz-bucket/json", "/fuzz-bucket"]
PARAMETERS = (
    *("offset", "live", "cursor", "stream-cursor", "timeout_ms", "max_bytes", "stream-id", "timestamp"),
    *("prefix", "after", "limit", "trim", "", "%00"),
)
HEADERS = (
    *("Content-Type", "Stream-TTL", "Stream-Expires-At", "Stream-Seq", "Stream-Closed", "Producer-Id"),
    *("Producer-Epoch", "Producer-Seq", "If-Match", "If-None-Match", "Accept", "Accept-Encoding", "Last-Event-ID"),
    *("Origin", "Access-Control-Request-Method", "Range", "Expect", "X-Anything", "Authorization", "Cookie"),
)
ODD_VALUES = [
    *("", "0", "-1", "now", "-0", "+1", "1e3", "0x10", " 1", "1 ", "1.5", "01", "٣", "NaN", "null", "true", "TRUE"),
    *("18446744073709551615", "18446744073709551616", "9007199254740992", "9" * 30, "9" * 4000, "00000000000000000007"),
    *("0000000000000000_0000000000000007", "9999999999999999_9999999999999999", "now,now", "-2", "--1", "\u22121"),
    *("application/json", "text/plain", "application/json; charset=utf-16", "a/b" * 500, "/", ";;;", "TEXT/PLAIN"),
    *("2030-01-31T12:00:00Z", "2030-13-31T12:00:00Z", "0000-00-00T00:00:00Z", "9999-12-31T23:59:59.999999999+23:59"),
    *(
        "0001-01-01T00:00:00+14:00",
        "2030-01-31",
        "1969-12-31T23:59:59Z",
        "2030-02-30T12:00:00Z",
        "2016-12-31T23:59:60Z",
    ),
    *("*", '"x"', 'W/"x"', '"a", "b"', '"', "gzip", "gzip;q=0", "zstd;q=1.5;q=2", "identity;q=0, *;q=0", "gzip" * 300),
    *("\xff\xfe", "\x80", "é", "%", "%2", "%zz", "%00", "%ff", "%2e%2e/", "../..", "a\tb", "\u2028", "𐏿", "long-poll"),
    *("http://localhost", "http://127.0.0.1:99999", "null", "http://[::1", "file://", "100-continue", "bytes=0-"),
]
_BODIES = [
    b"",
    b"text",
    b"[1,2]",
    b"{",
    b"[]",
    b"\xff",
    b'{"ttl_seconds":-1}',
    b'{"ttl_seconds":1e99}',
    b"null",
    b"[" * 999,
]


def odd_request(chance: random.Random) -> tuple[str, bytes]:
    """A method, and a request whose head is well-formed whatever its values are."""
    method = chance.choice(("GET", "GET", "GET", "POST", "POST", "POST", "PUT", "PUT", "HEAD", "PATCH", "OPTIONS"))
    method = "DELETE" if chance.random() < 0.02 else method
    path = chance.choice(PATHS)
    if chance.random() < 0.15:
        path += chance.choice(("/snapshot", "/bootstrap", f"/snapshot/{_quoted(_odd_value(chance))}"))
    if chance.random() < 0.5:
        pairs = (
            f"{chance.choice(PARAMETERS)}={_quoted(_odd_value(chance))}" for _ in range(chance.choice((1, 1, 2, 4)))
        )
        path += "?" + "&".join(pairs).replace("live=sse", "live=no")  # what never ends has tests of its own
    lines = {name: _odd_value(chance) for name in chance.sample(HEADERS, chance.choice((0, 1, 1, 2, 5)))}
    lines.setdefault("Content-Type", chance.choice(("text/plain", "application/json")))
    body = chance.choice(_BODIES) if method in ("POST", "PUT", "PATCH") else b""
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    head += [f"{name}: {value}" for name, value in lines.items()]
    return method, "\r\n".join((*head, "", "")).encode("utf-8", "replace") + body


# --- the same for the routes of a whole bucket: feed, bulk reads, plans, leases and transactions

ODD_BUCKET = "odd-bucket"  # of its own, as a bulk read takes the longer the more is in it
_NDJSON = "application/x-ndjson"
_ARROW = "application/vnd.apache.arrow.stream"
_QUESTIONS = ("feed", "feed", "messages", "plan")
_BUCKET_PARAMETERS = ("after", "until", "prefix", "data", "limit", "live", "timeout_ms", "max_bytes", "max_messages")
_PLACES = [
    "earliest",
    "now",
    "0",
    "0.0",
    "ffffffffffffffff.1",
    "0123456789abcdef.99999999999999999999",
    ".",
    "1.",
    "x.y",
]
_ROW = b'{"stream":"s1","value":"aGVsbG8=","order":1}\n{"stream":"s2","json":{"a":[1]},"order":2}\n'
_COMMIT = b'{"parts":["0",{"part":"1","etag":"x"}],"create":true,"content_type":"text/plain"}'


def odd_extension_request(chance: random.Random) -> tuple[str, bytes]:
    """A method, and a well-formed request to one of them."""
    if chance.random() < 0.5:
        return _odd_question(chance)
    app, version, part = (_often(chance, usual) for usual in ("app", str(chance.randrange(20)), "0"))
    path = f"/ds/{ODD_BUCKET}/streams/transactions/{_quoted(app)}/{_quoted(version)}"
    method = chance.choice(("PUT", "PUT", "POST", "POST", "GET", "DELETE"))
    if method == "PUT":
        path += f"/{_quoted(part)}"
        kind, body = chance.choice(((_NDJSON, _spoiled(chance, _ROW)), (_ARROW, _spoiled(chance, _ROW))))
    else:
        kind, body = "application/json", _spoiled(chance, _COMMIT) if method == "POST" else b""
    return method, request(method, path, f"Content-Type: {kind}", body=body)


def _odd_question(chance: random.Random) -> tuple[str, bytes]:
    method = chance.choice(("GET", "GET", "GET", "HEAD", "POST", "DELETE", "OPTIONS"))
    kind = chance.choice((*_QUESTIONS, f"leases/{_quoted(_odd_value(chance))}"))
    names = chance.sample(_BUCKET_PARAMETERS, chance.choice((0, 1, 1, 2, 4)))
    values = [chance.choice(_PLACES) if chance.random() < 0.4 else _odd_value(chance) for _ in names]
    asked = "&".join(f"{name}={_quoted(value)}" for name, value in zip(names, values, strict=True))
    accept = chance.choice((_NDJSON, _ARROW, "*/*", "text/html", "application/*;q=0, */*;q=0.1"))
    target = f"/ds/{ODD_BUCKET}/streams/{kind}?{asked}".replace("live=sse", "live=no")
    return method, request(method, target, f"Accept: {accept}")


def _often(chance: random.Random, usual: str) -> str:
    return usual if chance.random() < 0.8 else _odd_value(chance)


def _spoiled(chance: random.Random, data: bytes) -> bytes:
    for _ in range(chance.choice((0, 1, 1, 2))):
        at = chance.randrange(len(data) + 1)
        data = data[:at] + chance.choice(JSON_TOKENS) * chance.choice((0, 1, 2)) + data[at + chance.choice((0, 1, 5)) :]
    return data


def _odd_value(chance: random.Random) -> str:
    value = chance.choice(ODD_VALUES)
    if chance.random() < 0.3 and value:
        at = chance.randrange(len(value))
        value = value[:at] + chance.choice(ODD_VALUES) + value[at + chance.choice((0, 1)) :]
    return value


def _quoted(value: str) -> str:
    """As it may stand in a target: whatever is not allowed there is escaped, what is escaped stays as it is."""
    return "".join(chr(byte) if 0x21 <= byte <= 0x7E and byte != 0x23 else f"%{byte:02x}" for byte in value.encode())
