"""JSON mode (protocol section 7.1): a body is one message, or an array of messages, kept byte for byte."""

from __future__ import annotations

import msgspec

from ...model.commands import EMPTY_BODY, Body
from ...model.errors import BadRequest

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
        return _fault(str(error))
    if not messages:
        return EMPTY_BODY
    if len(messages) == 1:
        return Body(bytes(messages[0]))
    return Body(b"".join(messages), [len(message) for message in messages])


def _fault(why: str) -> Body:
    return Body(fault=BadRequest(f"The body is not valid JSON: {why}.", code="invalid_json"))


def join_messages(messages: list[bytes]) -> list[bytes]:
    """The array that a read returns, in pieces."""
    if not messages:
        return [b"[]"]
    return [b"[", b",".join(messages), b"]"]
