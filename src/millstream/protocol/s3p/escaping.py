"""Bytes of clients inside messages: an error is one line of printable ASCII, whatever they sent."""

from __future__ import annotations

_SHOWN_MAX = 64
_ESCAPED = [chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}" for byte in range(256)]


def shown(data: bytes) -> str:
    text = "".join([_ESCAPED[byte] for byte in data[:_SHOWN_MAX]])
    return text if len(data) <= _SHOWN_MAX else f"{text}..."


def one_line(text: str) -> bytes:
    """A message of ours, safe for the wire."""
    return "".join([char if " " <= char <= "~" else "?" for char in text]).encode()
