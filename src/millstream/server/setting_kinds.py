"""How settings are declared: the kinds there are, what is allowed for each, and how a value is checked.

`settings` is the table that is written with these.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar, cast

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

ENVIRONMENT_PREFIX: Final = "MILLSTREAM_"


class Kind(StrEnum):
    """How the value of a setting is written."""

    NAME = "name"
    CHOICE = "choice"
    LISTEN = "address to listen on"
    LISTEN_OR_NONE = "address to listen on, or none"
    ADDRESS = "address"
    FOLDER = "folder"
    HOSTS = "list of host names"
    ORIGINS = "list of origins"
    SWITCH = "switch"
    COUNT = "whole number"
    SECONDS = "seconds"
    SIZE = "size"


@dataclass(frozen=True, slots=True)
class Key:
    """What is known about one setting besides its value."""

    name: str
    kind: Kind
    default: Any
    description: str
    minimum: float = 0
    maximum: float = 0
    choices: tuple[str, ...] = ()

    @property
    def environment_name(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper().replace(".", "__")

    def allowed(self) -> str:
        """What may be written, as the end of a sentence that starts with "use"."""
        return _ALLOWED[self.kind](self)

    def shown(self, value: object) -> str:
        """A value as one would write it into the environment."""
        if self.kind is Kind.SIZE:
            return format_size(cast(int, value))
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a socket listens or can be reached."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `HOST:PORT` or `[IPV6]:PORT`; ValueError says what is wrong with it."""
    matched = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", text)
    if matched is None:
        raise ValueError("it is not HOST:PORT")
    bracketed, plain, port = matched.groups()
    if bracketed is not None:
        ipaddress.IPv6Address(bracketed)
    if int(port) > 65535:
        raise ValueError("the port is above 65535")
    return Address(bracketed or plain, int(port))


T = TypeVar("T")


def setting(kind: Kind, default: T, description: str, **limits: Any) -> T:
    """Declare one setting. The return type is that of the value, which is what the dataclass makes of it."""
    details = {"kind": kind, "description": description, **limits}
    declared: T = field(default=default, metadata=details)
    return declared


def count(default: int, minimum: int, maximum: int, description: str) -> int:
    return setting(Kind.COUNT, default, description, minimum=minimum, maximum=maximum)


def seconds(default: float, minimum: float, maximum: float, description: str) -> float:
    return setting(Kind.SECONDS, default, description, minimum=minimum, maximum=maximum)


def size(default: int, minimum: int, maximum: int, description: str) -> int:
    return setting(Kind.SIZE, default, description, minimum=minimum, maximum=maximum)


def choice(choices: tuple[str, ...], default: str, description: str) -> str:
    return setting(Kind.CHOICE, default, description, choices=choices)


def folder(default: str, description: str) -> Path:
    return setting(Kind.FOLDER, Path(default), description)


# --- sizes -----------------------------------------------------------------------------------------------

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}


def parse_size(text: str) -> int:
    """Read `65536`, `64KiB` (powers of 1024) or `64kB` (powers of 1000)."""
    matched = re.fullmatch(r"([0-9]{1,18}) ?([A-Za-z]{0,3})", text.strip())
    if matched is None or matched[2].lower() not in _UNITS:
        raise ValueError("it is not a size")
    return int(matched[1]) * _UNITS[matched[2].lower()]


def format_size(size: int) -> str:
    """Write a size with the largest unit that leaves it whole."""
    for unit, scale in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size and size % scale == 0:
            return f"{size // scale}{unit}"
    return str(size)


# --- what is allowed, in words ---------------------------------------------------------------------------


def _allowed_choice(key: Key) -> str:
    return "one of " + ", ".join(key.choices)


def _allowed_count(key: Key) -> str:
    if key.minimum == key.maximum:
        return f"{key.minimum}, the only one there is"
    return f"a whole number from {key.minimum} to {key.maximum}"


def _allowed_seconds(key: Key) -> str:
    return f"a number of seconds from {key.minimum:g} to {key.maximum:g}"


