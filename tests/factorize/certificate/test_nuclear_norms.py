"""Nuclear norms: sums of singular values that are known, and bounds below them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factorize.certificate.lower_bounds.bounds import nuclear_norm_below, nuclear_norm_by_squares


@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    spread=st.floats(0, 9),
    exponent=st.integers(-900, 900),
)
@settings(max_examples=60, deadline=None)
def test_squares_give_less_than_singular_values_and_nearly_as_much(
    rows: int, columns: int, seed: int, spread: float, exponent: int
) -> None:
    rng, rank = np.random.default_rng(seed), min(rows, columns)
    left, right = (np.linalg.qr(rng.standard_normal((size, rank)))[0] for size in (rows, columns))
    known = 10.0 ** -(spread * np.arange(rank) / rank)
    matrix = np.ldexp((left * known) @ right.T, exponent)
    found = float(np.ldexp(nuclear_norm_by_squares(matrix), -exponent))
    true = float(np.ldexp(nuclear_norm_below(matrix), -exponent))
    assert true == pytest.approx(known.sum(), rel=1e-14)
    assert found < true
    # Each root loses at most the root of what is taken off its square.
    off = (rows + columns + 8) * 2.0**-53 * float(known @ known)
    assert found >= true - rank * np.sqrt(2.5 * off)
    assert found >= true - (2.5 * off / known).sum()


def test_what_is_taken_off_the_squares_is_the_stated_number() -> None:
    found = nuclear_norm_by_squares(np.diag([4.0, 2.0, 0.5]))
    off = Fraction(3 + 3 + 8, 2**53) * (16 + 4 + Fraction(1, 4)) / 64  # of M / 8
    wanted = 8 * sum(
        (float(Fraction(square, 64) - off)) ** 0.5 for square in (Fraction(16), Fraction(4), Fraction(1, 4))
    )
    assert found == pytest.approx(wanted * (1 - 3 * 2.0**-52), rel=1e-15)
    assert found < wanted


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (1, 1)])
def test_a_matrix_of_zeros_has_the_norm_zero(shape: tuple[int, int]) -> None:
    assert nuclear_norm_by_squares(np.zeros(shape)) == 0.0
