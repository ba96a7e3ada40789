"""Whether bytes are JSON (RFC 8259). Nothing is built from them: messages are kept byte for byte."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_value = msgspec.json.Decoder(msgspec.Raw)
_array = msgspec.json.Decoder(list[msgspec.Raw])


def without_half_pairs(text: bytes) -> bytes:
    """RFC 8259 allows an escaped half of a surrogate pair, as JavaScript makes it of a string cut inside an emoji;
    msgspec does not. So it is shown another escape of the same length: what it says of that is true of the text."""
    return HALF_PAIR.sub(rb"\\u0041", text)


def fault_in(message: bytes) -> str | None:
    """Why these bytes are not one JSON value; None if they are."""
    try:
        # msgspec skips over strings it does not need, and with them over invalid UTF-8.
        if not message.isascii():
            message.decode()
        _decode(message)
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 at byte {error.start}"
    except RecursionError:
        return "it is nested too deeply"
    except msgspec.DecodeError as error:
        return str(error)
    return None


def _decode(message: bytes) -> None:
    try:
        _value.decode(message)
    except msgspec.DecodeError:
        if HALF_PAIR.search(message) is None:
            raise
        _value.decode(without_half_pairs(message))


def first_fault(messages: Sequence[bytes]) -> tuple[int, str] | None:
    """Which is the first message that is not JSON, and why. Many good ones are checked in a few calls."""
    if _are_elements(messages):
        return None
    for index, message in enumerate(messages):
        fault = fault_in(message)
        if fault is not None:
            return index, fault
    return None


def _are_elements(messages: Sequence[bytes]) -> bool:
    """Whether the messages, put between commas, are the elements of an array: then each is JSON.

    An array of as many elements would not do: `1,2` and `[3` and `4]` make three as well. Where all lengths agree, an
    element and a message are the same bytes.
    """
    text = b"[" + b",".join(messages) + b"]"
    try:
        if not text.isascii():
            text.decode()
        elements = _array.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return list(map(len, elements)) == list(map(len, messages))
