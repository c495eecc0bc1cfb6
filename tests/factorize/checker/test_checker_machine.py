"""The test of the machine's floating point: what its probes reach, and what faults it tells."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from checker_files import parts, random_result, sealed

from factorize.checker import stored as stored_matrices
from factorize.checker.arithmetic import machine
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.check import check_factor_file, check_matrix_sensitivity
from factorize.checker.sampling.calibrations import check_calibration
from factorize.checker.strategy import Strategy
from factorize.errors import CertificateError


@pytest.fixture(autouse=True)
def untold() -> Iterator[None]:
    """What was found of this machine, and of others, is forgotten."""
    machine._fault.cache_clear()
    yield
    machine._fault.cache_clear()


MODES = {"x86_64": (7, 0x8040), "aarch64": (0, 1 << 24)}  # word of fenv_t with the mode, and its bits


@contextmanager
def flushed() -> Iterator[None]:
    """Flush results and take subnormal inputs for 0, in this thread, as libraries make it that have -ffast-math."""
    library = ctypes.CDLL("libm.so.6")
    word, bits = MODES[platform.machine()]
    state = (ctypes.c_uint32 * 16)()
    library.fegetenv(state)
    before = state[word]
    try:
        state[word] = before | bits
        library.fesetenv(state)
        yield
    finally:
        state[word] = before
        library.fesetenv(state)


def test_this_machine_is_as_it_should_be() -> None:
    assert machine._fault() == ""
    machine.check_products()


def test_a_thread_that_flushes_is_told_each_time() -> None:
    """The mode may change after the machine was probed, and back."""
    machine.check_products()
    with flushed():
        for check in (machine.check_mode, machine.check_products):
            with pytest.raises(NotEnclosed, match="flushes subnormal numbers"):
                check()
    machine.check_products()


def test_nothing_is_proved_in_a_thread_that_flushes() -> None:
    """A column of 2^-540 has a norm that is not 0: a file, a matrix, a certificate and a claim of sampling."""
    result = random_result(np.random.default_rng(0), "dense", {"kind": "single"}, 4)
    data, array = sealed(*parts(result)), np.eye(2) * 2.0**-540
    assert not check_factor_file(data).unseen
    with flushed():
        report = check_factor_file(data)
        assert report.unseen == list(report.stated) and "flushes" in report.claims[0]["why"]
        for refused in (lambda: check_matrix_sensitivity(array, {"kind": "single"}), result.verify):
            with pytest.raises(CertificateError, match="flushes"):
                refused()
        assert any("flushes" in text for text in check_calibration(data, {}).failed)
    assert not check_factor_file(data).unseen


def test_a_long_inverse_is_not_multiplied_by_products_that_nobody_relies_on(monkeypatch: pytest.MonkeyPatch) -> None:
    eye = Strategy("dense", {"": np.eye(3)}, 3)
    assert stored_matrices.noising_of_array(eye, np.eye(3), Fraction(1)).distance > 0
    machine._fault.cache_clear()
    monkeypatch.setattr(machine, "_product", lambda left, right: left @ right * (1 + 2.0**-52))
    with pytest.raises(NotEnclosed, match="loses bits"):
        stored_matrices.noising_of_array(eye, np.eye(3), Fraction(1))


def test_what_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_product", lambda left, right: left @ right * (1 + 2.0**-52))
    with pytest.raises(NotEnclosed, match="cannot be relied on: a product over 512 terms loses bits"):
        machine.check_products()
    monkeypatch.setattr(machine, "_rounds_to_nearest", lambda: False)
    with pytest.raises(NotEnclosed, match="not rounded to nearest"):
        machine.check_products()


@pytest.mark.parametrize("mode", ["FE_DOWNWARD", "FE_UPWARD", "FE_TOWARDZERO"])
def test_a_thread_that_rounds_otherwise_is_told(mode: str) -> None:
    library = ctypes.CDLL("libm.so.6")
    places = {"x86_64": (0x400, 0x800, 0xC00), "aarch64": (0x800000, 0x400000, 0xC00000)}[platform.machine()]
    library.fesetround(dict(zip(("FE_DOWNWARD", "FE_UPWARD", "FE_TOWARDZERO"), places, strict=True))[mode])
    try:
        found = machine._rounds_to_nearest()
    finally:
        library.fesetround(0)
    assert not found and machine._rounds_to_nearest()


def strassen(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """One step of Strassen's algorithm, for even sides."""
    (a, b), (c, d) = ([half for half in np.hsplit(part, 2)] for part in np.vsplit(left, 2))
    (e, f), (g, h) = ([half for half in np.hsplit(part, 2)] for part in np.vsplit(right, 2))
    p = [(a + d) @ (e + h), (c + d) @ e, a @ (f - h), d @ (g - e), (a + b) @ h, (c - a) @ (e + f), (b - d) @ (g + h)]
    return np.block([[p[0] + p[3] - p[4] + p[6], p[2] + p[4]], [p[1] + p[3], p[0] - p[1] + p[2] + p[5]]])


def in_21_bits(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    fraction, exponent = np.frexp(left)
    return np.asarray(np.ldexp(np.rint(fraction * 2.0**21) * 2.0**-21, exponent) @ right)


@pytest.mark.parametrize("product", [strassen, in_21_bits])
def test_other_algorithms_and_fewer_bits_are_told(product: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_product", product)
    assert "over 512 terms loses bits" in machine._fault_of_products(64, 512, 96)
