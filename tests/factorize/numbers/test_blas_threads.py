"""One thread of BLAS while anybody asks for it, and the number of before afterwards."""

from __future__ import annotations

from threadpoolctl import threadpool_info, threadpool_limits

from factorize.numbers.blas_threads import LARGEST, one_blas_thread


def threads() -> list[int]:
    """Of each library in this process, also of those that other tests have loaded and that have one thread only."""
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


def test_one_thread_within_and_the_old_number_after() -> None:
    """Two askers that end in the order in which they began leave the number as it was, not the one of the first."""
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        assert 2 in before
        first, second = one_blas_thread(8), one_blas_thread(8)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert set(threads()) == {1}
        second.__exit__(None, None, None)
        assert threads() == before
        with one_blas_thread(LARGEST + 1):
            assert threads() == before
