"""Receive buffers: reuse, and the bound on all of them together."""

from headrace.net.buffers import BufferPool

USUAL = 1 << 18
MIB = 1 << 20


def grown(pool, size_needed):
    """A buffer for a request of ``size_needed`` bytes, as its bytes arrive; None if refused."""
    buffer = pool.borrow(size_needed)
    while len(buffer.data) < size_needed:
        larger = pool.grow(buffer, 0, len(buffer.data), size_needed)
        if larger is None:
            pool.give_back(buffer)
            return None
        buffer = larger
    return buffer


def test_a_request_as_large_as_the_bound_fits_alone():
    for size in (MIB, 1_000_000, 3 * MIB + 7):
        pool = BufferPool(size)
        buffer = grown(pool, size + 4)  # with its size prefix
        assert buffer is not None, size
        pool.give_back(buffer)
        assert pool.large_size == 0
        assert grown(pool, size + 5) is None, "one byte more does not fit"


def test_warm_buffers_count_towards_the_bound():
    pool = BufferPool(4 * MIB)
    for buffer in [grown(pool, 2 * MIB), grown(pool, 2 * MIB)]:
        pool.give_back(buffer)
    first, second = grown(pool, 2 * MIB), grown(pool, 2 * MIB)
    assert pool.large_size == 4 * MIB
    assert grown(pool, MIB) is None
    pool.give_back(first)
    assert grown(pool, MIB) is not None
    pool.give_back(second)


def test_buffers_of_the_usual_size_do_not_count():
    pool = BufferPool(0)
    assert [len(pool.borrow().data) for _ in range(3)] == [USUAL] * 3
    assert pool.large_size == 0


def test_a_larger_buffer_contains_the_bytes_received_so_far():
    pool = BufferPool(MIB)
    buffer = pool.borrow()
    buffer.view[10:13] = b"abc"
    larger = pool.grow(buffer, 10, 13, 2 * USUAL)
    assert bytes(larger.view[:3]) == b"abc"
    assert pool.borrow() is buffer, "the smaller one is free again"
