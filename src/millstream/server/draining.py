"""Whether a client takes what it is sent. Only one that takes nothing for `drain_timeout_s` is dropped.

A transport tells when its buffer is nearly empty, and nothing in between: with a slow client and much to send that may
be long after the time-out. So it is looked at when the time-out has passed, and nothing is counted while sending.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import sys
import termios

_NOTHING = struct.pack("i", 0)


class Drain:
    """What a client had yet to take when that was last looked at."""

    __slots__ = ("_unsent",)

    def __init__(self) -> None:
        self._unsent = 0

    def watch(self, transport: asyncio.Transport | None) -> None:
        if transport is not None:
            self._unsent = unsent_bytes(transport)

    def watch_later(self) -> None:
        """From the first look on."""
        self._unsent = sys.maxsize

    def has_moved(self, transport: asyncio.Transport) -> bool:
        """Whether the client has something left to take, and not just what it had then. More than then means that we
        have sent more, and that the client is to be looked at again."""
        before, self._unsent = self._unsent, unsent_bytes(transport)
        return 0 < self._unsent != before


def unsent_bytes(transport: asyncio.Transport) -> int:
    """What a client has not taken yet, as far as can be seen from here: some of the rest may lie in its own kernel.

    Ours has a queue as well, which takes more from the transport only when a third of it is free. That may be a
    megabyte, and many time-outs of a slow client.
    """
    return transport.get_write_buffer_size() + _queued_bytes(transport)


def _queued_bytes(transport: asyncio.Transport) -> int:
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return 0  # closed
    queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, _NOTHING)  # the number that sockets call SIOCOUTQ
    return int(struct.unpack("i", queued)[0])
