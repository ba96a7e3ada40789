"""Syncs by the kernel's workers, in both ways, where the machine offers them."""

from __future__ import annotations

import errno
import os
import select

import pytest

from millstream.storage.files import Files
from millstream.storage.kernel_sync import AioSync, RingSync, open_kernel_syncs

from .faulty_files import FaultyFiles


@pytest.fixture(params=[RingSync, AioSync])
def kernel(request):
    try:
        kernel = request.param()
    except OSError as error:
        pytest.skip(f"this machine does not offer it: {error}")
    yield kernel
    kernel.close()


def waits(kernel):
    return not select.select([kernel.fileno], [], [], 0)[0]


def test_a_sync_is_told_once_it_is_done(kernel, tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    for _ in range(50):
        os.pwrite(fd, b"x" * 1000, 0)
        assert kernel.submit(fd)
        assert select.select([kernel.fileno], [], [], 10)[0]
        assert kernel.collect() is None
        assert waits(kernel)
    os.close(fd)


def test_a_descriptor_that_cannot_be_synced_is_not_taken_or_fails(kernel):
    fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)
    if kernel.submit(fd):
        assert select.select([kernel.fileno], [], [], 10)[0]
        failure = kernel.collect()
        assert failure is not None
        assert failure.errno == errno.EBADF
    assert waits(kernel)


def test_it_goes_on_after_a_failure(kernel, tmp_path):
    test_a_descriptor_that_cannot_be_synced_is_not_taken_or_fails(kernel)
    test_a_sync_is_told_once_it_is_done(kernel, tmp_path)


def test_what_is_closed_is_given_back(kernel):
    """`close` of a second one, so that the fixture's own is left alone."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        type(kernel)().close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_a_machine_does_not_offer_is_done_without(monkeypatch):
    def refused(*_):
        raise OSError(errno.EPERM, "forbidden here")

    def offered():
        kernels = open_kernel_syncs()
        for kernel in kernels:
            kernel.close()
        return {type(kernel) for kernel in kernels}

    usual = offered()
    monkeypatch.setattr(RingSync, "__init__", refused)
    assert offered() == usual - {RingSync}
    monkeypatch.setattr(AioSync, "__init__", refused)
    assert offered() == set()


def test_a_layer_that_interferes_with_syncs_is_never_passed_by(tmp_path):
    assert FaultyFiles(tmp_path).kernel_syncs() == []
    for kernel in Files().kernel_syncs():
        kernel.close()
