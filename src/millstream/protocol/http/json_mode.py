"""JSON mode (protocol section 7.1): a body is one message, or an array of messages, kept byte for byte."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from ...model.commands import EMPTY_BODY, Body
from ...model.errors import BadRequest
from ...model.json_text import HALF_PAIR, without_half_pairs

MESSAGES_MAX = 1 << 16  # in one append: 64 MiB of tiny ones would take gigabytes, and seconds of everybody's time
_COMMAS_UNSEEN = 1 << 20  # up to here all elements are made first: that costs less than the decoder that stops early
_WHITE_SPACE = b" \t\r\n"
_BETWEEN = b" \t\r\n,"
_value = msgspec.json.Decoder(msgspec.Raw)
_array = msgspec.json.Decoder(list[msgspec.Raw])


def split_body(body: bytes, *, is_bounded: bool = True) -> Body:
    """The messages of a JSON body; a body that is no JSON becomes a fault, for the engine to judge when.

    A server bounds what a client sends; a client takes what its server holds."""
    try:
        # msgspec skips over strings it does not need, and with them over invalid UTF-8.
        if not body.isascii():
            body.decode()
        text = body.strip(_WHITE_SPACE)
        try:
            return _split(text, is_bounded)
        except msgspec.DecodeError:
            if HALF_PAIR.search(text) is None:
                raise
        return _split_with_half_pairs(text, is_bounded)
    except UnicodeDecodeError as error:
        return _fault(f"it is not UTF-8 at byte {error.start}")
    except RecursionError:
        return _fault("it is nested too deeply")
    except msgspec.DecodeError as error:
        return _fault(str(error))


def _split(text: bytes, is_bounded: bool) -> Body:
    if text[:1] != b"[":
        _value.decode(text)
        return Body(text)
    if is_bounded and len(text) > _COMMAS_UNSEEN and _holds_far_too_many(text):
        return _too_many()
    messages = _array.decode(text)
    if is_bounded and len(messages) > MESSAGES_MAX:
        return _too_many()
    if not messages:
        return EMPTY_BODY
    if len(messages) == 1:
        return Body(bytes(messages[0]))
    return Body(b"".join(messages), [len(message) for message in messages])


def flaw_in_value(text: bytes) -> str | None:
    """Why these bytes are not exactly one JSON value, white space around it allowed; None if they are."""
    try:
        if not text.isascii():
            text.decode()
        _value.decode(text if HALF_PAIR.search(text) is None else without_half_pairs(text))
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 at byte {error.start}"
    except RecursionError:
        return "it is nested too deeply"
    except msgspec.DecodeError as error:
        return str(error)
    return None


def _split_with_half_pairs(text: bytes, is_bounded: bool) -> Body:
    """The messages are cut where msgspec finds them in a text of the same lengths."""
    shown = _split(without_half_pairs(text), is_bounded)
    if shown.fault is not None:
        return shown
    messages, at = [], int(text[:1] == b"[")
    for length in shown.lengths or (len(shown.payload),):
        while text[at] in _BETWEEN:
            at += 1
        messages.append(text[at : at + length])
        at += length
    return Body(b"".join(messages), shown.lengths)


def _holds_far_too_many(text: bytes) -> bool:
    """Whether an array with very many commas has too many elements, found out without making them all."""
    if text.count(b",") < _COMMAS_UNSEEN:
        return False
    try:
        _limited_decoder().decode(text)
    except msgspec.ValidationError:
        return True
    return False


@lru_cache(maxsize=1)
def _limited_decoder() -> msgspec.json.Decoder[msgspec.Struct]:
    """Of an array as a struct with so many fields: one element more ends it, where a list would first take them all."""
    fields = [(f"m{index}", msgspec.Raw, msgspec.Raw()) for index in range(MESSAGES_MAX)]
    return msgspec.json.Decoder(msgspec.defstruct("Limited", fields, array_like=True, forbid_unknown_fields=True))


def _too_many() -> Body:
    why = f"The array holds more than {MESSAGES_MAX} messages. Send it in several appends."
    return Body(fault=BadRequest(why, code="too_many_messages"))


def _fault(why: str) -> Body:
    return Body(fault=BadRequest(f"The body is not valid JSON: {why}.", code="invalid_json"))


def join_messages(messages: list[bytes]) -> list[bytes]:
    """The array that a read returns, in pieces."""
    if not messages:
        return [b"[]"]
    return [b"[", b",".join(messages), b"]"]
