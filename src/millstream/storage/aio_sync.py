"""fdatasync through Linux AIO, told through an eventfd.

A worker on the very core that asks does it. That takes the core from the loop for a moment, and spares waking another.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

# io_setup, io_destroy, io_getevents, io_submit
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
_FDSYNC = 3
_TELL_EVENTFD = 1
_CONTROL_BLOCK = struct.Struct("<QIIHhIQQqQII")
_EVENT = struct.Struct("<QQqq")


class AioSync:
    works_elsewhere = False

    def __init__(self) -> None:
        calls = _CALLS.get(platform.machine())
        if calls is None:
            raise OSError(errno.ENOSYS, f"the numbers of these system calls are not known on {platform.machine()}")
        self._setup, self._destroy, self._getevents, self._submit = calls
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._context = ctypes.c_ulong(0)
        if self._libc.syscall(self._setup, 1, ctypes.byref(self._context)) != 0:
            raise OSError(ctypes.get_errno(), "io_setup")
        self.fileno = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._block = ctypes.create_string_buffer(_CONTROL_BLOCK.size)
        self._blocks = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self._event = ctypes.create_string_buffer(_EVENT.size)

    def submit(self, fd: int) -> bool:
        """Start to sync a file; False where the kernel does not take it."""
        _CONTROL_BLOCK.pack_into(self._block, 0, 0, 0, 0, _FDSYNC, 0, fd, 0, 0, 0, 0, _TELL_EVENTFD, self.fileno)
        return bool(self._libc.syscall(self._submit, self._context, 1, self._blocks) == 1)

    def collect(self) -> OSError | None:
        """How the sync ended."""
        os.eventfd_read(self.fileno)
        if self._libc.syscall(self._getevents, self._context, 1, 1, self._event, None) != 1:
            return OSError(ctypes.get_errno(), "the kernel lost a sync")
        result = _EVENT.unpack(self._event)[2]
        return OSError(-result, os.strerror(-result)) if result < 0 else None

    def close(self) -> None:
        self._libc.syscall(self._destroy, self._context)
        os.close(self.fileno)
