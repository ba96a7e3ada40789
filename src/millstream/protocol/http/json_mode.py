"""JSON mode (protocol section 7.1): a body is one message, or an array of messages, kept byte for byte."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ...model.commands import EMPTY_BODY, Body
from ...model.errors import BadRequest
from ...model.json_text import HALF_PAIR, lenient

_WHITE_SPACE = b" \t\r\n"
_value = msgspec.json.Decoder(msgspec.Raw)
_array = msgspec.json.Decoder(list[msgspec.Raw])


def split_body(body: bytes) -> Body:
    """The messages of a JSON body; a body that is no JSON becomes a fault, for the engine to judge when."""
    try:
        # msgspec skips over strings it does not need, and with them over invalid UTF-8.
        if not body.isascii():
            body.decode()
        text = body.strip(_WHITE_SPACE)
        if text[:1] != b"[":
            _value.decode(text)
            return Body(text)
        messages = _array.decode(text)
    except UnicodeDecodeError as error:
        return _fault(f"it is not UTF-8 at byte {error.start}")
    except RecursionError:
        return _fault("it is nested too deeply")
    except msgspec.DecodeError as error:
        if HALF_PAIR.search(body) is None:
            return _fault(str(error))
        return _split_with_half_pairs(body.decode())
    if not messages:
        return EMPTY_BODY
    if len(messages) == 1:
        return Body(bytes(messages[0]))
    return Body(b"".join(messages), [len(message) for message in messages])


def flaw_in_value(text: bytes) -> str | None:
    """Why these bytes are not exactly one JSON value, white space around it allowed; None if they are."""
    body = split_body(text)
    if body.fault is not None:
        return body.fault.message.removeprefix("The body is not valid JSON: ").removesuffix(".")
    return None


def _split_with_half_pairs(text: str) -> Body:
    """RFC 8259 allows an escaped half of a surrogate pair, as JavaScript makes it of a string cut inside an emoji;
    msgspec does not. The standard library does, at a tenth of the speed."""
    try:
        start = _skip(text, 0)
        if text[start : start + 1] != "[":
            _, end = lenient.raw_decode(text, start)
            return Body(text[start:end].encode()) if _skip(text, end) == len(text) else _fault("it does not end there")
        lenient.decode(text)
        messages = list(_elements(text, start + 1))
    except (ValueError, RecursionError) as error:
        return _fault(str(error))
    if len(messages) == 1:
        return Body(messages[0])
    return Body(b"".join(messages), [len(message) for message in messages])


def _elements(text: str, at: int) -> Iterator[bytes]:
    """The elements of an array that is known to be valid and not empty."""
    while True:
        at = _skip(text, at)
        _, end = lenient.raw_decode(text, at)
        yield text[at:end].encode()
        at = _skip(text, end)
        if text[at] == "]":
            return
        at += 1


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _fault(why: str) -> Body:
    return Body(fault=BadRequest(f"The body is not valid JSON: {why}.", code="invalid_json"))


def join_messages(messages: list[bytes]) -> list[bytes]:
    """The array that a read returns, in pieces."""
    if not messages:
        return [b"[]"]
    return [b"[", b",".join(messages), b"]"]
