"""Length-prefixed frames: ``[4-byte big-endian length][payload]``, a convention for messages in a byte stream.

A read of a byte stream may be cut anywhere; frames bring the messages back.
"""

from __future__ import annotations

import struct

from .errors import ProtocolError

FRAME_BYTES_MAX = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")


def encode_frame(payload: bytes) -> bytes:
    """One message as a frame."""
    if len(payload) > FRAME_BYTES_MAX:
        raise ValueError(f"A frame holds at most {FRAME_BYTES_MAX} bytes; this one has {len(payload)}.")
    return _LENGTH.pack(len(payload)) + payload


class FrameDecoder:
    """Feed it bytes as they come; it returns the messages that are complete."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of a frame that has begun and not ended."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        buffer = self._buffer
        buffer += data
        frames: list[bytes] = []
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > self._frame_bytes_max:
                raise ProtocolError(
                    f"A frame claims {length} bytes, more than {self._frame_bytes_max}. Does the stream hold frames, "
                    "and does the read start where one begins?"
                )
            end = at + _LENGTH.size + length
            if len(buffer) < end:
                break
            frames.append(bytes(buffer[at + _LENGTH.size : end]))
            at = end
        del buffer[:at]
        return frames
