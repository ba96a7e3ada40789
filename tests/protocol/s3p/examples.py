"""Every example of the specification of S3P v0.1.0 (section 8), line by line as it stands there."""

from __future__ import annotations

from typing import NamedTuple


class Example(NamedTuple):
    name: str
    request: bytes
    reply: bytes


def wire(text: str) -> bytes:
    """Lines as the specification prints them, as they go over the wire."""
    return text.strip("\n").replace("\n", "\r\n").encode() + b"\r\n"


CREATE_CLIENT = Example(
    "create with client timestamps",
    wire("*3\n$6\nCREATE\n$6\norders\n*2\n$18\nTIMESTAMP_STRATEGY\n$6\nclient"),
    wire("+OK"),
)
CREATE_UNKNOWN_OPTION = Example(
    "create with unknown option",
    wire("*3\n$6\nCREATE\n$6\norders\n*2\n$8\nMAX_SIZE\n$4\n1000"),
    wire("-ERR_BAD_FORMAT unknown option MAX_SIZE"),
)
APPEND_SERVER = Example(
    "server-generated timestamp",
    wire("*4\n$6\nAPPEND\n$6\norders\n*0\n*2\n$5\nhello\n$5\nworld"),
    wire("$15\n1700000001234-0"),
)
APPEND_CLIENT = Example(
    "client-provided timestamp",
    wire("*4\n$6\nAPPEND\n$6\norders\n*2\n$9\nTIMESTAMP\n$15\n1700000001235-0\n*1\n$7\npayload"),
    wire("$15\n1700000001235-0"),
)
READ = Example(
    "non-blocking read",
    wire("*3\n$4\nREAD\n$6\norders\n*4\n$5\nCOUNT\n$2\n10\n$13\nMIN_TIMESTAMP\n$3\n0-0"),
    wire("*4\n$15\n1700000001234-0\n$5\nhello\n$15\n1700000001235-0\n$5\nworld"),
)
TRIM = Example(
    "trim",
    wire("*3\n$4\nTRIM\n$6\norders\n*2\n$5\nUNTIL\n$15\n1700000001235-0"),
    wire("+OK"),
)
DELETE = Example("delete", wire("*3\n$6\nDELETE\n$6\norders\n*0"), wire("+OK"))

EXAMPLES = (CREATE_CLIENT, CREATE_UNKNOWN_OPTION, APPEND_SERVER, APPEND_CLIENT, READ, TRIM, DELETE)
