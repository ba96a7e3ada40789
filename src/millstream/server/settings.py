"""Every setting of the server, once: its name, default, range and meaning.

`Settings` is the table. The checks below, `millstream settings`, the help and the documentation read it
through `KEYS`, so a new setting is one new line there. Values come from defaults < TOML file < environment
< flags. Every value of every source is checked, also one that a later source replaces: a mistake that is
hidden today would otherwise surface on the day the other source goes away.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, cast

from .setting_kinds import CHECKED, ENVIRONMENT_PREFIX, GIB, KIB, MIB, TIB, Address, Key, Kind, parse_address
from .setting_kinds import choice as _choice
from .setting_kinds import count as _count
from .setting_kinds import folder as _folder
from .setting_kinds import plain_from_text as _plain_from_text
from .setting_kinds import seconds as _seconds
from .setting_kinds import setting as _key
from .setting_kinds import size as _size

# Variables of the other commands, which a shell may carry when it starts a server.
NOT_SETTINGS: Final = frozenset({"MILLSTREAM_URL", "MILLSTREAM_TOKEN", "MILLSTREAM_S3P_SERVER"})

# Tables of later versions: a file written for those must not half work here.
TABLES_NOT_BUILT: Final = ("cold", "cluster")

# Tables there are: their keys are written `table.key`, in the environment MILLSTREAM_TABLE__KEY.
TABLES: Final = ("s3p",)

# Keys that configurations of comparable servers carry and that Millstream answers in another way.
REFUSED: Final = {
    "hot_payload_backend": "the hot tail is always kept in memory; bound it with hot_bytes_max instead",
    "write_only_leader": "a node always serves reads where they arrive; leave the key out",
}


class SettingsError(Exception):
    """A setting that cannot be used, in one sentence: its key, its source and what is allowed."""


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
    read_bytes_max: int = _size(0, 0, TIB, "most payload in one catch-up answer; 0 for all there is")
    read_cache_bytes: int = _size(32 * MIB, 0, TIB, "memory for catch-up answers that are asked for again; 0 for none")
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
    checkpoint_bytes: int = _size(128 * MIB, KIB, TIB, "journal bytes after which a checkpoint is due")
    checkpoint_records: int = _count(
        400_000, 1, 10**9, "journal records after which a checkpoint is due; new streams count twice"
    )
    checkpoint_age_s: float = _seconds(30.0, 0.05, 86_400, "age of unsaved changes that makes a checkpoint due")
    retention_every_s: float = _seconds(60.0, 0.05, 86_400, "pause between two sweeps of buckets with a retention")
    hot_bytes_max: int = _size(512 * MIB, KIB, TIB, "payload kept in memory before it goes to segments")
    hot_streams_max: int = _count(150_000, 1, 10**9, "streams kept in memory; idle ones leave first")
    # Segments and disk
    block_bytes: int = _size(128 * KIB, KIB, 16 * MIB, "payload in one segment block")
    merge_segments_min: int = _count(8, 2, 10_000, "small segments that make a merge worthwhile")
    low_space_bytes: int = _size(256 * MIB, 0, TIB, "free disk space below which writes are refused")
    # Archive: feeds and bulk reads
    archive_age_s: float = _seconds(86_400.0, 0.0, 10**9, "how long feeds can go back; older facts leave the archive")
    archive_bytes_max: int = _size(8 * GIB, 0, 1024 * TIB, "disk space of the archive; the oldest facts leave first")
    lease_s: float = _seconds(300.0, 1.0, 86_400, "how long a read plan keeps its objects unless it is renewed")
    # S3P
    s3p_listen: str = _key(Kind.LISTEN_OR_NONE, "127.0.0.1:7500", "address that serves S3P; none turns it off")
    s3p_buckets: bool = _key(Kind.SWITCH, False, "a name with a slash is bucket/stream, in any bucket")
    s3p_name_bytes_max: int = _count(256, 1, 340, "longest stream name; above it ERR_BAD_FORMAT")
    s3p_append_records_max: int = _count(1000, 1, 1_000_000, "most records in one APPEND; above it ERR_LIMITS")
    s3p_append_bytes_max: int = _size(MIB, 1, 64 * MIB, "most payload in one APPEND; above it ERR_LIMITS")
    s3p_record_bytes_max: int = _size(MIB, 1, 64 * MIB, "largest record; above it ERR_LIMITS")
    s3p_count_default: int = _count(1000, 1, 1_000_000, "records a READ returns when it has no COUNT")
    s3p_count_max: int = _count(1000, 1, 1_000_000, "largest COUNT; above it ERR_LIMITS")
    s3p_block_ms_max: int = _count(10_000, 0, 3_600_000, "longest BLOCK; above it ERR_LIMITS")
    s3p_read_bytes_max: int = _size(4 * MIB, 1, GIB, "most payload in one READ; a larger record comes alone")
    s3p_idle_timeout_s: float = _seconds(300.0, 0.05, 86_400, "close a connection without a command for so long")
    s3p_connections_max: int = _count(10_000, 1, 1_000_000, "open connections; above it new ones are refused")
    # Logs
    log_level: str = _choice(("debug", "info", "warning", "error"), "info", "how much is logged")
    log_format: str = _choice(("text", "json"), "text", "how a log line is written")

    @property
    def address(self) -> Address:
        return parse_address(self.listen)

    @property
    def s3p_address(self) -> Address | None:
        """None if S3P is not served."""
        return None if self.s3p_listen == "none" else parse_address(self.s3p_listen)


def _name_of(field_name: str) -> str:
    """How users write a field's name: those of a table with a dot."""
    table, _, key = field_name.partition("_")
    return f"{table}.{key}" if table in TABLES else field_name


