"""Content types: compared without case and parameters, kept exactly as given."""

from __future__ import annotations

import re
from functools import lru_cache

DEFAULT_CONTENT_TYPE = "application/octet-stream"
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_MEDIA_TYPE = re.compile(rf"{_TOKEN}/{_TOKEN}[ \t]*(?:;.*)?")
_CHARSET = re.compile(r""";\s*charset\s*=\s*["']?([^"';\s]+)""", re.IGNORECASE)
_UTF8 = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})


@lru_cache(maxsize=1024)
def is_media_type(content_type: str) -> bool:
    """Whether it is one at all (RFC 9110, section 8.3.1). Parameters are whatever follows the first semicolon."""
    return _MEDIA_TYPE.fullmatch(content_type) is not None


@lru_cache(maxsize=1024)
def media_type(content_type: str) -> str:
    """What two content types must share to be the same: type and subtype, lower-case."""
    return content_type.partition(";")[0].strip().lower()


@lru_cache(maxsize=1024)
def is_json(content_type: str) -> bool:
    return media_type(content_type) == "application/json"


@lru_cache(maxsize=1024)
def is_text(content_type: str) -> bool:
    """Whether the bytes are UTF-8 and may travel as such in Server-Sent Events (protocol section 5.8)."""
    if is_json(content_type):
        return True
    charset = _CHARSET.search(content_type)
    return media_type(content_type).startswith("text/") and (charset is None or charset[1].lower() in _UTF8)