def _allowed_size(key: Key) -> str:
    lowest, highest = format_size(int(key.minimum)), format_size(int(key.maximum))
    return f"a size from {lowest} to {highest}, as a number of bytes or such as 64MiB"


_ALLOWED: Final[Mapping[Kind, Callable[[Key], str]]] = {
    Kind.NAME: lambda key: "1 to 64 letters, digits, dots, dashes and underscores",
    Kind.CHOICE: _allowed_choice,
    Kind.LISTEN: lambda key: "HOST:PORT such as 127.0.0.1:4437 or [::1]:4437",
    Kind.LISTEN_OR_NONE: lambda key: "HOST:PORT such as 127.0.0.1:7500, or none",
    Kind.ADDRESS: lambda key: "HOST:PORT such as 10.0.0.1:4437, or nothing",
    Kind.FOLDER: lambda key: "the path of a folder",
    Kind.HOSTS: lambda key: "host names without a port, separated by commas (in a file: a list of strings)",
    Kind.ORIGINS: lambda key: "* or origins such as https://app.example, separated by commas (in a file: a list)",
    Kind.SWITCH: lambda key: "true or false",
    Kind.COUNT: _allowed_count,
    Kind.SECONDS: _allowed_seconds,
    Kind.SIZE: _allowed_size,
}


# --- from text, then from plain values to checked ones ---------------------------------------------------

_SWITCH_WORDS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def plain_from_text(kind: Kind, text: str) -> object:
    """The environment and `--set` know only text; give it the type that TOML would have."""
    text = text.strip()
    if kind is Kind.SWITCH:
        return _SWITCH_WORDS[text.lower()]
    if kind is Kind.COUNT:
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text
    if kind is Kind.SECONDS:
        return float(text)
    if kind in (Kind.HOSTS, Kind.ORIGINS):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


def _checked_number(key: Key, value: object) -> int | float:
    wanted = (int, float) if key.kind is Kind.SECONDS else (int,)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise ValueError
    _require(key.minimum <= value <= key.maximum)
    return float(value) if key.kind is Kind.SECONDS else value


def _checked_size(key: Key, value: object) -> int:
    return int(_checked_number(key, parse_size(value) if isinstance(value, str) else value))


def _checked_switch(key: Key, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


# How an address is left out, where that is possible.
_ABSENT: Final = {Kind.ADDRESS: "", Kind.LISTEN_OR_NONE: "none"}


def _checked_text(key: Key, value: object) -> str:
    # A number is a fine name for a node, and other servers' files have one there.
    if key.kind is Kind.NAME and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError
    if key.kind is Kind.CHOICE:
        _require(value in key.choices)
    elif key.kind is Kind.NAME:
        _require(re.fullmatch(r"[A-Za-z0-9._-]{1,64}", value) is not None)
    elif value != _ABSENT.get(key.kind):
        parse_address(value)
    return value


def _checked_folder(key: Key, value: object) -> Path:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or "\0" in os.fspath(value):
        raise ValueError
    return Path(value)


def _checked_list(key: Key, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError
    pattern = _HOST if key.kind is Kind.HOSTS else _ORIGIN
    for item in value:
        _require(isinstance(item, str) and pattern.fullmatch(item) is not None)
    return tuple(item.lower() for item in value)


_HOST: Final = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+")
_ORIGIN: Final = re.compile(r"\*|[A-Za-z][A-Za-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")

CHECKED: Final[Mapping[Kind, Callable[[Key, object], object]]] = {
    Kind.NAME: _checked_text,
    Kind.CHOICE: _checked_text,
    Kind.LISTEN: _checked_text,
    Kind.LISTEN_OR_NONE: _checked_text,
    Kind.ADDRESS: _checked_text,
    Kind.FOLDER: _checked_folder,
    Kind.HOSTS: _checked_list,
    Kind.ORIGINS: _checked_list,
    Kind.SWITCH: _checked_switch,
    Kind.COUNT: _checked_number,
    Kind.SECONDS: _checked_number,
    Kind.SIZE: _checked_size,
}
