"""The clock of limits stands still while kernels compile."""

from __future__ import annotations

import time

import numba

from factorize.numbers import kernel_compiler
from factorize.numbers.processor_time import process_seconds, thread_seconds


def test_seconds_of_the_compiler_do_not_count() -> None:
    @numba.njit
    def power(base: float, exponent: int) -> float:
        value = 1.0
        for _ in range(exponent):
            value *= base
        return value

    assert kernel_compiler.event is numba.core.event  # imported, it listens
    counted, whole, spent = thread_seconds(), process_seconds(), time.thread_time()
    assert power(2.0, 3) == 8.0
    counted, spent = thread_seconds() - counted, time.thread_time() - spent
    assert 0 <= counted < spent / 2
    assert process_seconds() - whole < spent / 2