def _field_of(name: str) -> str:
    return name.replace(".", "_")


KEYS: Final[Mapping[str, Key]] = {
    _name_of(declared.name): Key(name=_name_of(declared.name), default=declared.default, **declared.metadata)
    for declared in fields(Settings)
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
        return _Given(CHECKED[key.kind](key, plain), where)
    except (ValueError, KeyError):
        shown = f'"{value}"' if isinstance(value, str) else value
        raise SettingsError(f"{name} ({where}) cannot be {shown}; use {key.allowed()}") from None


def _known_key(name: str, where: str) -> Key:
    if name in KEYS:
        return KEYS[name]
    table = name.partition(".")[0]
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
    for table in TABLES:
        inside = document.pop(table, {})
        if not isinstance(inside, dict):
            raise SettingsError(f"{table} ({where}) cannot be {inside}; use a table [{table}]")
        document.update({f"{table}.{name}": value for name, value in inside.items()})
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
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in NOT_SETTINGS:
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
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
    settings = Settings(**{_field_of(name): cast(Any, found.value) for name, found in given.items()})
    _check_together(settings, {name: found.where for name, found in given.items()})
    return settings


_NOT_ABOVE: Final = (
    ("long_poll_ms", "long_poll_ms_max"),
    ("append_bytes_max", "inflight_bytes_max"),
    ("s3p.append_bytes_max", "inflight_bytes_max"),
    ("s3p.count_default", "s3p.count_max"),
)


def _check_together(settings: Settings, where: Mapping[str, str]) -> None:
    """The rules that need more than one setting."""
    for name, address in (("listen", settings.address), ("s3p.listen", settings.s3p_address)):
        if address is not None and not address.is_loopback and not settings.insecure:
            raise SettingsError(
                f"{_named(settings, name, where)} can be reached from other machines and there is no "
                f"authentication yet; use a loopback address such as {KEYS[name].default}, or --insecure "
                "(insecure = true) on a network where everyone may read and write"
            )
    for lower, upper in _NOT_ABOVE:
        if getattr(settings, _field_of(lower)) > getattr(settings, _field_of(upper)):
            raise SettingsError(
                f"{_named(settings, lower, where)} must not be above {_named(settings, upper, where)}; "
                f"lower {lower} or raise {upper}"
            )


def _named(settings: Settings, name: str, where: Mapping[str, str]) -> str:
    return f"{name} = {KEYS[name].shown(getattr(settings, _field_of(name)))} ({where.get(name, 'the default')})"
