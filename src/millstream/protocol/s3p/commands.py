"""The five commands of S3P (section 8) as values, and the options that make them up (section 7)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from ...model.commands import Body
from ...model.errors import BadRequest, TooLarge
from ...model.ids import ZERO_ID, MessageId, parse_id
from .escaping import shown

OPTION_BYTES_MAX = 128  # of one key or value: the longest that means something has 41
OPTIONS_MAX = 64  # keys and values together; a key may come more than once
_DECIMAL = re.compile(rb"[0-9]+")


class Limits(msgspec.Struct, frozen=True):
    """What a server takes (section 11). The defaults are those of the settings."""

    name_bytes_max: int = 256
    append_records_max: int = 1000
    append_bytes_max: int = 1 << 20
    record_bytes_max: int = 1 << 20
    count_default: int = 1000
    count_max: int = 1000
    block_ms_max: int = 10_000


class CreateStream(msgspec.Struct, frozen=True, gc=False):
    name: bytes
    client_ids: bool = False


class AppendRecords(msgspec.Struct, frozen=True, gc=False):
    name: bytes
    body: Body
    first_id: MessageId | None = None


class ReadRecords(msgspec.Struct, frozen=True, gc=False):
    name: bytes
    count: int
    block_ms: int = 0
    after: MessageId = ZERO_ID


class TrimStream(msgspec.Struct, frozen=True, gc=False):
    name: bytes
    until: MessageId


class DeleteStream(msgspec.Struct, frozen=True, gc=False):
    name: bytes


S3pCommand = CreateStream | AppendRecords | ReadRecords | TrimStream | DeleteStream
Options = dict[bytes, bytes]
COMMAND_NAMES: dict[type[S3pCommand], str] = {
    CreateStream: "CREATE",
    AppendRecords: "APPEND",
    ReadRecords: "READ",
    TrimStream: "TRIM",
    DeleteStream: "DELETE",
}

# Every command: how many elements it has, and its options.
ELEMENTS = {b"CREATE": 3, b"APPEND": 4, b"READ": 3, b"TRIM": 3, b"DELETE": 3}
OPTIONS: dict[bytes, frozenset[bytes]] = {
    b"CREATE": frozenset({b"TIMESTAMP_STRATEGY"}),
    b"APPEND": frozenset({b"TIMESTAMP"}),
    b"READ": frozenset({b"COUNT", b"BLOCK", b"MIN_TIMESTAMP"}),
    b"TRIM": frozenset({b"UNTIL"}),
    b"DELETE": frozenset(),
}


def known_options(command: bytes, items: Sequence[bytes]) -> Options:
    """The options by their key in upper case; of a repeated key, the last value."""
    allowed = OPTIONS[command]
    options: Options = {}
    for at in range(0, len(items), 2):
        key = items[at].upper()
        if key not in allowed:
            raise BadRequest(f"unknown option {shown(items[at])}")
        options[key] = items[at + 1]
    return options


def first_id_of(options: Options) -> MessageId | None:
    """What an APPEND says about its ids."""
    if not options:
        return None
    first_id = _id(b"TIMESTAMP", options[b"TIMESTAMP"])
    if first_id == ZERO_ID:
        raise BadRequest("TIMESTAMP must be above 0-0, which comes before every record")
    return first_id


def create_stream(name: bytes, options: Options, limits: Limits) -> CreateStream:
    strategy = options.get(b"TIMESTAMP_STRATEGY", b"server")
    if strategy.lower() not in (b"server", b"client"):
        raise BadRequest(f"TIMESTAMP_STRATEGY must be server or client, not {shown(strategy)}")
    return CreateStream(name, strategy.lower() == b"client")


def read_records(name: bytes, options: Options, limits: Limits) -> ReadRecords:
    count = _number(options, b"COUNT", limits.count_default)
    block_ms = _number(options, b"BLOCK", 0)
    after = _id(b"MIN_TIMESTAMP", options[b"MIN_TIMESTAMP"]) if b"MIN_TIMESTAMP" in options else ZERO_ID
    if count < 1:
        raise BadRequest("COUNT must be at least 1")
    if count > limits.count_max:
        raise TooLarge(f"COUNT may be {limits.count_max} at most")
    if block_ms > limits.block_ms_max:
        raise TooLarge(f"BLOCK may be {limits.block_ms_max} ms at most")
    return ReadRecords(name, count, block_ms, after)


def trim_stream(name: bytes, options: Options, limits: Limits) -> TrimStream:
    if b"UNTIL" not in options:
        raise BadRequest("TRIM needs the option UNTIL")
    return TrimStream(name, _id(b"UNTIL", options[b"UNTIL"]))


def delete_stream(name: bytes, options: Options, limits: Limits) -> DeleteStream:
    return DeleteStream(name)


# APPEND is not here: it has records besides options, and `decoder` makes it.
MAKERS: dict[bytes, Callable[[bytes, Options, Limits], S3pCommand]] = {
    b"CREATE": create_stream,
    b"READ": read_records,
    b"TRIM": trim_stream,
    b"DELETE": delete_stream,
}


def _number(options: Options, key: bytes, default: int) -> int:
    text = options.get(key)
    if text is None:
        return default
    if not _DECIMAL.fullmatch(text):
        raise BadRequest(f"{key.decode()} must be a decimal number, not {shown(text)}")
    return int(text)


def _id(key: bytes, text: bytes) -> MessageId:
    try:
        return parse_id(text)
    except BadRequest:
        raise BadRequest(
            f"{key.decode()} must be <ms>-<seq>, two decimal numbers of 64 bits, not {shown(text)}"
        ) from None
