"""Buffers are used again when nobody looks at them any more, and never before."""

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
