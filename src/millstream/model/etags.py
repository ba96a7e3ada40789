"""Entity tags: of a stream's state (HEAD, PUT, POST), of a range that was read (GET), and of a snapshot.

    "<stream id>:<tail>"            the state, open
    "<stream id>:<tail>:c"          the state, closed
    "<stream id>:<start>:<end>"     a range; `:c` when it ends a closed stream
    "<stream id>:s<offset>:<hex>"   a snapshot: its offset and the digest of its bytes

Closing changes every tag, or a cache would hide the end of the stream (protocol section 8.1).
"""

from __future__ import annotations

from .records import Snapshot


def state_etag(stream_id: str, tail: int, closed: bool) -> str:
    return f'"{stream_id}:{tail}:c"' if closed else f'"{stream_id}:{tail}"'


def range_etag(stream_id: str, start: int, end: int, closed: bool) -> str:
    return f'"{stream_id}:{start}:{end}:c"' if closed else f'"{stream_id}:{start}:{end}"'


def snapshot_etag(stream_id: str, snapshot: Snapshot) -> str:
    return f'"{stream_id}:s{snapshot.offset}:{snapshot.digest.hex()}"'


def _tags(header: str) -> list[str]:
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]


def names_state(header: str, stream_id: str, tail: int, closed: bool) -> bool:
    """Whether an If-Match header names this state. A range's tag does when it ends at this very state."""
    closure = ":c" if closed else ""
    for tag in _tags(header):
        if tag in ("*", f'"{stream_id}:{tail}{closure}"'):
            return True
        if tag.startswith(f'"{stream_id}:') and tag.endswith(f':{tail}{closure}"'):
            return True
    return False


def is_among(header: str, etag: str) -> bool:
    """Whether an If-Match or If-None-Match header lists this tag."""
    return any(tag in ("*", etag) for tag in _tags(header))
