"""Every setting of the server, once: its name, default, range and meaning.

`Settings` is the table. The checks below, `millstream settings`, the help and the documentation read it
through `KEYS`, so a new setting is one new line there. Values come from defaults < TOML file < environment
< flags. Every value of every source is checked, also one that a later source replaces: a mistake that is
hidden today would otherwise surface on the day the other source goes away.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar, cast

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

ENVIRONMENT_PREFIX: Final = "MILLSTREAM_"

# Tables of later versions: a file written for those must not half work here.
TABLES_NOT_BUILT: Final = ("cold", "cluster", "s3p")

# Keys that configurations of comparable servers carry and that Millstream answers in another way.
REFUSED: Final = {
    "hot_payload_backend": "the hot tail is always kept in memory; bound it with hot_bytes_max instead",
    "write_only_leader": "a node always serves reads where they arrive; leave the key out",
}


class SettingsError(Exception):
    """A setting that cannot be used, in one sentence: its key, its source and what is allowed."""


class Kind(StrEnum):
    """How the value of a setting is written."""

    NAME = "name"
    CHOICE = "choice"
    LISTEN = "address to listen on"
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
        return ENVIRONMENT_PREFIX + self.name.upper()

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


def _key(kind: Kind, default: T, description: str, **limits: Any) -> T:
    """Declare one setting. The return type is that of the value, which is what the dataclass makes of it."""
    details = {"kind": kind, "description": description, **limits}
    declared: T = field(default=default, metadata=details)
    return declared


def _count(default: int, minimum: int, maximum: int, description: str) -> int:
    return _key(Kind.COUNT, default, description, minimum=minimum, maximum=maximum)


def _seconds(default: float, minimum: float, maximum: float, description: str) -> float:
    return _key(Kind.SECONDS, default, description, minimum=minimum, maximum=maximum)


def _size(default: int, minimum: int, maximum: int, description: str) -> int:
    return _key(Kind.SIZE, default, description, minimum=minimum, maximum=maximum)


def _choice(choices: tuple[str, ...], default: str, description: str) -> str:
    return _key(Kind.CHOICE, default, description, choices=choices)


def _folder(default: str, description: str) -> Path:
    return _key(Kind.FOLDER, Path(default), description)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one server. `load_settings` checks them; a bare `Settings()` is the defaults."""

    # Who and where
    version: int = _count(1, 1, 1, "version of the configuration format")
    listen: str = _key(Kind.LISTEN, "127.0.0.1:4437", "address that serves HTTP; port 0 takes a free one")
    advertise: str = _key(Kind.ADDRESS, "", "address other nodes reach this one at; a single node ignores it")
    data_dir: Path = _folder("data", "folder that holds everything stored, made if missing")
    node_id: str = _key(Kind.NAME, "millstream", "name of this node in logs and metrics")
    # Who may talk to it
    insecure: bool = _key(Kind.SWITCH, False, "serve other machines although there is no authentication")
    allowed_hosts: tuple[str, ...] = _key(Kind.HOSTS, (), "Host headers served besides loopback and listen")
    cors_origins: tuple[str, ...] = _key(Kind.ORIGINS, (), "web origins allowed besides loopback; * is any")
    # Requests
    head_bytes_max: int = _size(32 * KIB, KIB, MIB, "largest request line and headers together")
    append_bytes_max: int = _size(64 * MIB, KIB, 4 * GIB, "largest body of one append; above it 413")
    snapshot_bytes_max: int = _size(128 * MIB, KIB, 64 * GIB, "largest snapshot; above it 413")
    inflight_bytes_max: int = _size(256 * MIB, KIB, TIB, "all bodies in flight together; above it 503")
    connections_max: int = _count(20_000, 1, 1_000_000, "open connections; above it new ones are refused")
    idle_timeout_s: float = _seconds(75.0, 0.05, 86_400, "close a connection that sent nothing for so long")
    drain_timeout_s: float = _seconds(30.0, 0.05, 3_600, "close a client that takes no answer for so long")
    stop_timeout_s: float = _seconds(10.0, 0.0, 3_600, "time that open requests get to finish at shutdown")
    # Reads
    long_poll_ms: int = _count(3_000, 1, 3_600_000, "wait of a long-poll when the client does not say")
    long_poll_ms_max: int = _count(60_000, 1, 3_600_000, "longest wait a client may ask for by timeout_ms")
    sse_heartbeat_s: float = _seconds(15.0, 0.05, 3_600, "time between comments on a quiet SSE connection")
    sse_max_s: float = _seconds(60.0, 0.05, 86_400, "age at which an SSE connection is closed to be reopened")
    read_bytes_max: int = _size(4 * MIB, 256, GIB, "most payload in one catch-up answer")
    # Streams
    ttl_renewal: bool = _key(Kind.SWITCH, True, "use renews a stream's TTL; false counts from creation")
    producers_max: int = _count(10_000, 1, 10_000_000, "producers one stream remembers; more get 429")
    # Transactions
    staged_part_bytes_max: int = _size(4 * GIB, KIB, TIB, "largest part of a transaction; above it 413")
    staged_bytes_max: int = _size(64 * GIB, KIB, 1024 * TIB, "all staged parts together; above it 503")
    staged_ttl_s: float = _seconds(86_400.0, 0.05, 604_800, "time after which a staged part is dropped")
    transaction_bytes_max: int = _size(4 * GIB, KIB, TIB, "messages of one transaction together; above it 413")
    transaction_apps_max: int = _count(1_000, 1, 100_000, "applications one bucket remembers; more get 429")
    # Journal
    journal_file_bytes: int = _size(64 * MIB, 64 * KIB, 4 * GIB, "size at which the journal starts a new file")
    batch_bytes_max: int = _size(MIB, 4 * KIB, 64 * MIB, "most bytes in one group commit")
    part_bytes: int = _size(512 * KIB, KIB, 64 * MIB, "bodies above this travel as parts of this size")
    # Checkpoints and memory
    checkpoint_bytes: int = _size(64 * MIB, KIB, TIB, "journal bytes after which a checkpoint is due")
    checkpoint_records: int = _count(200_000, 1, 10**9, "journal records after which a checkpoint is due")
    checkpoint_age_s: float = _seconds(30.0, 0.05, 86_400, "age of unsaved changes that makes a checkpoint due")
    retention_every_s: float = _seconds(60.0, 0.05, 86_400, "pause between two sweeps of buckets with a retention")
    hot_bytes_max: int = _size(256 * MIB, KIB, TIB, "payload kept in memory before it goes to segments")
    hot_streams_max: int = _count(150_000, 1, 10**9, "streams kept in memory; idle ones leave first")
    # Segments and disk
    block_bytes: int = _size(128 * KIB, KIB, 16 * MIB, "payload in one segment block")
    merge_segments_min: int = _count(8, 2, 10_000, "small segments that make a merge worthwhile")
    low_space_bytes: int = _size(256 * MIB, 0, TIB, "free disk space below which writes are refused")
    # Archive: feeds and bulk reads
    archive_age_s: float = _seconds(86_400.0, 0.0, 10**9, "how long feeds can go back; older facts leave the archive")
    archive_bytes_max: int = _size(8 * GIB, 0, 1024 * TIB, "disk space of the archive; the oldest facts leave first")
    lease_s: float = _seconds(300.0, 1.0, 86_400, "how long a read plan keeps its objects unless it is renewed")
    # Logs
    log_level: str = _choice(("debug", "info", "warning", "error"), "info", "how much is logged")
    log_format: str = _choice(("text", "json"), "text", "how a log line is written")

    @property
    def address(self) -> Address:
        return parse_address(self.listen)


