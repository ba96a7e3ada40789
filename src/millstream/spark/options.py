"""The options of the data source: every name, what it may be, and what it is when it is absent.

docs/spark.md has the same as a table; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from . import option_values as values
from .errors import BadOption
from .option_values import OptionText

Tier: TypeAlias = Literal["auto", "http", "direct"]
BYTES_PER_PARTITION = 64 << 20

COMMON = ("url", "bucket", "token")
READING = (
    *COMMON,
    "subscribe",
    "subscribePattern",
    "prefix",
    "startingOffsets",
    "startingTimestamp",
    "minPartitions",
    "maxBytesPerPartition",
    "includeSnapshots",
    "failOnDataLoss",
    "readTier",
)
BATCH_READING = (*READING, "endingOffsets", "endingTimestamp")
STREAM_READING = (*READING, "maxBytesPerTrigger", "maxOffsetsPerTrigger")
WRITING = (*COMMON, "stream", "createStreams", "contentType", "orderBy", "txnAppId", "txnVersion")
STREAM_WRITING = (*WRITING, "checkpointLocation", "queryName")  # Spark's own, which it passes on
EVERY = tuple(dict.fromkeys((*BATCH_READING, *STREAM_READING, *STREAM_WRITING)))

_POSITION = re.compile(r"[0-9a-f]{16}(?:\.[0-9]{1,20})+", re.ASCII)
_PATH = "has no meaning here: name the bucket in the option bucket, and call load(), save() or start() without a path."
_FOR_BATCHES = "is for spark.read only: a stream has no end."
_FOR_STREAMS = "is for spark.readStream only; a batch read takes everything up to its end."
_VERSION_IN_STREAMS = "is for df.write only: in a streaming query it is the id of the micro-batch."


@dataclass(frozen=True, slots=True)
class Server:
    """Whom to ask."""

    url: str
    bucket: str
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which streams of the bucket; at most one of the three is set."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    prefix: str = ""

    @property
    def server_prefix(self) -> str:
        """What the server can filter by; the rest is done by `takes`."""
        return self.names[0] if len(self.names) == 1 else self.prefix

    @property
    def is_everything(self) -> bool:
        """Whether the server's prefix is all there is to it."""
        return not self.names and self.pattern is None

    def takes(self, stream: str) -> bool:
        if self.names:
            return stream in self.names
        if self.pattern is not None:
            return re.fullmatch(self.pattern, stream) is not None
        return stream.startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a read starts or ends: a word, a position, or offsets of single streams."""

    word: Literal["earliest", "latest", "snapshot", "position", "offsets", "timestamp"]
    position: str = ""
    offsets: Mapping[str, int] = field(default_factory=dict)
    at_ms: int = 0


EARLIEST, LATEST = Bound("earliest"), Bound("latest")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    server: Server
    selection: Selection
    start: Bound
    end: Bound
    min_partitions: int
    bytes_per_partition: int
    include_snapshots: bool
    fail_on_data_loss: bool
    tier: Tier
    bytes_per_trigger: int | None = None
    messages_per_trigger: int | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    server: Server
    stream: str | None
    create_streams: bool
    content_type: str | None
    order_by: str | None
    app: str | None
    version: int | None


def refuse_nonsense(options: Mapping[str, str]) -> None:
    """What is wrong in every use, found before Spark has said what it wants to do."""
    text = OptionText(options)
    text.refuse_unknown(EVERY, {"path": _PATH})
    for name, parse in _PARSERS.items():
        text.optional(name, parse, None)


def batch_read_options(options: Mapping[str, str]) -> ReadOptions:
    text = OptionText(options)
    hints = dict.fromkeys(("maxBytesPerTrigger", "maxOffsetsPerTrigger"), _FOR_STREAMS)
    text.refuse_unknown(BATCH_READING, {"path": _PATH, **hints, **_writing_only()})
    start = _start(text, default=EARLIEST)
    if start.word == "latest":
        raise BadOption(
            "The option startingOffsets is 'latest', which leaves nothing to read in a batch. Allowed are earliest, "
            'snapshot, a position, or JSON such as {"a-stream": 1024}.'
        )
    return _read_options(text, start, _end(text))


def stream_read_options(options: Mapping[str, str]) -> ReadOptions:
    text = OptionText(options)
    hints = dict.fromkeys(("endingOffsets", "endingTimestamp"), _FOR_BATCHES)
    text.refuse_unknown(STREAM_READING, {"path": _PATH, **hints, **_writing_only()})
    return _read_options(text, _start(text, default=LATEST), LATEST)


def batch_write_options(options: Mapping[str, str]) -> WriteOptions:
    text = OptionText(options)
    text.refuse_unknown(WRITING, {"path": _PATH, **_reading_only()})
    if text.has("txnAppId") != text.has("txnVersion"):
        given, missing = ("txnAppId", "txnVersion") if text.has("txnAppId") else ("txnVersion", "txnAppId")
        raise BadOption(f"The option {given} needs {missing} beside it: together they say what was written already.")
    return _write_options(text)


def stream_write_options(options: Mapping[str, str]) -> WriteOptions:
    text = OptionText(options)
    text.refuse_unknown(STREAM_WRITING, {"path": _PATH, "txnVersion": _VERSION_IN_STREAMS, **_reading_only()})
    if text.has("txnVersion"):
        raise BadOption(f"The option txnVersion {_VERSION_IN_STREAMS}")
    return _write_options(text)


def _read_options(text: OptionText, start: Bound, end: Bound) -> ReadOptions:
    tier = text.optional("readTier", _TIER, "auto")
    return ReadOptions(
        server=_server(text),
        selection=_selection(text),
        start=start,
        end=end,
        min_partitions=text.optional("minPartitions", values.count, 1),
        bytes_per_partition=text.optional("maxBytesPerPartition", values.size, BYTES_PER_PARTITION),
        include_snapshots=text.optional("includeSnapshots", values.truth, start.word == "snapshot"),
        fail_on_data_loss=text.optional("failOnDataLoss", values.truth, True),
        tier=tier,  # type: ignore[arg-type]  # `choice` has let through nothing else
        bytes_per_trigger=text.optional("maxBytesPerTrigger", _maybe_size, None),
        messages_per_trigger=text.optional("maxOffsetsPerTrigger", _maybe_count, None),
    )


def _write_options(text: OptionText) -> WriteOptions:
    return WriteOptions(
        server=_server(text),
        stream=text.optional("stream", _maybe_words, None),
        create_streams=text.optional("createStreams", values.truth, False),
        content_type=text.optional("contentType", _maybe_words, None),
        order_by=text.optional("orderBy", _maybe_words, None),
        app=text.optional("txnAppId", _maybe_app, None),
        version=text.optional("txnVersion", _maybe_version, None),
    )


def _server(text: OptionText) -> Server:
    url = text.required("url", values.server_url, "http://127.0.0.1:4437")
    bucket = text.required("bucket", values.words, "agents")
    return Server(url, bucket, text.optional("token", _maybe_words, None))


def _selection(text: OptionText) -> Selection:
    text.refuse_together("subscribe", "subscribePattern", "prefix")
    return Selection(
        names=text.optional("subscribe", values.stream_names, ()),
        pattern=text.optional("subscribePattern", _maybe_pattern, None),
        prefix=text.optional("prefix", lambda _, value: value, ""),
    )


def _start(text: OptionText, default: Bound) -> Bound:
    text.refuse_together("startingOffsets", "startingTimestamp")
    if text.has("startingTimestamp"):
        return Bound("timestamp", at_ms=text.optional("startingTimestamp", values.milliseconds, 0))
    return text.optional("startingOffsets", _starting_offsets, default)


def _end(text: OptionText) -> Bound:
    text.refuse_together("endingOffsets", "endingTimestamp")
    if text.has("endingTimestamp"):
        return Bound("timestamp", at_ms=text.optional("endingTimestamp", values.milliseconds, 0))
    return text.optional("endingOffsets", _ending_offsets, LATEST)


def _starting_offsets(name: str, value: str) -> Bound:
    allowed = 'earliest, latest, snapshot, a position, or JSON such as {"a-stream": 1024}'
    word = value.strip().lower()
    if word in ("earliest", "latest", "snapshot"):
        return Bound(word)  # type: ignore[arg-type]  # one of the three
    return _position_or_offsets(name, value, allowed)


def _ending_offsets(name: str, value: str) -> Bound:
    allowed = 'latest, snapshot, a position, or JSON such as {"a-stream": 1024}'
    word = value.strip().lower()
    if word in ("latest", "snapshot"):
        return Bound(word)  # type: ignore[arg-type]  # one of the two
    return _position_or_offsets(name, value, allowed)


def _position_or_offsets(name: str, value: str, allowed: str) -> Bound:
    if _POSITION.fullmatch(value.strip()):
        return Bound("position", position=value.strip())
    return Bound("offsets", offsets=values.offsets_by_stream(name, value, allowed))


_TIER = values.choice("auto", "http", "direct")


def _maybe_words(name: str, value: str) -> str | None:
    return values.words(name, value)


def _maybe_pattern(name: str, value: str) -> str | None:
    return values.pattern(name, value)


def _maybe_size(name: str, value: str) -> int | None:
    return values.size(name, value)


def _maybe_count(name: str, value: str) -> int | None:
    return values.count(name, value)


def _maybe_version(name: str, value: str) -> int | None:
    return values.version(name, value)


def _maybe_app(name: str, value: str) -> str | None:
    return values.app_name(name, value)


def _writing_only() -> dict[str, str]:
    only = set(STREAM_WRITING) - set(BATCH_READING) - set(STREAM_READING)
    return dict.fromkeys(sorted(only), "is for writing, not for reading.")


def _reading_only() -> dict[str, str]:
    only = (set(BATCH_READING) | set(STREAM_READING)) - set(STREAM_WRITING)
    return dict.fromkeys(sorted(only), "is for reading, not for writing.")


_PARSERS: dict[str, Callable[[str, str], object]] = {
    "url": values.server_url,
    "bucket": values.words,
    "token": values.words,
    "subscribe": values.stream_names,
    "subscribePattern": values.pattern,
    "startingOffsets": _starting_offsets,
    "startingTimestamp": values.milliseconds,
    "endingOffsets": _ending_offsets,
    "endingTimestamp": values.milliseconds,
    "minPartitions": values.count,
    "maxBytesPerPartition": values.size,
    "includeSnapshots": values.truth,
    "failOnDataLoss": values.truth,
    "readTier": _TIER,
    "maxBytesPerTrigger": values.size,
    "maxOffsetsPerTrigger": values.count,
    "stream": values.words,
    "createStreams": values.truth,
    "contentType": values.words,
    "orderBy": values.words,
    "txnAppId": values.app_name,
    "txnVersion": values.version,
}
