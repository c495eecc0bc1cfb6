"""The lower bound for fixed epochs without a dense matrix: against singular values, and with wrong quadratures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import spec_of

from factorize.certificate.lower_bounds import bounds
from factorize.certificate.lower_bounds.block_resolvents import nuclear_norm_below
from factorize.certificate.lower_bounds.bounds import lower_bound
from factorize.errors import CertificateError
from factorize.workloads.forms import BidiagonalInverse


def schedule(rates, decay=1.0):
    p = 1 / np.asarray(rates, dtype=float)
    return BidiagonalInverse(p, np.concatenate([[0.0], decay * p[1:]]))


def random_factors(classes, epochs, seed, spread=1.0):
    rng = np.random.default_rng(seed)
    scale = np.exp(spread * rng.standard_normal((classes, 1, 1)))
    return scale * rng.standard_normal((classes, epochs, epochs))


def exact_norm(inverse, factors):
    b, k, _ = factors.shape
    whole = np.zeros((b * k, b * k))
    for j, block in enumerate(factors):
        steps = np.arange(j, b * k, b)
        whole[np.ix_(steps, steps)] = block
    below = np.diag(inverse.p) - np.diag(inverse.q[1:], -1)
    return np.linalg.svd(np.linalg.solve(below, whole), compute_uv=False).sum()


@pytest.mark.parametrize(("epochs", "classes"), [(2, 2), (2, 3), (3, 1), (4, 16), (4, 17), (8, 8), (16, 5), (5, 60)])
def test_prefix_sums(epochs, classes):
    inverse, factors = schedule(np.ones(epochs * classes)), random_factors(classes, epochs, classes)
    exact = exact_norm(inverse, factors)
    assert exact * (1 - 1e-9) <= nuclear_norm_below(inverse, factors) <= exact * (1 + 1e-13)


@settings(max_examples=25)
@given(
    st.integers(2, 6),
    st.integers(1, 9),
    st.lists(st.floats(-6.0, 6.0), min_size=54, max_size=54),
    st.sampled_from([0.95, 1.0]),
    st.integers(0, 9),
)
def test_random_schedules(epochs, classes, logs, decay, seed):
    inverse = schedule(np.exp(logs[: epochs * classes]), decay)
    factors = random_factors(classes, epochs, seed)
    exact = exact_norm(inverse, factors)
    found = nuclear_norm_below(inverse, factors)
    assert exact * (1 - 1e-6) <= found <= exact * (1 + 1e-12)


def test_singular_and_empty_blocks():
    factors = random_factors(6, 3, 1)
    factors[2] = 0.0
    factors[4, :, 1:] = 0.0
    inverse = schedule(np.ones(18))
    assert 0 <= nuclear_norm_below(inverse, factors) <= exact_norm(inverse, factors) * (1 + 1e-13)


def test_what_is_no_chain_is_refused():
    factors = random_factors(4, 3, 0)
    cut = schedule(np.ones(12))
    cut.q[5] = 0.0
    assert nuclear_norm_below(cut, factors) is None
    uneven = BidiagonalInverse(np.ones(12), np.full(12, 0.1))
    assert nuclear_norm_below(uneven, factors) is None


def epochs_spec(n, epochs):
    return spec_of(n, participation=epochs).canonical()


def test_factors_of_other_patterns_are_refused(monkeypatch):
    monkeypatch.setattr(bounds, "_DIRECT_SVD", 10)
    for shape in ((8, 4, 4), (4, 8, 4), (32, 1, 1)):
        with pytest.raises(CertificateError, match=r"shape \(4, 8, 8\)"):
            lower_bound(epochs_spec(32, 8), {"factors": np.ones(shape)})
