"""Transactions over HTTP: URLs, the body of a commit, and the answers as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from ....model.errors import BadRequest, NotFound, TransactionRefused, UnsupportedMedia
from ....model.media import is_media_type, media_type
from ....model.records import Application
from .. import headers as h
from ..requests import check_write

TRANSACTIONS = "transactions"
ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
PARTS_SHOWN_MAX = 1000
_VERSION_MAX = (1 << 63) - 1
_NAME = re.compile(r"[A-Za-z0-9._~:-]{1,128}")
_VERSION = re.compile(r"0|[1-9][0-9]{0,18}")


class TransactionPath(NamedTuple):
    """What a URL under `transactions` names: an application, one of its versions, or a part of that."""

    bucket: str
    app: str
    version: int | None = None
    part: str | None = None


def parse_path(bucket: str, rest: tuple[str, ...]) -> TransactionPath:
    if not 1 <= len(rest) <= 3:
        raise NotFound(
            "Nothing is here. A transaction is .../streams/transactions/{app}/{version}/{part}.", code="unknown_route"
        )
    for what, name in (("application", rest[0]), *((("part", rest[2]),) if len(rest) > 2 else ())):
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise _bad(f"The name of an {what} has 1 to 128 characters out of A-Z a-z 0-9 . _ ~ : -, not '{name}'")
    version = None
    if len(rest) > 1:
        if not _VERSION.fullmatch(rest[1]) or int(rest[1]) > _VERSION_MAX:
            raise _bad("A version is a number from 0 to 2^63-1 without leading zeros")
        version = int(rest[1])
    return TransactionPath(bucket, rest[0], version, rest[2] if len(rest) > 2 else None)


def is_arrow(headers: dict[bytes, bytes], arrow_is_available: bool) -> bool:
    """Which of the two formats a part has; raises for any other."""
    check_write(headers)
    kind = media_type(headers.get(h.CONTENT_TYPE, b"").decode("latin-1"))
    if kind == NDJSON:
        return False
    if kind != ARROW:
        raise UnsupportedMedia(f"A part is {ARROW} or {NDJSON}; name it in Content-Type.")
    if not arrow_is_available:
        raise UnsupportedMedia(f"This server has no pyarrow (the extra 'arrow'). Send {NDJSON}.", code="arrow_missing")
    return True


class ListedPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    part: str
    etag: str | None = None


class CommitBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    parts: list[str | ListedPart]
    create: bool = False
    content_type: str | None = None

    def listed(self) -> list[ListedPart]:
        return [ListedPart(part) if isinstance(part, str) else part for part in self.parts]


def parse_commit(body: bytes) -> CommitBody:
    try:
        commit = msgspec.json.decode(body, type=CommitBody)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _bad(f"The commit cannot be used: {error}") from None
    names = [listed.part for listed in commit.listed()]
    if len(set(names)) != len(names):
        raise _bad("A part is listed twice")
    kind = commit.content_type
    if kind is not None and not (kind.isascii() and kind.isprintable() and is_media_type(kind)):
        raise _bad("content_type must be a media type such as text/plain")
    return commit


def _bad(why: str) -> BadRequest:
    return BadRequest(f"{why}.", code="bad_transaction")


# -- answers -------------------------------------------------------------------------------------------------


def staged_body(path: TransactionPath, figures: dict[str, Any] | None) -> bytes:
    """What was staged; None when there was no need to, as the version is committed."""
    named = {"app": path.app, "version": path.version, "part": path.part}
    return msgspec.json.encode({**named, **(figures or {}), "duplicate": figures is None})


def part_figures(messages: int, size: int, etag: str) -> dict[str, Any]:
    return {"messages": messages, "bytes": size, "etag": etag}


def application_body(app: str, known: Application | None) -> bytes:
    if known is None:
        return msgspec.json.encode({"app": app, "version": None})
    return msgspec.json.encode({"app": app, "version": known.version, **_figures(known)})


def committed_body(app: str, known: Application, is_duplicate: bool) -> bytes:
    named = {"app": app, "version": known.version, "duplicate": is_duplicate}
    return msgspec.json.encode({**named, **_figures(known)})


def _figures(known: Application) -> dict[str, Any]:
    return {
        "messages": known.messages,
        "bytes": known.bytes,
        "streams": known.streams,
        "created": known.created,
        "committed_at_ms": known.at_ms,
    }


def version_body(
    path: TransactionPath, known: Application | None, parts: Iterable[dict[str, Any]], count: int
) -> bytes:
    state = "staged"
    if known is not None and path.version is not None and path.version <= known.version:
        state = "committed" if path.version == known.version else "fenced"
    return msgspec.json.encode(
        {
            "app": path.app,
            "version": path.version,
            "state": state,
            "parts": list(parts),
            "has_more": count > PARTS_SHOWN_MAX,
        }
    )


def refused_body(refusal: TransactionRefused) -> bytes:
    reasons = []
    for reason in refusal.reasons:
        about = {"part": reason.part} if reason.part is not None else {"stream": reason.stream} if reason.stream else {}
        reasons.append({"code": reason.code, **about, "message": reason.message})
    error = {"code": refusal.code, "message": refusal.message, "reason_count": refusal.count, "reasons": reasons}
    return msgspec.json.encode({"error": error})
