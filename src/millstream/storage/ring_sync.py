"""fdatasync through io_uring, told through an eventfd: a worker of the kernel's does it on whatever core is free.

A ring is memory shared with the kernel: places for requests and for results, and counters of what was put in and taken
out that only ever grow (modulo 2^32). With one sync in flight there is one place for requests, whose content stays the
same but for the descriptor. The system call after a write, and the read of the eventfd before a look, order both sides.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct

# The same numbers on every machine.
_SETUP, _ENTER, _REGISTER = 425, 426, 427
_REGISTER_EVENTFD = 4
_SINGLE_MAPPING = 1  # counters and results lie in one mapping: every kernel since 5.4
_REQUESTS_AT = 0x10000000  # where the mapping of the requests begins
# Places for requests and for results; features; where in the mapping counters, the order of requests and results are.
_PARAMETERS = struct.Struct("<2I12xI16x8I8x8I8x")
_REQUEST = struct.Struct("<BxxxiQQIIQ24x")  # operation, descriptor, offset, address, length, flags, mark
_RESULT = struct.Struct("<Qi4x")  # mark, result
_U32 = struct.Struct("<I")
_FSYNC, _DATA_ONLY = 3, 1


class RingSync:
    works_elsewhere = True

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._submitted = self._collected = 0
        parameters = ctypes.create_string_buffer(_PARAMETERS.size)
        self._ring_fd = self._call(_SETUP, 1, parameters)
        self.fileno = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._open(*_PARAMETERS.unpack(parameters))
        except BaseException:
            os.close(self._ring_fd)
            os.close(self.fileno)
            raise

    def _open(self, requests: int, results: int, features: int, *places: int) -> None:
        if not features & _SINGLE_MAPPING:
            raise OSError(errno.ENOSYS, "the io_uring of a kernel before 5.4")
        _, self._request_count_at, _, _, _, _, order_at, _ = places[:8]
        self._taken_count_at, self._result_count_at, _, _, _, self._results_at, _, _ = places[8:]
        self._results = results  # a power of two
        self._ring = self._map(max(order_at + 4 * requests, self._results_at + _RESULT.size * results), 0)
        self._request = self._map(_REQUEST.size * requests, _REQUESTS_AT)
        self._call(_REGISTER, self._ring_fd, _REGISTER_EVENTFD, ctypes.byref(ctypes.c_int(self.fileno)), 1)

    def submit(self, fd: int) -> bool:
        _REQUEST.pack_into(self._request, 0, _FSYNC, fd, 0, 0, 0, _DATA_ONLY, 0)
        following = (self._submitted + 1) & 0xFFFFFFFF
        _U32.pack_into(self._ring, self._request_count_at, following)
        try:
            self._call(_ENTER, self._ring_fd, 1, 0, 0, None, 0)
        except OSError:
            _U32.pack_into(self._ring, self._request_count_at, self._submitted)
            return False
        self._submitted = following
        return True

    def collect(self) -> OSError | None:
        os.eventfd_read(self.fileno)
        if _U32.unpack_from(self._ring, self._result_count_at)[0] == self._collected:
            return OSError(errno.EIO, "the kernel lost a sync")
        place = self._results_at + _RESULT.size * (self._collected % self._results)
        result = _RESULT.unpack_from(self._ring, place)[1]
        self._collected = (self._collected + 1) & 0xFFFFFFFF
        _U32.pack_into(self._ring, self._taken_count_at, self._collected)
        return OSError(-result, os.strerror(-result)) if result < 0 else None

    def close(self) -> None:
        self._ring.close()
        self._request.close()
        os.close(self._ring_fd)
        os.close(self.fileno)

    def _map(self, size: int, offset: int) -> mmap.mmap:
        return mmap.mmap(self._ring_fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=offset)

    def _call(self, *arguments: object) -> int:
        result: int = self._libc.syscall(*arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), f"io_uring: {os.strerror(ctypes.get_errno())}")
        return result