KEYS: Final[Mapping[str, Key]] = {
    declared.name: Key(name=declared.name, default=declared.default, **declared.metadata)
    for declared in fields(Settings)
}


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


def _plain_from_text(kind: Kind, text: str) -> object:
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
    elif key.kind is Kind.LISTEN or (key.kind is Kind.ADDRESS and value):
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

_CHECKED: Final[Mapping[Kind, Callable[[Key, object], object]]] = {
    Kind.NAME: _checked_text,
    Kind.CHOICE: _checked_text,
    Kind.LISTEN: _checked_text,
    Kind.ADDRESS: _checked_text,
    Kind.FOLDER: _checked_folder,
    Kind.HOSTS: _checked_list,
    Kind.ORIGINS: _checked_list,
    Kind.SWITCH: _checked_switch,
    Kind.COUNT: _checked_number,
    Kind.SECONDS: _checked_number,
    Kind.SIZE: _checked_size,
}


# --- the sources, weakest first --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Given:
    """A checked value and where it was found, in words."""

    value: object
    where: str


def _read(name: str, value: object, where: str, *, may_be_text: bool) -> _Given:
    key = _known_key(name, where)
    try:
        plain = _plain_from_text(key.kind, value) if may_be_text and isinstance(value, str) else value
        return _Given(_CHECKED[key.kind](key, plain), where)
    except (ValueError, KeyError):
        shown = f'"{value}"' if isinstance(value, str) else value
        raise SettingsError(f"{name} ({where}) cannot be {shown}; use {key.allowed()}") from None


