"""How options are written: each parser takes the text and returns the value, or says what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TypeVar
from urllib.parse import urlsplit

from .errors import BadOption

_T = TypeVar("_T")
_SIZE = re.compile(r"([0-9]{1,18})\s*([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_COUNT = re.compile(r"[0-9]{1,18}", re.ASCII)
_MILLISECONDS = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_APP = re.compile(r"[A-Za-z0-9._~:-]{1,128}", re.ASCII)


class OptionText:
    """Options as Spark hands them over: text under names in any case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    def refuse_unknown(self, known: tuple[str, ...], elsewhere: Mapping[str, str]) -> None:
        """Names outside `known` are refused; `elsewhere` says of some what is wrong with them here."""
        by_key = {name.lower(): name for name in known}
        hints = {name.lower(): (name, hint) for name, hint in elsewhere.items()}
        for key in self._options:
            if key in by_key:
                continue
            if key in hints:
                name, hint = hints[key]
                raise BadOption(f"The option {name} {hint}")
            close = get_close_matches(key, by_key, n=1)
            meant = f" Did you mean {by_key[close[0]]}?" if close else ""
            raise BadOption(f"There is no option {key}.{meant} Allowed are: {', '.join(known)}.")

    def has(self, name: str) -> bool:
        return name.lower() in self._options

    def refuse_together(self, *names: str) -> None:
        given = [name for name in names if self.has(name)]
        if len(given) > 1:
            raise BadOption(f"The options {' and '.join(given)} exclude each other. Use one of {', '.join(names)}.")

    def required(self, name: str, parse: Callable[[str, str], _T], example: str) -> _T:
        if not self.has(name):
            raise BadOption(f"The option {name} is missing. It looks like {example}.")
        return parse(name, self._options[name.lower()])

    def optional(self, name: str, parse: Callable[[str, str], _T], default: _T) -> _T:
        return parse(name, self._options[name.lower()]) if self.has(name) else default


def refusal(name: str, text: str, allowed: str) -> BadOption:
    return BadOption(f"The option {name} is {text!r}. Allowed is {allowed}.")


def words(name: str, text: str) -> str:
    if not text.strip():
        raise refusal(name, text, "some text")
    return text.strip()


def server_url(name: str, text: str) -> str:
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise refusal(name, text, "the URL of a server, such as http://127.0.0.1:4437")
    return text.strip().rstrip("/")


def truth(name: str, text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise refusal(name, text, "true or false")
    return lowered == "true"


def count(name: str, text: str) -> int:
    if not _COUNT.fullmatch(text.strip()) or int(text) < 1:
        raise refusal(name, text, "a whole number from 1 on")
    return int(text)


def version(name: str, text: str) -> int:
    if not _COUNT.fullmatch(text.strip()):
        raise refusal(name, text, "a whole number from 0 on")
    return int(text)


def size(name: str, text: str) -> int:
    matched = _SIZE.fullmatch(text.strip())
    if matched is None or int(matched[1]) < 1:
        raise refusal(name, text, "a number of bytes from 1 on, or such as 64m or 64MiB")
    return int(matched[1]) * _UNITS[matched[2].lower()]


def choice(*allowed: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        lowered = text.strip().lower()
        if lowered not in allowed:
            raise refusal(name, text, ", ".join(allowed[:-1]) + f" or {allowed[-1]}")
        return lowered

    return parse


def milliseconds(name: str, text: str) -> int:
    """A time as milliseconds since 1970."""
    text = text.strip()
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise refusal(name, text, "milliseconds since 1970, or a time such as 2026-11-15T05:30:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def stream_names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise refusal(name, text, "a list of stream names with commas between them")
    return names


def pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise refusal(name, text, f"a regular expression that matches whole stream names ({error})") from None
    return text


def app_name(name: str, text: str) -> str:
    if not _APP.fullmatch(text) or text in (".", ".."):
        raise refusal(name, text, "1 to 128 characters out of A-Z a-z 0-9 . _ ~ : -")
    return text


def offsets_by_stream(name: str, text: str, allowed: str) -> dict[str, int]:
    """A JSON object of streams and offsets, which may be numbers or the text that the server returns."""
    try:
        found = json.loads(text)
    except ValueError:
        raise refusal(name, text, allowed) from None
    if not isinstance(found, dict) or not found:
        raise refusal(name, text, allowed)
    offsets: dict[str, int] = {}
    for stream, offset in found.items():
        digits = str(offset) if isinstance(offset, int | str) and not isinstance(offset, bool) else ""
        if not re.fullmatch(r"[0-9]{1,20}", digits, re.ASCII):
            raise refusal(name, text, f"{allowed}; the offset of {stream!r} is not a number from 0 on")
        offsets[stream] = int(digits)
    return offsets
