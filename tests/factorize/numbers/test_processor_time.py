"""The clock of limits stands still while kernels compile."""

from __future__ import annotations

import time

import numba

from factorize.numbers import kernel_compiler
from factorize.numbers.processor_time import process_seconds, stop_clock, thread_seconds


def test_seconds_of_the_compiler_do_not_count() -> None:
    @numba.njit
    def power(base: float, exponent: int) -> float:
        value = 1.0
        for _ in range(exponent):
            value *= base
        return value

    assert kernel_compiler.event is numba.core.event  # imported, it listens
    numba.njit(lambda: 0)()  # the first compilation of a process reads numba's own tables, which counts
    counted, whole, spent = thread_seconds(), process_seconds(), time.thread_time()
    assert power(2.0, 3) == 8.0
    counted, spent = thread_seconds() - counted, time.thread_time() - spent
    assert 0 <= counted < spent / 2
    assert process_seconds() - whole < spent / 2


def test_nothing_counts_of_nested_blocks_nor_of_the_process_while_one_is_open() -> None:
    own, spent = thread_seconds(), time.thread_time()
    with stop_clock():
        inside = process_seconds()
        with stop_clock():
            busy_until(time.thread_time() + 0.02)
        busy_until(time.thread_time() + 0.02)
        assert process_seconds() == inside
    spent = time.thread_time() - spent
    assert thread_seconds() - own <= spent - 0.04


def busy_until(thread_time: float) -> None:
    while time.thread_time() < thread_time:
        pass
