"""Syncs by the kernel's workers, where the machine offers them."""

from __future__ import annotations

import os
import select

import pytest

from millstream.storage.files import Files
from millstream.storage.kernel_sync import open_kernel_sync

from .faulty_files import FaultyFiles


@pytest.fixture
def kernel():
    kernel = open_kernel_sync()
    if kernel is None:
        pytest.skip("this machine offers no Linux AIO")
    yield kernel
    kernel.close()


def waits(kernel):
    return not select.select([kernel.fileno], [], [], 0)[0]


def test_a_sync_is_told_once_it_is_done(kernel, tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    for _ in range(20):
        os.pwrite(fd, b"x" * 1000, 0)
        assert kernel.submit(fd)
        assert select.select([kernel.fileno], [], [], 10)[0]
        assert kernel.collect() is None
        assert waits(kernel)
    os.close(fd)


def test_a_descriptor_that_cannot_be_synced_is_not_taken_or_fails(kernel):
    fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)
    assert not kernel.submit(fd)
    assert waits(kernel)


def test_a_layer_that_interferes_with_syncs_is_never_passed_by(tmp_path):
    assert FaultyFiles(tmp_path).kernel_sync() is None
    kernel = Files().kernel_sync()
    if kernel is not None:
        kernel.close()
