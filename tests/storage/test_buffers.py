"""Buffers are used again when nobody looks at them any more, and never before."""

import sys
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from millstream.storage.buffers import BufferPool


def test_a_dropped_view_gives_its_buffer_back():
    pool = BufferPool()
    view = pool.take(200_000)
    first = id(view.obj)
    del view
    assert id(pool.take(150_000).obj) == first


def test_a_view_keeps_its_buffer_busy_and_so_does_a_part_of_it():
    pool = BufferPool()
    view = pool.take(100)
    part = view[10:20]
    first = id(view.obj)
    part[:] = b"0123456789"
    del view
    other = pool.take(100)
    assert id(other.obj) != first
    other[:] = b"x" * 100
    assert bytes(part) == b"0123456789"


def test_views_have_the_size_that_was_asked_for():
    pool = BufferPool()
    for size in (0, 1, 128 << 10, (128 << 10) + 1, 3 << 20):
        assert len(pool.take(size)) == size


def test_the_pool_keeps_no_more_than_it_may():
    pool = BufferPool(bytes_max=1 << 20)
    views = [pool.take(512 << 10) for _ in range(5)]
    kept = {id(view.obj) for view in views[:2]}
    del views
    assert {id(pool.take(512 << 10).obj)} < kept


# -- ways to look at a buffer ------------------------------------------------------------------------------------------


def in_a_closure(view: memoryview) -> Callable[[], bytes]:
    return lambda: bytes(view)


def as_a_part(view: memoryview) -> Callable[[], bytes]:
    parts = [view[:50], view[50:]]
    view.release()
    return lambda: b"".join(parts)


def in_arrow(view: memoryview) -> Callable[[], bytes]:
    buffer = pa.py_buffer(view)
    return buffer.to_pybytes


def in_a_suspended_generator(view: memoryview) -> Callable[[], bytes]:
    def reading() -> Iterator[bytes]:
        mine = view[:]
        yield b""
        yield bytes(mine)

    steps = reading()
    next(steps)
    return lambda: next(steps)


def cast_to_something_else(view: memoryview) -> Callable[[], bytes]:
    words = view.cast("H")
    return words.tobytes


@pytest.fixture(params=["as they are", "counted as Python 3.14 does"])
def references(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "as they are":
        count = sys.getrefcount
        monkeypatch.setattr(sys, "getrefcount", lambda thing: count(thing) - 2)  # its own variables take one more


@pytest.mark.usefixtures("references")
@pytest.mark.parametrize("look", [in_a_closure, as_a_part, in_arrow, in_a_suspended_generator, cast_to_something_else])
def test_who_looks_at_a_buffer_never_sees_it_overwritten(look: Callable[[memoryview], Callable[[], bytes]]):
    pool = BufferPool()
    view = pool.take(100)
    view[:] = b"mine" * 25
    seen = look(view)
    del view
    others = [pool.take(100) for _ in range(3)]
    for other in others:
        other[:] = bytes(100)
    assert seen() == b"mine" * 25


def test_looking_for_a_free_buffer_moves_none_in_memory():
    """A buffer that moved would be a fresh one, page by page."""
    pool = BufferPool()
    view = pool.take(1 << 20)
    before = pa.py_buffer(view).address
    for _ in range(100):
        del view
        view = pool.take(1 << 20)
        assert pa.py_buffer(view).address == before