def _known_key(name: str, where: str) -> Key:
    if name in KEYS:
        return KEYS[name]
    table = re.split(r"\.|__", name)[0]
    if table in TABLES_NOT_BUILT:
        raise SettingsError(f"{name} ({where}) is not available in this version; remove the table [{table}]")
    if name in REFUSED:
        raise SettingsError(f"{name} ({where}) is not a setting of Millstream: {REFUSED[name]}")
    close = difflib.get_close_matches(name, KEYS, n=1)
    hint = f"did you mean {close[0]}?" if close else "'millstream settings' lists them all"
    raise SettingsError(f"{name} ({where}) is not a setting; {hint}")


def _from_file(config: Path) -> Iterator[tuple[str, _Given]]:
    where = f"in the file {config}"
    document = _parsed_file(config)
    # Files for comparable servers keep these keys in [server]; both places mean the same.
    server = document.pop("server", {})
    if not isinstance(server, dict):
        raise SettingsError(f"server ({where}) cannot be {server}; use a table [server] or top-level keys")
    for name in server.keys() & document.keys():
        raise SettingsError(f"{name} ({where}) is given twice, in [server] and at the top; use one of them")
    for name, value in (*document.items(), *server.items()):
        yield name, _read(name, value, where, may_be_text=False)


def _parsed_file(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read the file {config} (--config): {error.strerror}") from None
    except ValueError as error:  # also what tomllib raises, and wrong UTF-8
        raise SettingsError(f"the file {config} (--config) is not valid TOML: {error}") from None


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
    for variable in sorted(environ):
        if variable.startswith(ENVIRONMENT_PREFIX):
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            where = f"in the environment variable {variable}"
            yield name, _read(name, environ[variable], where, may_be_text=True)


def _from_flags(flags: Mapping[str, object]) -> Iterator[tuple[str, _Given]]:
    for name, value in flags.items():
        if value is not None:  # an option that was not used
            yield name, _read(name, value, "on the command line", may_be_text=True)


def load_settings(config: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Settings:
    """Read and check all sources. Raises SettingsError at the first thing that is wrong.

    A flag whose value is None counts as not given. A relative `data_dir` is relative to the folder the
    server is started in, whichever source it came from.
    """
    given = dict(_from_file(config)) if config is not None else {}
    given.update(_from_environment(environ))
    given.update(_from_flags(flags))
    settings = Settings(**{name: cast(Any, found.value) for name, found in given.items()})
    _check_together(settings, {name: found.where for name, found in given.items()})
    return settings


def _check_together(settings: Settings, where: Mapping[str, str]) -> None:
    """The rules that need more than one setting."""
    if not settings.address.is_loopback and not settings.insecure:
        raise SettingsError(
            f"{_named(settings, 'listen', where)} can be reached from other machines and there is no "
            "authentication yet; use a loopback address such as 127.0.0.1:4437, or --insecure "
            "(insecure = true) on a network where everyone may read and write"
        )
    for lower, upper in (("long_poll_ms", "long_poll_ms_max"), ("append_bytes_max", "inflight_bytes_max")):
        if getattr(settings, lower) > getattr(settings, upper):
            raise SettingsError(
                f"{_named(settings, lower, where)} must not be above {_named(settings, upper, where)}; "
                f"lower {lower} or raise {upper}"
            )


def _named(settings: Settings, name: str, where: Mapping[str, str]) -> str:
    return f"{name} = {KEYS[name].shown(getattr(settings, name))} ({where.get(name, 'the default')})"
